/* Removes files that nothing refers to any more, such as those of dropped checkpoints and unused uploads.
 *
 * Several API processes may sweep one folder: the database forgets a file for exactly one of them. Loop
 * thread.
 */
#ifndef MOTLEY_API_BLOBS_SWEEP_H
#define MOTLEY_API_BLOBS_SWEEP_H

#include "common/err.h"

struct app;
struct sweep;

/* Looks for unused files every quarter of the configuration's unused_seconds, at least every 10 minutes;
 * never when unused_seconds is 0. Returns new, or NULL with ERR_NOMEM. */
struct sweep *sweep_create(struct app *app, struct err *err);
/* Call it after pool_stop and before the store ends. NULL is a no-op. */
void sweep_destroy(struct sweep *sweep);

#endif
