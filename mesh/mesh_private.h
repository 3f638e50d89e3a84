/* The mesh's own data, in reading order: operation, queues of a peer, peer, mesh.
 *
 * Threads: of each peer one sender (tx.c) and one receiver (rx.c); of a mesh one keeper of
 * deadlines, one acceptor and its greeters (join.c). A peer's lock guards all its fields but the
 * connections, each of which is its thread's; it is never held over a system call, a copy of payload or a
 * callback. Lock order: mesh, then peer.
 *
 * An operation is in exactly one place: a send in its queue's list until its last chunk is written (then in
 * the pace filter, if there is one, until that has left); a receive in its queue's list, or attached to the
 * early message it waits for, or 'current' while its bytes arrive. The thread of its direction completes it,
 * exactly once.
 */
#ifndef MOTLEY_MESH_MESH_PRIVATE_H
#define MOTLEY_MESH_MESH_PRIVATE_H

#include <openssl/ssl.h>
#include <pthread.h>

#include "mesh/conn.h"
#include "mesh/mesh.h"
#include "mesh/pace.h"
#include "mesh/wire.h"

enum {
    MESH_SMALL_BYTES = 8192, /* a whole message of so much goes before the next chunk of a large one */
    MESH_SMALL_RUN = 16,     /* so many in a row at most */
    MESH_MESSAGE_COST = 256, /* what an early message counts beside its bytes */
    MESH_PONGS_MAX = 64
};

struct mesh_op {
    struct mesh_op *next;
    struct mesh_meta meta;
    const uint8_t *from; /* of a send */
    uint8_t *to;         /* of a receive */
    uint64_t size;       /* of a send: bytes; of a receive: bound, then bytes */
    uint64_t offset;     /* bytes under way or through */
    uint64_t sequence;
    uint32_t queue;
    uint64_t deadline_ns, posted_ns, ready_ns, begin_ns, end_ns;
    uint64_t blocked_ns; /* since when the window held it back; 0: it does not */
    mesh_done_fn *done;
    void *arg;
};

struct op_list {
    struct mesh_op *first, *last;
};

/* What we send on one queue. */
struct tx_queue {
    struct op_list ops;      /* the first may be partly sent */
    uint64_t next_sequence;  /* of the next mesh_send() */
    uint64_t posted;         /* receives the peer is known to have posted */
    uint64_t sent, consumed; /* bytes with cost: begun by us, matched by the peer as far as known */
};

/* A message that came before its receive. */
struct early {
    struct early *next;
    struct mesh_meta meta;
    uint64_t size, offset, begin_ns, end_ns;
    struct mesh_op *op; /* a receive posted while it was arriving */
    uint8_t bytes[];
};

/* What we receive on one queue. */
struct rx_queue {
    struct op_list ops;               /* posted, nothing arrived */
    struct mesh_op *current;          /* arriving into its destination */
    struct early *early, *early_last; /* in order; the last may be arriving */
    struct early *arriving;           /* the last, while it arrives */
    uint64_t posted, begun;           /* receives posted; messages begun to arrive */
    uint64_t held;                    /* bytes with cost of unmatched early messages */
    uint64_t consumed, told_consumed; /* matched, with cost; as last told */
    bool tell;                        /* a POSTED frame is due */
};

struct mesh_peer_state {
    struct mesh *mesh;
    uint32_t rank;
    char *address, *identity;
    char name[128]; /* "rank 1 (worker:right/cpu0)" */
    struct mesh_link link;
    struct mesh_conn *out, *in; /* set before the threads start, closed after they ended */
    pthread_t tx_thread, rx_thread;
    bool tx_made, rx_made;

    pthread_mutex_t lock;
    pthread_cond_t work;    /* the sender waits */
    pthread_cond_t changed; /* users wait: measure, close */
    struct err failure;     /* code ERR_NONE: alive */
    struct tx_queue tx[MESH_QUEUES];
    struct rx_queue rx[MESH_QUEUES];
    uint64_t tx_busy;     /* bit q: tx[q].ops is not empty */
    uint64_t tell;        /* bit q: rx[q].tell */
    struct op_list ready; /* receives whose early message is complete, for the sender's thread to copy */
    struct early *ready_early, *ready_early_last; /* beside it, in the same order */
    uint32_t turn, small_run;
    uint64_t pongs[MESH_PONGS_MAX];
    uint32_t pong_count;
    /* measuring */
    bool ping_due, measuring;
    uint64_t ping_sequence, pong_seen, probe_left;
    /* goodbye */
    bool closing, bye_sent, bye_acked, bye_received, bye_ack_due, bye_ack_sent, tx_over, rx_over;
    struct mesh_stats stats;
};

struct greeting {
    struct mesh *mesh;
    pthread_t thread;
    int fd;
    uint64_t begin_ns;
    atomic_bool cancel;
    bool introduced; /* it has shaken hands and said who it is */
    bool used, over;
};

enum { MESH_GREETINGS = 32, MESH_HURRIED = 8 };

struct mesh {
    struct mesh_options options;
    SSL_CTX *server, *client;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct mesh_peer_state **peers; /* by rank, ascending; constant once connect_begun */
    uint32_t peer_count;
    bool connect_begun, stopping, closed;
    char last_refusal[256]; /* why the last stranger was sent away */
    struct greeting greetings[MESH_GREETINGS];
    int listener, wake; /* wake: eventfd that ends the acceptor */
    pthread_t acceptor, keeper;
    bool acceptor_made, keeper_made;

    pthread_mutex_t keeper_lock;
    pthread_cond_t keeper_work;
    uint64_t keeper_next_ns; /* earliest deadline known */
    bool keeper_stop;
};

/* What a message counts against its queue's window. */
static inline uint64_t mesh_cost(uint64_t size)
{
    return size + MESH_MESSAGE_COST;
}

/* Put behind the last. */
void op_list_append(struct op_list *list, struct mesh_op *op);
/* Take the first out; NULL: empty. */
struct mesh_op *op_list_take(struct op_list *list);

/* Make the peer failed with this error if it is not already; wakes everything. No lock held. */
void mesh_peer_fail(struct mesh_peer_state *peer, const struct err *why);
/* The same with the peer's lock held. */
void mesh_peer_fail_locked(struct mesh_peer_state *peer, const struct err *why);

/* Call done and free the operation. why NULL: success. No lock held. */
void mesh_op_finish(struct mesh_peer_state *peer, struct mesh_op *op, const struct err *why);

/* Completes receive 'op' with a whole early message, which is off its queue and freed here. The peer's lock
 * is held on entry and exit, not while the bytes are copied and the user is told. */
void mesh_op_take_early(struct mesh_peer_state *peer, struct mesh_op *op, struct early *early);

/* Tell the keeper of a deadline. No lock held. */
void mesh_keeper_note(struct mesh *mesh, uint64_t deadline_ns);

/* Note that the queue's posted and consumed counts should be told if they matter to the sender. Lock held. */
void mesh_rx_tell(struct mesh_peer_state *peer, uint32_t queue, uint64_t bound);

/* Threads. arg: the peer. */
void *mesh_tx_run(void *arg);
void *mesh_rx_run(void *arg);

/* The peer of that rank, or NULL. */
struct mesh_peer_state *mesh_peer_find(const struct mesh *mesh, uint32_t rank);

/* Stop listening and greeting; joins those threads. */
void mesh_join_stop(struct mesh *mesh);

#endif
