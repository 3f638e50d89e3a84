/* Checkpoints beside the steps: the main thread copies the state (milliseconds), a thread stores the copy.
 *
 * One checkpoint at a time: the next waits until the one before is stored or has failed, so that memory holds
 * one copy and every rank stores them in one order (parts travel over the mesh's queue OPS_QUEUE_WORKER,
 * which nothing else uses). The copy is of one moment: what is stored does not depend on when. `checkpoint`
 * is said when all parts are stored, so a checkpoint is complete or absent as ever. While a thread runs, the
 * session's blobs client is its own. Main thread alone calls these.
 */
#ifndef MOTLEY_WORKER_SAVER_H
#define MOTLEY_WORKER_SAVER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct saver;
struct session;

struct save_wish {
    uint64_t step; /* steps done */
    double loss;   /* held-out, of that step; not finite: not evaluated */
    bool best;
    bool must; /* a failure is told to the caller of saver_settle, not logged */
};

int saver_create(struct session *session, struct saver **out, struct err *err);

/* Waits for the checkpoint before. -1: the agent can no longer be told. */
int saver_prepare(struct saver *saver, const struct save_wish *wish, struct err *err);
/* Copies the state as it is; a failure is kept and stored in the copy's place: the other ranks wait for our
 * part. */
void saver_copy(struct saver *saver);
/* Stores the copy in the background. ERR_NOMEM. */
int saver_start(struct saver *saver, struct err *err);

/* Waits for the checkpoint under way, if any. *stored (may be NULL): there was one and our part of it is
 * stored; *blobs (may be NULL): new, {file name: {sha256, size}} on rank 0, else as it was. -1: it had to be
 * stored and was not, or the agent can no longer be told. */
int saver_settle(struct saver *saver, bool *stored, json_t **blobs, struct err *err);

/* At the end of a run, however it ended: waits for the checkpoint under way, which is good, until deadline_ns
 * (clock_mono_ns). True: none is under way any more. NULL is a no-op. */
bool saver_drain(struct saver *saver, uint64_t deadline_ns);

/* Waits without end: see that the mesh and the blobs client end first. NULL is a no-op. */
void saver_destroy(struct saver *saver);

#endif
