/* The mesh carries tensors between the workers of one run, over mutual TLS 1.3.
 *
 * A mesh belongs to one rank of one run epoch. Call mesh_listen() first (so that the address can be
 * announced), then mesh_connect() with every peer that the program names. Each pair of ranks has two TLS
 * connections, one for each direction, and each connection has its own I/O thread, so the compute thread
 * never waits for a socket. Both certificates must come from the cluster's CA and carry exactly the identity
 * announced for the rank.
 *
 * Queues. Each ordered pair of ranks has MESH_QUEUES queues. On one queue the n-th receive gets the n-th
 * send. Their tags are compared; a difference is a bug in the program and gives ERR_INTERNAL, which names
 * both. Queues do not wait for each other: messages are cut into chunks of at most MESH_CHUNK_BYTES, queues
 * with chunks take turns, and a message that fits in one small frame goes before the next chunk of a large
 * one.
 *
 * Memory. A receive names its destination before data arrives, and the bytes are written there. A message
 * whose receive is not posted yet may be sent early while it fits in the queue's window
 * (mesh_options.window_bytes); beyond that the sender waits until the receive is posted. Nothing is
 * unbounded: a size above the posted bound, a frame above MESH_CHUNK_BYTES and a message above
 * message_bytes_max are refused before memory is touched.
 *
 * Completion. Every send and receive ends exactly once, by its callback: with success, or with an error that
 * names the peer ("rank 1 (worker:right/cpu0): …"). Until then the buffer belongs to the mesh. Callbacks run
 * on I/O threads, must not block, and must not call mesh_close() or mesh_destroy(); they may post to their
 * owner's event queue and call mesh_send() or mesh_recv(). Each operation has a deadline. When a deadline
 * expires or a connection breaks, the *peer* has failed: all operations with it end with that error, and
 * later ones are refused with it.
 *
 * Frames of another run epoch are refused, at connection (ERR_STALE on both sides) and again for each frame.
 */
#ifndef MOTLEY_MESH_MESH_H
#define MOTLEY_MESH_MESH_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct mesh;

enum {
    MESH_QUEUES = 64,
    MESH_CHUNK_BYTES = 128 << 10, /* largest frame in bytes, header included */
    MESH_WINDOW_BYTES = 16 << 20, /* window_bytes if none is given */
    MESH_MESSAGE_COST = 256,      /* bytes that an early message counts against the window beside its own */
    MESH_PEERS_MAX = 4096,
    MESH_DIMS_MAX = 4,
    MESH_RANK_NONE = UINT32_MAX
};

/* An emulated link in one direction: a frame that this rank sends to a peer occupies the link for (header +
 * bytes) / bytes_per_s, one frame after the other whichever queue it belongs to, and arrives latency_s later.
 * Zeros turn emulation off. A send is complete when its last byte has left at that rate. */
struct mesh_link {
    double bytes_per_s;
    double latency_s;
};

struct mesh_options {
    uint32_t rank;  /* rank of this worker */
    uint64_t epoch; /* run epoch (fencing); both ends must agree */
    uint64_t run;   /* run number; both ends must agree */
    /* PEM files: this worker's certificate (its identity as CN/SAN) and key, and the cluster's CA */
    const char *cert_file, *key_file, *ca_file;
    uint64_t window_bytes; /* bytes that may arrive per queue and peer before their receive is posted; 0 means
                              MESH_WINDOW_BYTES */
    uint64_t message_bytes_max;   /* largest message; 0 means 4 GiB */
    uint32_t socket_buffer_bytes; /* SO_SNDBUF/SO_RCVBUF; 0 means a size by the measured round trip, at least
                                     256 KiB. Larger buffers help up to rate * round trip and delay small
                                     frames behind large ones. */
    uint64_t peer_silence_ns;     /* TCP drops the connection to a silent host after so long; 0 means 30 s */
};

struct mesh_peer {
    uint32_t rank;
    const char *address;   /* "host:port", "[v6]:port" */
    const char *identity;  /* identity that the peer's certificate must carry: "worker:right/cpu0" */
    struct mesh_link link; /* emulated link towards that peer */
    bool turned;           /* the higher of the two ranks opens the connections; both ends must say so */
};

/* Properties that travel with a message and are given to the receiver. */
struct mesh_meta {
    uint64_t tag;  /* made by mesh_tag(); must equal the receive's */
    uint8_t dtype; /* the engine's dtype number; 0 means bytes */
    uint8_t rank;  /* number of dimensions used in shape */
    uint32_t shape[MESH_DIMS_MAX];
};

/* Makes a tag. kind: the sort of data (activation, gradient, scalars …); step is taken modulo 2^16 and
 * micro_batch modulo 2^24. */
static inline uint64_t mesh_tag(uint8_t kind, uint16_t step, uint16_t layer, uint32_t micro_batch)
{
    return (uint64_t)kind << 56 | (uint64_t)step << 40 | (uint64_t)layer << 24 | (micro_batch & 0xffffff);
}

/* The result of an operation. Times are clock_mono_ns(). Borrowed by the callback while it runs. */
struct mesh_done {
    bool ok;
    struct err err;        /* the error when `ok` is false */
    struct mesh_meta meta; /* of a receive: what the sender gave */
    size_t size;           /* bytes sent or received */
    uint32_t peer;         /* the peer's rank */
    uint32_t queue;
    uint64_t posted_ns; /* when mesh_send() or mesh_recv() was called */
    uint64_t begin_ns;  /* when the first byte was written to or read from the connection */
    uint64_t end_ns;    /* when the last byte was written or read */
    void *arg;
};
typedef void mesh_done_fn(const struct mesh_done *done);

/* Makes a mesh: checks the options and reads the certificates. It starts no thread before mesh_listen. */
int mesh_create(const struct mesh_options *options, struct mesh **mesh, struct err *err);

/* Listens on "host:port" (port 0 picks a free one; "[::]:0" works), or on the first free port of
 * "host:first-last", and writes the address with the real port to address[size]. Peers that connect early
 * wait for mesh_connect(). */
int mesh_listen(struct mesh *mesh, const char *host_port, char *address, size_t size, struct err *err);

/* Connects to all 'count' peers. Both ends call it; the lower rank opens the connections, or with
 * mesh_peer.turned the higher one, where the lower one cannot reach it (behind NAT). Blocks until every
 * pair is connected in both directions, deadline_ns (clock_mono_ns) passes, or *cancel becomes true (NULL
 * never does). Strings are copied. May be called once. Errors name the peer: ERR_TIMEOUT, ERR_NET, ERR_PEER
 * (a certificate of another cluster or identity), ERR_STALE (another epoch), ERR_CANCELLED. An unknown or
 * stale worker that connects is refused and does not end the wait for the right one; an ERR_TIMEOUT names the
 * last one refused. After success the mesh stops listening. */
int mesh_connect(struct mesh *mesh, const struct mesh_peer *peers, uint32_t count, uint64_t deadline_ns,
                 const atomic_bool *cancel, struct err *err);

/* Where a message goes, and how its end is reported. mesh_send_wait() and mesh_recv_wait() ignore done and
 * arg. */
struct mesh_post {
    uint32_t peer, queue; /* the other rank, and a queue below MESH_QUEUES */
    uint64_t deadline_ns;
    mesh_done_fn *done;
    void *arg; /* passed to done in struct mesh_done */
};

/* Sends size bytes (0 is allowed) to a peer's queue. 'data' belongs to the mesh until done is called.
 * deadline_ns is when the transport must have taken the last byte. Returns at once; -1 only when the peer is
 * unknown or has failed, or an argument is out of range, and then done is not called. Any thread may call it.
 */
int mesh_send(struct mesh *mesh, const struct mesh_post *post, const struct mesh_meta *meta, const void *data,
              size_t size, struct err *err);

/* Receives the next message of a peer's queue into dst, at most 'bound' bytes; a longer message is an error
 * and fails the peer. Otherwise as mesh_send(). */
int mesh_recv(struct mesh *mesh, const struct mesh_post *post, uint64_t tag, void *dst, size_t bound,
              struct err *err);

/* As mesh_send() and mesh_recv(), but these wait for the result, for threads that have nothing else to do.
 * 'done' may be NULL. */
int mesh_send_wait(struct mesh *mesh, const struct mesh_post *post, const struct mesh_meta *meta,
                   const void *data, size_t size, struct mesh_done *done, struct err *err);
int mesh_recv_wait(struct mesh *mesh, const struct mesh_post *post, uint64_t tag, void *dst, size_t bound,
                   struct mesh_done *done, struct err *err);

/* Measures the link to a peer through the same TLS connections and threads, while nothing else is sent.
 * *latency_s is half the median round trip of 16 small frames; *bytes_per_s is the rate of 'bytes' (0 means
 * 32 MiB) in one direction, as acknowledged by the peer. The peer's I/O thread answers without a call there.
 */
int mesh_measure(struct mesh *mesh, uint32_t peer, uint64_t bytes, uint64_t deadline_ns, double *latency_s,
                 double *bytes_per_s, struct err *err);

struct mesh_stats {
    uint64_t sent_bytes, received_bytes; /* bytes of messages without headers */
    uint64_t sent_messages, received_messages;
    uint64_t early_bytes;          /* bytes of messages that arrived before their receive was posted */
    uint64_t early_bytes_held_max; /* most early bytes that one queue held at one time */
    uint64_t send_wait_ns;         /* time during which the window held a message back */
};
/* Reads the counters of one peer, or the sums of all with MESH_RANK_NONE. */
int mesh_stats(struct mesh *mesh, uint32_t peer, struct mesh_stats *stats, struct err *err);

/* Closes all connections in an orderly way: sends everything queued, waits for the acknowledgement of the
 * last frame in each direction, and closes. Both ends call it. -1 with ERR_TIMEOUT or the first failed peer's
 * error; the mesh is closed in any case and only mesh_destroy() may follow. */
int mesh_close(struct mesh *mesh, uint64_t deadline_ns, struct err *err);

/* Stops at once: every operation under way ends with ERR_CANCELLED, and peers see a connection that closed
 * without a BYE. Any thread may call it, for example when a stop message arrives. */
void mesh_abort(struct mesh *mesh);

/* Aborts a mesh that is not closed, joins every thread (all callbacks have returned then) and frees it. NULL
 * is a no-op. */
void mesh_destroy(struct mesh *mesh);

#endif
