/* Checkpoints: the state that a run needs to resume, by parameter name and never by rank.
 *
 * Every rank stores files of its own pieces (write.h) and indexes of them, pieces-R-K.jsonl (pieces.h). A
 * rank that resumes finds by the indexes which ranges of which files hold its pieces, whatever ranks wrote
 * them, and fetches only these. The values of adapters are sent up the tree of group 0 to rank 0, which
 * makes the one adapter_model.safetensors exactly as peft writes it; the index names that file for these
 * values. state.json has the next step, the optimiser's update count, the seed and, in fp16, the loss scale.
 * The position in the data and every random number follow from (seed, step), so nothing else is stored.
 *
 * Memory: a file of a rank's pieces is made in memory and waits in the snapshot's spool.
 */
#ifndef MOTLEY_WORKER_CHECKPOINT_STATE_H
#define MOTLEY_WORKER_CHECKPOINT_STATE_H

#include "worker/checkpoint/read.h"
#include "worker/checkpoint/waiting.h"
#include "worker/session/session.h"

/* Copies this rank's state before step `step`. A failure is recorded in the snapshot. */
void snapshot_take(struct session *session, uint64_t step, struct snapshot *snapshot);
/* Stores a snapshot and empties it. One thread at a time may call it; it uses the session's blobs client and
 * no stage. On rank 0 *blobs becomes a new {file name: {sha256, size}} of all ranks' files; it is NULL on
 * others. */
int snapshot_store(struct session *session, struct snapshot *snapshot, json_t **blobs, struct err *err);

/* Loads the checkpoint or adapter that the assignment starts from, if any, into the stages. */
int state_load(struct session *session, struct err *err);
/* Loads the values of adapters from a safetensors file. */
int state_load_adapter(struct session *session, struct safetensors *file, struct err *err);
/* Adds to the reader all pieces in a checkpoint's indexes that pass the filter, and makes it ready. */
int state_read_indexes(struct session *session, const json_t *blobs, struct piece_reader *reader,
                       piece_filter_fn *filter, void *arg, struct err *err);

#endif
