/* What was found of jobs that wait, so that a pass need not plan them again while nothing more is free for
 * them.
 *
 * A job that does not fit on a set of devices does not fit on a part of it. All is forgotten when a device, a
 * link or a profile changes. Bounded: with WAITING_MAX jobs noted it begins anew.
 */
#ifndef MOTLEY_SCHEDULER_WAITING_H
#define MOTLEY_SCHEDULER_WAITING_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "store/sched.h"

enum { WAITING_MAX = 4096 };

struct waiting;

/* Empty. ERR_NOMEM. */
struct waiting *waiting_create(struct err *err);
/* NULL is fine. */
void waiting_destroy(struct waiting *waiting);

/* A pass over `view` begins; `profiles` rises whenever profiles may have changed. */
void waiting_begin(struct waiting *waiting, const struct store_view *view, uint64_t profiles);

/* Job `id` does not fit on `unfit`; of all there is it would take `wanted`: masks over the view's devices,
 * copied. Without memory it is not noted. */
void waiting_put(struct waiting *waiting, int64_t id, const bool *unfit, const bool *wanted);

/* True when it is known not to fit on `usable`; then *wanted is filled. */
bool waiting_get(const struct waiting *waiting, int64_t id, const bool *usable, bool *wanted);

#endif
