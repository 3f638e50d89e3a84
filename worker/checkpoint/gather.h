/* Gathers a checkpoint from all ranks on rank 0, over the binary tree of group 0: the names of the files that
 * every rank stored, and the values of adapters, which rank 0 writes into one file. */
#ifndef MOTLEY_WORKER_CHECKPOINT_GATHER_H
#define MOTLEY_WORKER_CHECKPOINT_GATHER_H

#include "worker/checkpoint/waiting.h"

/* Sends to the parent rank the files and file names of this rank and of the ranks below it; with result < 0
 * it sends that storing failed. Rank 0 stores the adapter's file, its configuration, the index and
 * state.json, and then has all files in the snapshot's blobs. Messages are received after a failure too,
 * because a message left in the queue would be taken for the next checkpoint's. */
int gather_parts(struct session *session, struct snapshot *snapshot, int result, struct err *err);

#endif
