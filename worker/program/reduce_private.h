/* Declarations that reduce.c, reduce_tree.c, reduce_ring.c and reduce_values.c share. */
#ifndef MOTLEY_WORKER_PROGRAM_REDUCE_PRIVATE_H
#define MOTLEY_WORKER_PROGRAM_REDUCE_PRIVATE_H

#include "common/clock.h"
#include "worker/program/ops_private.h"

/* A member of the group that this rank exchanges messages with, and the mesh queue that the two use for the
 * group. */
struct neighbour {
    uint32_t rank, queue;
};

/* A collective over the group's binary tree, or over a star. */
struct reduce_tree {
    bool is_root; /* this rank has no parent */
    struct neighbour parent, *children;
    uint32_t child_count;
    uint32_t own_at; /* number of children whose contributions are added before this rank's own */
    bool up, down;   /* up: contributions are sent to the root; down: the result is sent from the root */
    uint8_t *sum;    /* in ops->collectives; may be `own` of the collective */
    uint32_t next;   /* the contribution to be added next, 0 .. child_count */
    bool arrived;    /* `incoming` of the collective holds that contribution */
    uint32_t sent;   /* number of children that have the result */
    struct exec_item advance, finish;
};

/* An ALL_REDUCE of parameters round a ring. */
struct reduce_ring {
    uint32_t count, position; /* number of members; this rank's position among them */
    struct neighbour next, previous;
    uint32_t step, open; /* step: of 2(count - 1); open: transfers of that step under way */
    struct exec_item sent, received;
};

enum reduce_shape { REDUCE_TREE, REDUCE_RING };

struct reduce {
    struct ops *ops;
    uint32_t number; /* number of the instruction */
    const struct instr *instr;
    uint8_t kind;            /* enum slot_kind */
    int32_t slot;            /* the slot that is reduced: slot_in, or slot_out without one */
    size_t size;             /* bytes of a contribution */
    uint8_t *own, *incoming; /* in ops->collectives: this rank's contribution, and the one received */
    struct exec_item start;
    enum reduce_shape shape;
    union {
        struct reduce_tree tree;
        struct reduce_ring ring;
    };
};

static inline struct exec *reduce_executor(const struct reduce *reduce)
{
    return reduce->ops->programs[reduce->ops->kind].exec;
}

/* How a message of the collective is posted to a neighbour. */
static inline struct mesh_post reduce_post(struct reduce *reduce, struct neighbour peer, mesh_done_fn *done)
{
    return (struct mesh_post){.peer = peer.rank,
                              .queue = peer.queue,
                              .deadline_ns = clock_mono_ns() + reduce->ops->wait_ns,
                              .done = done,
                              .arg = reduce};
}

/* reduce_values.c: what a collective reduces. */
/* Whether the slot holds parameters or their gradients. */
bool reduce_has_parameters(const struct reduce *reduce);
/* Bytes of a contribution. */
size_t reduce_value_bytes(const struct reduce *reduce);
/* Copies this rank's contribution to reduce->own. */
int reduce_read_own(struct reduce *reduce, struct err *err);
/* Adds a contribution to `sum`, or copies it there if it is the first. */
void reduce_add(const struct reduce *reduce, uint8_t *sum, const uint8_t *value, bool first);
/* Copies a result to its slot. */
int reduce_write_result(struct reduce *reduce, const uint8_t *result, struct err *err);
/* Whether a message arrived with the expected number of bytes. If not, the instruction fails. */
bool reduce_is_complete(const struct mesh_done *done, size_t bytes);

/* reduce_tree.c, reduce_ring.c: begin the collective once this rank's contribution is in reduce->own (a rank
 * that only receives has none). _init sets the items that are posted to the executor. */
void reduce_tree_init(struct reduce *reduce);
int reduce_tree_start(struct reduce *reduce, struct err *err);
int reduce_tree_receive_result(struct reduce *reduce, struct err *err);
void reduce_ring_init(struct reduce *reduce);
int reduce_ring_start(struct reduce *reduce, struct err *err);
/* Bytes of the largest part that goes round the ring. */
size_t reduce_ring_part_bytes(const struct reduce *reduce);

#endif
