/* Loads checkpoints of the older format, which has no indexes, and adapters. */
#ifndef MOTLEY_WORKER_CHECKPOINT_OLD_H
#define MOTLEY_WORKER_CHECKPOINT_OLD_H

#include "worker/session/session.h"

/* Loads the values and moments of a checkpoint. */
int state_load_old(struct session *session, const json_t *blobs, struct err *err);
/* Loads the values of adapters from a safetensors file. */
int state_load_adapter(struct session *session, struct safetensors *file, struct err *err);

#endif
