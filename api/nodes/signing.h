/* Asks the signing process (signer/signer.h) for an agent's certificate; the API itself does not have the
 * CA's key. */
#ifndef MOTLEY_API_NODES_SIGNING_H
#define MOTLEY_API_NODES_SIGNING_H

#include <event2/event.h>
#include <stdint.h>

#include "common/err.h"

/* Called with the signed certificate as PEM, borrowed for the call; NULL when there is an 'err'. ERR_BUSY
 * when the signing process does not run or answers too late; any other error is the process's answer to the
 * request. */
typedef void signing_fn(void *arg, const struct err *err, const char *certificate);

/* Asks for a certificate. Call it on the loop's thread. 'done' is called exactly once, later, within 5 s; it
 * is not called after -1 was returned. */
int signing_ask(struct event_base *base, const char *socket, const char *node, int64_t generation,
                const char *csr, signing_fn *done, void *arg, struct err *err);

#endif
