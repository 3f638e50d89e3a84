/* Profile mode: measures this device for one model shape and method and answers with the profile document of
 * docs/CONTRACTS.md. */
#ifndef MOTLEY_WORKER_PROFILE_H
#define MOTLEY_WORKER_PROFILE_H

#include <jansson.h>

#include "common/err.h"
#include "worker/session/link.h"
#include "worker/session/session.h"

/* Handles a `profile` message with `local` (borrowed): waits until its start_ns, measures, keeps the device
 * busy until `seconds` after it so that neighbours measure under load, and emits `profile`. */
int profile_run(struct worker_link *link, const json_t *message, const struct stop_request *stop,
                struct err *err);

#endif
