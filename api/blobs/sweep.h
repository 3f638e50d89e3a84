/* Removes files that nothing refers to any more: dropped checkpoints, uploads never used.
 *
 * Several api processes may sweep one folder: the database forgets a file for exactly one of them. Loop
 * thread.
 */
#ifndef MOTLEY_API_BLOBS_SWEEP_H
#define MOTLEY_API_BLOBS_SWEEP_H

#include "common/err.h"

struct app;
struct sweep;

/* Looks now and then, as often as the configuration's unused_seconds call for; does nothing when they are 0.
 * Returns new, or NULL with ERR_NOMEM. */
struct sweep *sweep_create(struct app *app, struct err *err);
/* After pool_stop and before the store ends. NULL is a no-op. */
void sweep_destroy(struct sweep *sweep);

#endif
