/* The steps of a run. */
#ifndef MOTLEY_WORKER_TRAIN_H
#define MOTLEY_WORKER_TRAIN_H

#include "worker/session/session.h"

/* Runs the steps. Returns 0 with *stopped_at set to the steps done when a stop ended the run early,
 * else UINT64_MAX. *saved: a checkpoint of that step was written. *artifacts is new on rank 0 after the last
 * step, else NULL. */
int session_train(struct session *session, uint64_t *stopped_at, bool *saved, json_t **artifacts,
                  struct err *err);

#endif
