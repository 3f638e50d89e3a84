/* The history of this home, on disk: the incarnation of the cluster that it belongs to, the last epoch of
 * each device under it, the jobs that it was assigned last, and those of the incarnation before.
 *
 * An incarnation is a text that changes when the cluster's database is restored from a backup; a later one
 * compares greater. Every change is synced before the call returns. Thread: one.
 */
#ifndef MOTLEY_AGENT_PAST_H
#define MOTLEY_AGENT_PAST_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

enum { PAST_INCARNATION_SIZE = 40, PAST_RUNS_MAX = 512 };

struct past;

/* Opens the history of 'home'; without a file the home is new. ERR_IO, ERR_CORRUPT: then the agent must not
 * start, because executing an assignment twice is worse. */
struct past *past_open(const char *home, struct err *err);
/* NULL is a no-op. */
void past_close(struct past *past);

/* The incarnation; "" before a scheduler has sent one. Borrowed until the next change. */
const char *past_incarnation(const struct past *past);
/* The epoch of the last assignment that was accepted for the device; -1: none. */
int64_t past_epoch(const struct past *past, const char *device);

/* Records that an assignment was accepted. ERR_IO. */
int past_note(struct past *past, const char *device, int64_t epoch, int64_t job, int64_t run,
              struct err *err);
/* Records the first incarnation that this home receives. ERR_IO. */
int past_adopt(struct past *past, const char *incarnation, struct err *err);
/* Changes to another incarnation: epochs start again, and the jobs become those of the incarnation before.
 * ERR_IO. */
int past_renew(struct past *past, const char *incarnation, struct err *err);

/* {"incarnation", "runs": [{"job", "run"}]} of the incarnation before; NULL when there was none. Borrowed
 * until the next change. */
json_t *past_before(const struct past *past);

#endif
