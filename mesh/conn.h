/* One TLS connection of the mesh, with blocking reads and writes of whole pieces. One thread reads and one
 * thread writes.
 *
 * A read buffer and a write buffer stand between OpenSSL and the socket, so that a hundred kilobytes take one
 * system call instead of one or two for every 16 KiB record. Written bytes are sent when the buffer is full
 * or at mesh_conn_flush(). While a deadline is set (handshake and hello) waits end with ERR_TIMEOUT, or with
 * ERR_CANCELLED when *cancel becomes true; without a deadline they end at mesh_conn_shutdown().
 */
#ifndef MOTLEY_MESH_CONN_H
#define MOTLEY_MESH_CONN_H

#include <openssl/ssl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct mesh_conn;

struct mesh_conn_options {
    uint64_t deadline_ns;
    const atomic_bool *cancel;    /* waits end when it becomes true; NULL: it never does */
    uint32_t socket_buffer_bytes; /* size of both socket buffers; 0: by the measured round trip */
    uint64_t peer_silence_ns;
};

/* Connects to "host:port" and completes the TLS handshake. While the address refuses it tries again until the
 * deadline. 'name' is used in error texts. The peer's identity is not checked yet. */
int mesh_conn_dial(SSL_CTX *context, const char *address, const char *name,
                   const struct mesh_conn_options *options, struct mesh_conn **conn, struct err *err);

/* Completes the TLS handshake on an accepted socket. Takes 'fd', also on error. */
int mesh_conn_accept(SSL_CTX *context, int fd, const char *name, const struct mesh_conn_options *options,
                     struct mesh_conn **conn, struct err *err);

/* Fails with ERR_PEER unless the peer's certificate carries exactly the identity 'wanted'. */
int mesh_conn_check(struct mesh_conn *conn, const char *wanted, struct err *err);

/* Sets another name of the peer for later error texts. */
void mesh_conn_rename(struct mesh_conn *conn, const char *name);

/* Ends the handshake phase: removes the deadline and sizes the socket's buffers for the link. */
void mesh_conn_established(struct mesh_conn *conn);

/* Reads exactly size bytes. ERR_NET when the connection ends before that. */
int mesh_conn_read(struct mesh_conn *conn, void *dst, size_t size, struct err *err);
/* Writes both pieces one after the other; they may share TLS records. */
int mesh_conn_write(struct mesh_conn *conn, const void *head, size_t head_size, const void *body,
                    size_t body_size, struct err *err);
int mesh_conn_flush(struct mesh_conn *conn, struct err *err);

/* Ends all waits on the connection, now and later. Any thread may call it. */
void mesh_conn_shutdown(struct mesh_conn *conn);
/* Frees the connection, which no thread may use any more. NULL is a no-op. */
void mesh_conn_close(struct mesh_conn *conn);

/* Splits "host:port" or "[v6]:port" and resolves it, for connecting or listening. Returns a list for
 * freeaddrinfo(). */
struct addrinfo;
int mesh_resolve(const char *address, bool listening, struct addrinfo **list, struct err *err);

#endif
