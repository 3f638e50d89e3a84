/* Asks the signing process (signer/signer.h) for an agent's certificate; the API itself does not have the
 * CA's key. */
#ifndef MOTLEY_API_NODES_SIGNING_H
#define MOTLEY_API_NODES_SIGNING_H

#include <event2/event.h>
#include <stdint.h>

#include "common/err.h"

/* 'certificate' is PEM, borrowed for the call; NULL when there is an 'err'. ERR_BUSY when the process does
 * not run or is late; any other error is its answer to the request. */
typedef void signing_fn(void *arg, const struct err *err, const char *certificate);

/* Call it on the loop's thread. 'done' comes exactly once, later, within 5 s; after -1 it does not come. */
int signing_ask(struct event_base *base, const char *socket, const char *node, int64_t generation,
                const char *csr, signing_fn *done, void *arg, struct err *err);

#endif
