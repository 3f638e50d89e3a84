/* Proves that this node can run a worker on a device. */
#ifndef MOTLEY_WORKER_PROVE_H
#define MOTLEY_WORKER_PROVE_H

#include <jansson.h>

#include "common/err.h"
#include "worker/session/link.h"
#include "worker/session/session.h"

/* Handles a `prove` message with `local` (borrowed): opens the device and multiplies on it, asks the artifact
 * store a question and writes a file beside the chunk cache, then emits `proved`. An error names what is
 * lacking. */
int prove_run(struct worker_link *link, const json_t *message, const struct stop_request *stop,
              struct err *err);

#endif
