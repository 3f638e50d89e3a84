/* Stores checkpoints while training goes on: the main thread copies the state into a spool, a second thread
 * stores the copy.
 *
 * One checkpoint is stored at a time. A new one waits until the previous one is stored or has failed, so
 * memory holds one copy and every rank stores checkpoints in the same order; parts travel over the mesh queue
 * OPS_QUEUE_WORKER, which nothing else uses. The copy is of one moment, so its content does not depend on
 * when it is stored. The `checkpoint` event is sent when all parts are stored, so a checkpoint that the agent
 * knows of is complete. While the thread runs, it alone uses the session's blobs client. Only the main thread
 * calls these functions.
 */
#ifndef MOTLEY_WORKER_CHECKPOINT_SAVER_H
#define MOTLEY_WORKER_CHECKPOINT_SAVER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct saver;
struct session;

struct save_request {
    uint64_t step; /* number of steps done */
    double loss;   /* held-out loss of that step; not finite when there was no evaluation */
    bool best;
    bool must; /* a failure is returned by saver_wait instead of logged */
};

int saver_create(struct session *session, struct saver **out, struct err *err);

/* Waits until the previous checkpoint is stored or has failed, and sets the next one's request. Returns -1
 * when saver_wait does. */
int saver_prepare(struct saver *saver, const struct save_request *request, struct err *err);
/* Copies the state of this step. A failure is recorded in the copy and sent to the other ranks in its place,
 * because they wait for this rank. */
void saver_copy(struct saver *saver);
/* Runs for INSTR_SAVE: saver_copy of the session `arg`. A failed copy does not fail the program, because the
 * other ranks must complete it too. */
int saver_copy_op(void *arg, struct err *err);
/* Begins to store the copy on the second thread. Returns -1 with ERR_NOMEM when the thread cannot be
 * started. */
int saver_start(struct saver *saver, struct err *err);

/* Waits for the checkpoint under way, if any. Sets *stored (may be NULL) to whether there was one and this
 * rank's part of it is stored. Sets *blobs (may be NULL) on rank 0 to a new {file name: {sha256, size}}, on
 * other ranks to NULL; when there was no checkpoint, *blobs stays unchanged. Returns -1 when a checkpoint
 * with `must` was not stored, or the agent can no longer be told. */
int saver_wait(struct saver *saver, bool *stored, json_t **blobs, struct err *err);

/* Waits at the end of a run, until deadline_ns (clock_mono_ns), for the checkpoint under way. Returns true
 * when none is under way any more. NULL is a no-op and returns true. */
bool saver_drain(struct saver *saver, uint64_t deadline_ns);

/* Waits without a limit: the caller must end the mesh and the blobs client first. NULL is a no-op. */
void saver_destroy(struct saver *saver);

#endif
