/* The mesh: tensors between the workers of one run, over mutual TLS 1.3.
 *
 * A mesh belongs to one rank of one run epoch. mesh_listen() first (so that the address can be announced),
 * then mesh_connect() with every peer the program names; each pair has two TLS connections, one per
 * direction, each with its own I/O thread, so the compute thread never waits for a socket. Both ends'
 * certificates must come from the cluster's CA and carry exactly the identity announced for that rank.
 *
 * Queues. Each ordered pair of ranks has MESH_QUEUES queues. On one queue the n-th send is received by the
 * n-th receive, first come first served; tags are compared (a difference is a bug in the program:
 * ERR_INTERNAL naming both). Queues do not wait for each other: messages are cut into chunks of at most
 * MESH_CHUNK_BYTES, ready queues take turns, and a message that fits in one small frame goes before the next
 * chunk of a large one.
 *
 * Memory. A receive names its destination before data arrives and the bytes land there. A message whose
 * receive is not posted yet may be sent early while it fits in the queue's window
 * (mesh_options.window_bytes); beyond that the sender waits until the receive is posted. Nothing is
 * unbounded: a size above the posted bound, a frame above MESH_CHUNK_BYTES, a message above message_bytes_max
 * are refused before memory is touched.
 *
 * Completion. Every send and receive ends exactly once, by its callback: with success, or with an error that
 * names the peer ("rank 1 (worker:right/cpu0): …"). Until then the buffer belongs to the mesh. Callbacks run
 * on I/O threads, must not block, and must not call mesh_close() or mesh_destroy(); posting to the owner's
 * event queue, and mesh_send() or mesh_recv(), are fine. Each operation has a deadline; when one expires, or
 * a connection breaks, the *peer* has failed: all operations with it end with that error, and later ones are
 * refused with it.
 *
 * Frames of another run epoch are refused: at connection (ERR_STALE on both sides) and each frame again.
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
    MESH_CHUNK_BYTES = 128 << 10, /* largest frame, header included */
    MESH_PEERS_MAX = 4096,
    MESH_DIMS_MAX = 4,
    MESH_RANK_NONE = UINT32_MAX
};

/* An emulated link, one direction: what this rank sends to a peer takes (header + bytes) / bytes_per_s on the
 * wire, one frame after the other whichever queue it is of, and arrives latency_s later. Zeros: not emulated.
 * A send is complete when its last byte has left at that rate. */
struct mesh_link {
    double bytes_per_s;
    double latency_s;
};

struct mesh_options {
    uint32_t rank;  /* of this worker */
    uint64_t epoch; /* run epoch (fencing): both ends must agree */
    uint64_t run;   /* run number: both ends must agree */
    /* PEM files: own certificate (with its identity as CN/SAN), key, the cluster's CA */
    const char *cert_file, *key_file, *ca_file;
    uint64_t window_bytes;        /* early bytes per queue and peer without a posted receive; 0: 16 MiB */
    uint64_t message_bytes_max;   /* 0: 4 GiB */
    uint32_t socket_buffer_bytes; /* SO_SNDBUF/SO_RCVBUF; 0: by the round trip found, 256 KiB at least. Larger
                                     helps rate * round trip, and delays small frames behind large ones */
    uint64_t peer_silence_ns;     /* TCP gives a silent host up after so long; 0: 30 s */
};

struct mesh_peer {
    uint32_t rank;
    const char *address;   /* "host:port", "[v6]:port" */
    const char *identity;  /* exactly what its certificate must say: "worker:right/cpu0" */
    struct mesh_link link; /* towards that peer */
};

/* What travels with a message and is given to the receiver. */
struct mesh_meta {
    uint64_t tag;  /* mesh_tag(); must equal the receive's */
    uint8_t dtype; /* the engine's number for it; 0: bytes */
    uint8_t rank;  /* dimensions used in shape */
    uint32_t shape[MESH_DIMS_MAX];
};

/* kind: what it is (activation, gradient, counts, scalars…), step modulo 2^16, layer, micro-batch. */
static inline uint64_t mesh_tag(uint8_t kind, uint16_t step, uint16_t layer, uint32_t micro_batch)
{
    return (uint64_t)kind << 56 | (uint64_t)step << 40 | (uint64_t)layer << 24 | (micro_batch & 0xffffff);
}

/* How an operation ended. Times are clock_mono_ns(). Borrowed by the callback for its duration. */
struct mesh_done {
    bool ok;
    struct err err;        /* when not ok */
    struct mesh_meta meta; /* of a receive: as the sender gave it */
    size_t size;           /* bytes sent or received */
    uint32_t peer;         /* rank */
    uint32_t queue;
    uint64_t posted_ns; /* mesh_send()/mesh_recv() was called */
    uint64_t begin_ns;  /* first byte handed to, or taken from, the connection */
    uint64_t end_ns;    /* last byte */
    void *arg;
};
typedef void mesh_done_fn(const struct mesh_done *done);

/* Make a mesh; checks the options, reads the certificates. No threads yet. */
int mesh_create(const struct mesh_options *options, struct mesh **mesh, struct err *err);

/* Listen on "host:port" (port 0: any; "[::]:0" works) and write the address with the real port to
 * address[size]. Early peers are made to wait for mesh_connect(). */
int mesh_listen(struct mesh *mesh, const char *host_port, char *address, size_t size, struct err *err);

/* Connect with all 'count' peers; both ends call it, the lower rank dials. Blocks until every pair is up in
 * both directions, or until deadline_ns (clock_mono_ns), or *cancel becomes true (NULL: never). Strings are
 * copied. Once only. Errors name the peer: ERR_TIMEOUT, ERR_NET, ERR_PEER (another cluster's certificate,
 * another identity), ERR_STALE (another epoch), ERR_CANCELLED. A stranger, or a stale worker, that dials us
 * is sent away and does not end our waiting for the right one; a ERR_TIMEOUT tells of the last such. Once
 * everybody is here the mesh listens no more. */
int mesh_connect(struct mesh *mesh, const struct mesh_peer *peers, uint32_t count, uint64_t deadline_ns,
                 const atomic_bool *cancel, struct err *err);

/* Send size bytes (0 is fine) to a peer's queue. 'data' belongs to the mesh until done is called.
 * deadline_ns: the moment by which the last byte must have been taken by the transport. Returns at once; -1
 * only when the peer is unknown or has failed already, or an argument is out of range (done is not called
 * then). Any thread. */
int mesh_send(struct mesh *mesh, uint32_t peer, uint32_t queue, const struct mesh_meta *meta,
              const void *data, size_t size, uint64_t deadline_ns, mesh_done_fn *done, void *arg,
              struct err *err);

/* Receive the next message of a peer's queue into dst, at most 'bound' bytes (a longer one is an error and
 * fails the peer). Same rules as mesh_send(). */
int mesh_recv(struct mesh *mesh, uint32_t peer, uint32_t queue, uint64_t tag, void *dst, size_t bound,
              uint64_t deadline_ns, mesh_done_fn *done, void *arg, struct err *err);

/* The same, and wait: for threads that have nothing else to do. *done may be NULL. */
int mesh_send_wait(struct mesh *mesh, uint32_t peer, uint32_t queue, const struct mesh_meta *meta,
                   const void *data, size_t size, uint64_t deadline_ns, struct mesh_done *done,
                   struct err *err);
int mesh_recv_wait(struct mesh *mesh, uint32_t peer, uint32_t queue, uint64_t tag, void *dst, size_t bound,
                   uint64_t deadline_ns, struct mesh_done *done, struct err *err);

/* Measure the link to a peer through the same TLS and the same threads, while nothing else is sent: half the
 * median round trip of 16 small frames, and bytes/s of 'bytes' (0: 32 MiB) one way, as acknowledged by the
 * peer (its I/O thread answers; nobody there needs to call anything). */
int mesh_measure(struct mesh *mesh, uint32_t peer, uint64_t bytes, uint64_t deadline_ns, double *latency_s,
                 double *bytes_per_s, struct err *err);

struct mesh_stats {
    uint64_t sent_bytes, received_bytes; /* of messages, headers not counted */
    uint64_t sent_messages, received_messages;
    uint64_t early_bytes;          /* of messages that arrived before their receive was posted */
    uint64_t early_bytes_held_max; /* most of them held at one time */
    uint64_t send_wait_ns;         /* time with a message ready that the window held back */
};
/* Counters of one peer, or of all with MESH_RANK_NONE. */
int mesh_stats(struct mesh *mesh, uint32_t peer, struct mesh_stats *stats, struct err *err);

/* Say goodbye to all: everything queued is sent, the last frame of each direction is acknowledged, then the
 * connections close. Both ends call it. ERR_TIMEOUT or the first failed peer's error; the mesh is closed
 * either way and only mesh_destroy() is left. */
int mesh_close(struct mesh *mesh, uint64_t deadline_ns, struct err *err);

/* Stop at once: every operation under way ends with ERR_CANCELLED, peers see "closed without goodbye". Any
 * thread, for example when a stop message arrives. */
void mesh_abort(struct mesh *mesh);

/* Aborts if it is not closed, joins every thread (all callbacks have returned), frees. NULL is a no-op. */
void mesh_destroy(struct mesh *mesh);

#endif
