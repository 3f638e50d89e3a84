/* Holds the CA's key and answers one kind of request: a certificate for an agent.
 *
 * There are two processes. The front listens on a unix socket, admits its own user and one more, and passes
 * on one bounded request at a time; it never sees the key. The other process reads the key into locked
 * memory, enters the sandbox (common/sandbox.h), and from then on only reads requests and writes answers,
 * because strangers wrote what it parses. When either process ends, the other ends too, and their supervisor
 * starts them again.
 *
 * A request is a frame (common/frame.h) {"kind": "agent", "node", "generation", "csr"}; the answer is
 * {"certificate"} or {"code", "error"}; each connection carries one. Whatever the request says, the
 * certificate is for the identity "agent:NODE:GENERATION", names no host and lasts `lifetime_s`.
 */
#ifndef MOTLEY_SIGNER_SIGNER_H
#define MOTLEY_SIGNER_SIGNER_H

#include <stdint.h>
#include <sys/types.h>

#include "common/err.h"

struct signer_options {
    const char *ca_file, *key_file; /* PEM of the CA */
    const char *socket;  /* path of the socket, made with mode 0660; an existing file is replaced */
    uid_t peer;          /* the user that may send requests, in addition to our own */
    uint32_t lifetime_s; /* lifetime of the certificates that it signs */
};

/* Runs the process with the key: answers on 'fd', a socket to the front, until that is closed (returns 0).
 * First it sends {"ready": true}, or why it is not ready. It must be a process of its own, because it never
 * leaves the sandbox. */
int signer_keep(const struct signer_options *options, int fd, struct err *err);

/* Runs the front: 'fd' is the socket to the process with the key. Serves until SIGTERM or SIGINT (returns 0;
 * both must be blocked), or until the other process ends or is late (ERR_PEER, ERR_TIMEOUT). Blocks. */
int signer_serve(const struct signer_options *options, int fd, struct err *err);

#endif
