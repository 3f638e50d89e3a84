/* The one process that holds the CA's key. It answers one kind of request: a certificate for an agent.
 *
 * Two processes. The front listens on a unix socket, lets in its own user and one more, and passes on one
 * bounded request at a time; it never sees the key. The other reads the key into locked memory, enters the
 * sandbox (common/sandbox.h) and then only reads requests and writes answers: what it parses was sent by
 * strangers. When either ends, both do, and whoever watches starts them again.
 *
 * A request is a frame (common/frame.h) {"kind": "agent", "node", "generation", "csr"}, the answer
 * {"certificate"} or {"code", "error"}; one a connection. Whatever the request says, the certificate is for
 * the identity "agent:NODE:GENERATION", names no host and lasts `lifetime_s`.
 */
#ifndef MOTLEY_SIGNER_SIGNER_H
#define MOTLEY_SIGNER_SIGNER_H

#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

struct signer_options {
    const char *ca_file, *key_file; /* PEM of the CA */
    const char *socket;             /* path; made anew, mode 0660 */
    uid_t peer;                     /* may ask, beside our own user */
    uint32_t lifetime_s;            /* of what it signs */
};

/* The process with the key: answers on 'fd', a socket to its front, until that is closed (0). First it says
 * {"ready": true}, or why it is not. For a process of its own: there is no way back out of the sandbox. */
int signer_keep(const struct signer_options *options, int fd, struct err *err);

/* Its front: 'fd' leads to the process with the key. Serves until SIGTERM or SIGINT (0; both must be
 * blocked), or until the other is gone or late (ERR_PEER, ERR_TIMEOUT). Blocks. */
int signer_serve(const struct signer_options *options, int fd, struct err *err);

#endif
