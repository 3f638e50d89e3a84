/* What this home has done, on disk: which life of the cluster it belongs to (its incarnation), the last epoch
 * of each device under it, the jobs that it was given last, and those of the life before.
 *
 * An incarnation is text; a later one compares greater. Every change is synced before the call returns.
 * Thread: one.
 */
#ifndef MOTLEY_AGENT_PAST_H
#define MOTLEY_AGENT_PAST_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

enum { PAST_INCARNATION_SIZE = 40, PAST_RUNS_MAX = 512 };

struct past;

/* Of 'home'; a missing file is a new home. ERR_IO, ERR_CORRUPT: then the agent must not go on, since
 * executing twice is worse. */
struct past *past_open(const char *home, struct err *err);
/* NULL is fine. */
void past_close(struct past *past);

/* "" while no scheduler has told it. Borrowed until the next change. */
const char *past_incarnation(const struct past *past);
/* Of the last assignment that was accepted for the device; -1: none. */
int64_t past_epoch(const struct past *past, const char *device);

/* An assignment is accepted. ERR_IO. */
int past_note(struct past *past, const char *device, int64_t epoch, int64_t job, int64_t run,
              struct err *err);
/* The first incarnation this home hears of. ERR_IO. */
int past_adopt(struct past *past, const char *incarnation, struct err *err);
/* Another one: epochs begin anew, the jobs become those of the life before. ERR_IO. */
int past_renew(struct past *past, const char *incarnation, struct err *err);

/* {"incarnation", "runs": [{"job", "run"}]} of the life before; NULL: there was none. Borrowed until the next
 * change. */
json_t *past_before(const struct past *past);

#endif
