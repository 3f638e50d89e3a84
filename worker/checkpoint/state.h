/* The training state of a rank: copying, storing and loading it. */
#ifndef MOTLEY_WORKER_CHECKPOINT_STATE_H
#define MOTLEY_WORKER_CHECKPOINT_STATE_H

#include "worker/session/session.h"

/* A copy of this rank's training state before step `step`. snapshot_create returns NULL when memory
 * is short. A failure of snapshot_take is recorded in the copy and stored in its place, because the other
 * ranks wait for this rank's part. */
struct snapshot;
struct snapshot *snapshot_create(void);
void snapshot_destroy(struct snapshot *snapshot);
void snapshot_take(struct session *session, uint64_t step, struct snapshot *snapshot);
/* Stores a copy and empties it. One thread at a time may call it; it uses the session's blobs client and no
 * stage. Every rank uploads its optimiser part; adapters travel up the tree to rank 0, which uploads them
 * with the other files and sets *blobs to a new {file name: {sha256, size}}. *blobs is NULL on other ranks.
 */
int snapshot_store(struct session *session, struct snapshot *snapshot, json_t **blobs, struct err *err);
/* Loads the checkpoint or adapter that the assignment starts from, if any, into the stages. Tensors are found
 * by name, whatever split of ranks wrote them. */
int state_load(struct session *session, struct err *err);

/* The most host memory that storing or loading a checkpoint of a fully trained model takes, in
 * bytes; 0 for adapters, whose state is copied first. */
uint64_t state_streamed_bytes(const struct session *session);

#endif
