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
    bool up;       /* true for ALL_REDUCE: contributions go up to the root before the result comes down */
    uint32_t next; /* the child whose contribution is added next */
    bool arrived;  /* reduce->incoming holds the contribution of child `next` */
    uint32_t sent; /* number of children that have the result */
    struct exec_item advance, finish;
};

/* An ALL_REDUCE of boundary tensors round a ring. */
struct reduce_ring {
    uint32_t count, position; /* number of members; this rank's position among them */
    struct neighbour next, previous;
    uint32_t step, open; /* step: number of the present step, of 2(count - 1); open: how many of its transfers
                            are under way */
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
    uint8_t *own, *incoming; /* this rank's contribution, to which those received in `incoming` are added */
    struct exec_item start;
    /* of a boundary tensor: the copy of this rank's partial sum from the device to `own` */
    struct courier_job published;
    struct transfer arrived; /* the sum of a boundary tensor, which the instruction that reads the slot copies
                                to the device */
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

/* Returns how to post a message of the collective to a neighbour. */
static inline struct mesh_post reduce_post(struct reduce *reduce, struct neighbour peer, mesh_done_fn *done)
{
    return (struct mesh_post){.peer = peer.rank,
                              .queue = peer.queue,
                              .deadline_ns = clock_mono_ns() + reduce->ops->wait_ns,
                              .done = done,
                              .arg = reduce};
}

/* halves.c. Whether the collective reduces or broadcasts boundary tensors, which lie in the host memory of
 * the slot's buffer (cell). */
bool halves_reduces(const struct reduce *reduce);
/* Begins the collective when this rank's partial sum is in the cell's host memory; fails as reduce_begin
 * does. */
int halves_begin(struct reduce *reduce, struct err *err);
/* Marks the result, which is in the cell's host memory, as received, so that the instruction that reads the
 * slot copies it to the device. */
void halves_arrived(struct reduce *reduce);

/* reduce_values.c: what a collective reduces. */
/* Returns the bytes of a contribution. */
size_t reduce_value_bytes(const struct reduce *reduce);
/* Copies this rank's contribution to reduce->own. */
int reduce_read_own(struct reduce *reduce, struct err *err);
/* Adds f32 values. */
void reduce_sum(uint8_t *sum, const uint8_t *more, size_t bytes);
/* Adds a received contribution to this rank's, in reduce->own. */
void reduce_add(struct reduce *reduce, const uint8_t *value);
/* Copies the result, which is in reduce->own, to the slot. */
void reduce_write_result(struct reduce *reduce);
/* Whether a message arrived with the expected number of bytes. If not, the instruction fails. */
bool reduce_is_complete(const struct mesh_done *done, size_t bytes);

/* reduce_tree.c, reduce_ring.c: begin the collective once this rank's contribution is in reduce->own (a rank
 * that only receives has none). _init sets the items that are posted to the executor. */
void reduce_tree_init(struct reduce *reduce);
int reduce_tree_start(struct reduce *reduce, struct err *err);
int reduce_tree_receive_result(struct reduce *reduce, struct err *err);
void reduce_ring_init(struct reduce *reduce);
int reduce_ring_start(struct reduce *reduce, struct err *err);

#endif
