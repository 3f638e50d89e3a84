/* Stores what a run leaves behind: its result. */
#ifndef MOTLEY_WORKER_RESULT_H
#define MOTLEY_WORKER_RESULT_H

#include "worker/session/session.h"

/* Makes and stores what the specification's `result` asks for, on rank 0, from the files of the
 * last checkpoint. *artifacts is a new {name: {sha256, size}}. When what is made of an adapter fails, -1 with
 * the artifacts of the adapter alone; else -1 with NULL. */
int result_store(struct session *session, const json_t *blobs, json_t **artifacts, struct err *err);

#endif
