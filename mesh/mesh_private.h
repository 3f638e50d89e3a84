/* The mesh's data, in reading order: operation, queues of a peer, peer, mesh.
 *
 * Threads: each peer has one sender (tx.c) and one receiver (rx.c); a mesh has one thread that watches
 * deadlines, one acceptor, and greeters (join.c). A peer's lock guards all its fields except the connections,
 * each of which belongs to its thread. The lock is never held over a system call, a copy of payload or a
 * callback. Lock order: mesh, then peer.
 *
 * An operation is in exactly one place. A send is in its queue's list until its last chunk is written, and
 * then in the emulated link, if there is one, until it has left. A receive is in its queue's list, or
 * attached to the early message that it waits for, or `current` while its bytes arrive. The thread of its
 * direction completes it exactly once.
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
    MESH_SMALL_BYTES =
        8192,            /* a whole message of at most this size goes before the next chunk of a large one */
    MESH_SMALL_RUN = 16, /* at most this many small messages go in a row */
    MESH_PONGS_MAX = 64
};

struct mesh_op {
    struct mesh_op *next;
    struct mesh_meta meta;
    const uint8_t *from; /* source of a send */
    uint8_t *to;         /* destination of a receive */
    uint64_t size;       /* bytes of a send; of a receive the bound, and the bytes once they are known */
    uint64_t offset;     /* bytes handed to, or read from, the connection so far */
    uint64_t sequence;
    uint32_t queue;
    uint64_t deadline_ns, posted_ns, ready_ns, begin_ns, end_ns;
    uint64_t blocked_ns; /* since when the window has held the send back; 0 when it has not */
    mesh_done_fn *done;
    void *arg;
};

struct op_list {
    struct mesh_op *first, *last;
};

/* The sending side of one queue. */
struct tx_queue {
    struct op_list ops;      /* waiting sends; the first may be partly sent */
    uint64_t next_sequence;  /* sequence number of the next mesh_send() */
    uint64_t posted;         /* number of receives that the peer has announced as posted */
    uint64_t sent, consumed; /* bytes of the messages begun, and of those that the peer has announced as
                                matched, with MESH_MESSAGE_COST for each message */
};

/* A message that arrived, or is arriving, before its receive was posted. */
struct early {
    struct early *next;
    struct mesh_meta meta;
    uint64_t size, offset, begin_ns, end_ns;
    struct mesh_op *op; /* the receive that was posted while the message was arriving, or NULL */
    uint8_t bytes[];
};

/* The receiving side of one queue. */
struct rx_queue {
    struct op_list ops;               /* posted receives for which nothing has arrived */
    struct mesh_op *current;          /* the receive whose bytes are arriving at their destination */
    struct early *early, *early_last; /* early messages in order; the last may still be arriving */
    struct early *arriving;           /* the last early message while it is arriving */
    uint64_t posted, begun;           /* number of receives posted, and of messages that began to arrive */
    uint64_t held;                    /* bytes of unmatched early messages, with MESH_MESSAGE_COST for each */
    uint64_t consumed, announced_consumed; /* bytes of matched messages, with MESH_MESSAGE_COST for each: now,
                                              and as last announced to the peer */
    bool announce;                         /* a POSTED frame is due */
};

struct mesh_peer_state {
    struct mesh *mesh;
    uint32_t rank;
    char *address, *identity;
    char name[128]; /* "rank 1 (worker:right/cpu0)" */
    struct mesh_link link;
    bool dials;                 /* the peer opens the connections, not we */
    struct mesh_conn *out, *in; /* set before the threads start, closed after they ended */
    pthread_t tx_thread, rx_thread;
    bool tx_made, rx_made;

    pthread_mutex_t lock;
    pthread_cond_t work;    /* wakes the sender */
    pthread_cond_t changed; /* wakes threads in mesh_measure() and mesh_close() */
    struct err failure;     /* has the code ERR_NONE while the peer works */
    struct tx_queue tx[MESH_QUEUES];
    struct rx_queue rx[MESH_QUEUES];
    uint64_t tx_busy;     /* bit q is set while tx[q].ops is not empty */
    uint64_t announce;    /* bit q is set while rx[q].announce is true */
    struct op_list ready; /* receives whose early message is complete; the sender's thread copies the bytes */
    struct early *ready_early,
        *ready_early_last; /* the early messages for the receives in `ready`, in order */
    uint32_t turn, small_run;
    uint64_t pongs[MESH_PONGS_MAX];
    uint32_t pong_count;
    /* state of mesh_measure() */
    bool ping_due, measuring;
    uint64_t ping_sequence, pong_seen, probe_left;
    /* state of the orderly close (mesh_close()) */
    bool closing, bye_sent, bye_acked, bye_received, bye_ack_due, bye_ack_sent, tx_over, rx_over;
    struct mesh_stats stats;
};

struct greeting {
    struct mesh *mesh;
    pthread_t thread;
    int fd;
    uint64_t begin_ns;
    atomic_bool cancel;
    bool has_hello; /* the handshake is complete and the hello was received */
    bool used, over;
};

enum { MESH_GREETINGS = 32, MESH_GREETINGS_CANCELLED = 8 };

struct mesh {
    struct mesh_options options;
    SSL_CTX *server, *client;

    pthread_mutex_t lock;
    pthread_cond_t changed;
    struct mesh_peer_state **peers; /* ascending by rank; constant once connect_begun is set */
    uint32_t peer_count;
    bool connect_begun, stopping, closed;
    char last_refusal[256]; /* why the last unknown peer was refused */
    struct greeting greetings[MESH_GREETINGS];
    int listener, wake; /* wake is an eventfd that ends the acceptor */
    pthread_t acceptor, watchdog;
    bool acceptor_made, watchdog_made;

    pthread_mutex_t watchdog_lock;
    pthread_cond_t watchdog_work;
    uint64_t watchdog_next_ns; /* earliest deadline of any operation */
    bool watchdog_stop;
};

/* Bytes that a message counts against its queue's window. */
static inline uint64_t mesh_cost(uint64_t size)
{
    return size + MESH_MESSAGE_COST;
}

/* Appends an operation to a list. */
void op_list_append(struct op_list *list, struct mesh_op *op);
/* Removes and returns the first operation; NULL when the list is empty. */
struct mesh_op *op_list_take(struct op_list *list);

/* Marks the peer as failed with this error, if it has not failed before, and wakes all its threads. Call it
 * without the peer's lock. */
void mesh_peer_fail(struct mesh_peer_state *peer, const struct err *why);
/* As mesh_peer_fail, with the peer's lock held. */
void mesh_peer_fail_locked(struct mesh_peer_state *peer, const struct err *why);

/* Calls done and frees the operation. `why` is NULL for success. Call it without the peer's lock. */
void mesh_op_finish(struct mesh_peer_state *peer, struct mesh_op *op, const struct err *why);

/* Completes receive 'op' with a whole early message, which was removed from its queue and is freed. The
 * peer's lock is held on entry and exit, and released while bytes are copied and the callback runs. */
void mesh_op_take_early(struct mesh_peer_state *peer, struct mesh_op *op, struct early *early);

/* Tells the thread that watches deadlines of a new one. Call it without the peer's lock. */
void mesh_watchdog_note(struct mesh *mesh, uint64_t deadline_ns);

/* Schedules a POSTED frame for the queue if the sender needs its counts. `bound` is the bound of a receive
 * just posted, or 0. The peer's lock is held. */
void mesh_rx_announce(struct mesh_peer_state *peer, uint32_t queue, uint64_t bound);

/* The functions of a peer's two threads. arg is the peer. */
void *mesh_tx_run(void *arg);
void *mesh_rx_run(void *arg);

/* Returns the peer of that rank, or NULL. */
struct mesh_peer_state *mesh_peer_find(const struct mesh *mesh, uint32_t rank);

/* Stops listening and greeting, and joins those threads. */
void mesh_join_stop(struct mesh *mesh);

#endif
