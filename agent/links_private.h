/* One end of a connection between two agents: blocking TLS with a deadline. Thread: the connection's. */
#ifndef MOTLEY_AGENT_LINKS_PRIVATE_H
#define MOTLEY_AGENT_LINKS_PRIVATE_H

#include <openssl/ssl.h>
#include <stdatomic.h>
#include <stdint.h>

#include "common/err.h"

enum { LINKS_CHUNK = 64 << 10 }; /* bytes that are read or written at once */

struct pipe_end {
    SSL *ssl;
    int fd;
    uint64_t deadline_ns;
    uint32_t limit_ms; /* the time that led to the deadline, for errors */
    const char *peer;
    const atomic_bool *stopping;
};

/* What follows has to be done within this time. */
void end_limit(struct pipe_end *end, uint32_t limit_ms);

/* All of them return 0, or -1 with ERR_TIMEOUT, ERR_CANCELLED when the agent stops, or the connection's
 * error. */
int end_handshake(struct pipe_end *end, struct err *err);
int end_write(struct pipe_end *end, const uint8_t *data, size_t size, struct err *err);
int end_read(struct pipe_end *end, uint8_t *data, size_t size, struct err *err);
/* Sends `bytes` and receives as many at the same time. in[LINKS_CHUNK] receives them, out[LINKS_CHUNK] is
 * sent. */
int end_exchange(struct pipe_end *end, uint64_t bytes, const uint8_t *out, uint8_t *in, struct err *err);
void end_close(struct pipe_end *end);

/* Makes the socket of a connection ready for an end. */
void end_socket(int fd);
/* Connects to "host:port" and returns the socket, or -1. packet_bytes: packets of both directions are not to
 * be larger; 0: as the network's devices say. */
int end_dial(const char *address, int packet_bytes, uint64_t deadline_ns, struct err *err);

#endif
