/* Remembers on which devices a waiting job does not fit, so that a pass need not plan it again while no
 * further device is free for it.
 *
 * A job that does not fit on a set of devices does not fit on a subset. Everything is forgotten when a
 * device, a link or a profile changes, or when WAITING_MAX jobs are noted.
 */
#ifndef MOTLEY_SCHEDULER_PASS_WAITING_H
#define MOTLEY_SCHEDULER_PASS_WAITING_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "store/sched.h"

enum { WAITING_MAX = 4096 };

struct waiting;

/* Returns new, without notes; or NULL with ERR_NOMEM. */
struct waiting *waiting_create(struct err *err);
/* NULL is a no-op. */
void waiting_destroy(struct waiting *waiting);

/* A pass over `view` begins. `profiles` is a count that rises whenever profiles may have changed. */
void waiting_begin(struct waiting *waiting, const struct store_view *view, uint64_t profiles);

/* Notes that job `id` does not fit on the devices `unfit`, and would take the devices `wanted` if all were
 * free. Both masks run over the view's devices and are copied. Without memory nothing is noted. */
void waiting_put(struct waiting *waiting, int64_t id, const bool *unfit, const bool *wanted);

/* True when the job is known not to fit on `usable`; *wanted is filled then. */
bool waiting_get(const struct waiting *waiting, int64_t id, const bool *usable, bool *wanted);

#endif
