/* One TLS connection of the mesh: blocking reads and writes of whole pieces, each direction used by one
 * thread.
 *
 * Between OpenSSL and the socket stand two buffers of ours, so that a hundred kilobytes take one system call
 * each way instead of one or two for every 16 KiB record. Written bytes leave when the buffer is full or at
 * mesh_conn_flush(). With a deadline set (handshake, hello) waits end with ERR_TIMEOUT, or ERR_CANCELLED when
 * *cancel becomes true; without one they end when somebody calls mesh_conn_shutdown().
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
    const atomic_bool *cancel;    /* or NULL */
    uint32_t socket_buffer_bytes; /* 0: see mesh.h */
    uint64_t peer_silence_ns;
};

/* Connect to "host:port" and shake hands; tries again while the address refuses, until the deadline. 'name'
 * is for error texts. The peer's identity is not checked yet. */
int mesh_conn_dial(SSL_CTX *context, const char *address, const char *name,
                   const struct mesh_conn_options *options, struct mesh_conn **conn, struct err *err);

/* Shake hands on an accepted socket; takes 'fd', also on error. */
int mesh_conn_accept(SSL_CTX *context, int fd, const char *name, const struct mesh_conn_options *options,
                     struct mesh_conn **conn, struct err *err);

/* ERR_PEER unless the peer's certificate says exactly 'wanted'. */
int mesh_conn_check(struct mesh_conn *conn, const char *wanted, struct err *err);

/* Call the peer by another name in errors from here on. */
void mesh_conn_rename(struct mesh_conn *conn, const char *name);

/* The handshake is over: no deadline from here on, buffers as the link needs them. */
void mesh_conn_steady(struct mesh_conn *conn);

/* Exactly size bytes. ERR_NET when the connection ends before. */
int mesh_conn_read(struct mesh_conn *conn, void *dst, size_t size, struct err *err);
/* Both pieces, one behind the other, sharing records. */
int mesh_conn_write(struct mesh_conn *conn, const void *head, size_t head_size, const void *body,
                    size_t body_size, struct err *err);
int mesh_conn_flush(struct mesh_conn *conn, struct err *err);

/* End all waits on it, now and later. Any thread. */
void mesh_conn_shutdown(struct mesh_conn *conn);
/* No thread may use it any more. NULL is a no-op. */
void mesh_conn_close(struct mesh_conn *conn);

/* Split "host:port" or "[v6]:port" and resolve; used for listening too. Returns a list for freeaddrinfo(). */
struct addrinfo;
int mesh_resolve(const char *address, bool listening, struct addrinfo **list, struct err *err);

#endif
