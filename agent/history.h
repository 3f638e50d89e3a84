/* The history of this home, on disk: the cluster's incarnation, the last epoch of each device under this
 * incarnation, the jobs that the node was assigned last, and the jobs of the previous incarnation.
 *
 * An incarnation is a text that changes when the cluster's database is restored from a backup; a later one
 * compares greater. Every change is synced before the call returns. Thread: one.
 */
#ifndef MOTLEY_AGENT_HISTORY_H
#define MOTLEY_AGENT_HISTORY_H

#include <jansson.h>
#include <stdint.h>

#include "common/err.h"

enum { HISTORY_INCARNATION_SIZE = 40, HISTORY_RUNS_MAX = 512, HISTORY_BOOT_SIZE = 33 };

struct node_history;

/* Opens the history of 'home'; without a file the home is new. ERR_IO, ERR_CORRUPT: the agent must not start,
 * because without the epochs it might execute an assignment twice. */
struct node_history *history_open(const char *home, struct err *err);
/* NULL is a no-op. */
void history_close(struct node_history *history);

/* Returns the incarnation; "" before a scheduler has sent one. Borrowed until the next change. */
const char *history_incarnation(const struct node_history *history);
/* Returns the epoch of the last assignment that was accepted for the device; -1: none. */
int64_t history_epoch(const struct node_history *history, const char *device);

/* Records that an assignment was accepted. ERR_IO. */
int history_note(struct node_history *history, const char *device, int64_t epoch, int64_t job, int64_t run,
                 struct err *err);
/* Records the first incarnation that this home receives. ERR_IO. */
int history_adopt(struct node_history *history, const char *incarnation, struct err *err);
/* Changes to another incarnation: epochs start again, and the jobs become those of the incarnation before.
 * ERR_IO. */
int history_renew(struct node_history *history, const char *incarnation, struct err *err);

/* Returns {"incarnation", "runs": [{"job", "run"}]} of the incarnation before; NULL when there was none.
 * Borrowed until the next change. */
json_t *history_before(const struct node_history *history);

/* Makes the id of a start of the agent: the wall clock in microseconds and 8 random bytes, in hex. It is
 * greater than the id of the home's last start even if the clock was set back, and tells events of an earlier
 * start that are sent again. ERR_IO. */
int history_boot(const char *home, char boot[HISTORY_BOOT_SIZE], struct err *err);

#endif
