/* State sharded over a group: what data, hybrid and server share. For this room only; pure.
 *
 * Full fine-tuning keeps 16 or 18 bytes a parameter (memory.h). Sharded, each member keeps its share of them,
 * gathers a block's weights before it computes it and gives its gradients to the members that keep them
 * (ALL_GATHER, REDUCE_SCATTER; with a server PULL, PUSH). Members run one block over all their micro-batches
 * before the next (layered accumulation: Cephalo), so that a block is gathered once a pass, however many
 * micro-batches there are. Times: docs/PLANNER.md, Time (Cephalo layer time; ring with uneven shards). */
#ifndef MOTLEY_PLANNER_SHARDED_SHARDED_H
#define MOTLEY_PLANNER_SHARDED_SHARDED_H

#include "planner/search/placement.h"

/* --- which rows, exactly --- */

/* One way for a member to take `total` rows: `count` micro-batches of `rows`. */
struct split_option {
    double seconds;
    int64_t room; /* bytes left for state */
    uint32_t total, rows, count;
    bool recompute;
};

struct split_member {
    uint32_t option_count;
    struct split_option *options; /* by total, rising; owned by the caller; the solver may reorder equals */
};

/* One option for each member, Σ total = batch, Σ room ≥ state: the least largest seconds, and among those the
 * most room. Exact. Fills chosen[count] and *seconds; adds to *cells (may be NULL) how many cells of its
 * table it looked at. Returns 1, 0 when there is none, −1 ERR_NOMEM. */
int split_solve(const struct split_member *members, uint32_t count, uint32_t batch, int64_t state,
                struct split_option *chosen, double *seconds, uint64_t *cells, struct err *err);

/* --- which shards --- */

/* A group in its ring's order: what each can keep, how fast its link of the ring is (the slower of the two,
 * where weights come in and gradients go out), what the optimiser takes for all of the state. */
struct share_member {
    double room;        /* of the state that fits, 0..; 1: all of it */
    double bytes_per_s; /* of the links that matter; may be INFINITY */
    double step_s;
};
enum share_aim {
    SHARE_FOR_LINKS, /* least max_i (1 − r_i)/β_i, what is left spread evenly */
    SHARE_FOR_STEP,  /* least max_i r_i·step_i */
    /* the same, with the ring's time a quarter, half, three quarters of the way from the first to the second
     */
    SHARE_NEAR_LINKS,
    SHARE_HALF_WAY,
    SHARE_NEAR_STEP,
    SHARE_AIMS
};
/* Shares that sum to 1, none beyond its room. Returns false when the rooms together do not hold the state. */
bool share_state(const struct share_member *members, uint32_t count, enum share_aim aim, double *shares);
/* Least max_i (1 − r_i)/β_i when room is no matter, seconds a byte: no share makes a ring faster. */
double share_level_least(const struct share_member *members, uint32_t count);

/* --- what is gathered --- */

/* Bytes of the places where weights come to and whole gradients wait. A tied embedding is gathered once a
 * step, for both of its uses; otherwise embedding and head take turns in one place. */
struct sharded_buffers {
    uint32_t layers;  /* places for gathered layers */
    uint32_t wholes;  /* places for whole gradients of layers; 0: none */
    int32_t ring_end; /* blocks [1, ring_end) take turns in the layers' places */
    uint64_t layer_weights, edge_weights, layer_gradients, edge_gradients; /* of one place */
    uint64_t total;
};
/* layers: places for gathered layers, 2 or more, cut to what there is. */
struct sharded_buffers sharded_buffers(const struct problem *problem, uint32_t layers);
/* Layers, the head among them when it takes turns with them, that have a place. */
static inline uint32_t sharded_ring(const struct sharded_buffers *buffers)
{
    return (uint32_t)buffers->ring_end - 1;
}

/* What a member with these micro-batches must hold, without state (share 0) or with its share. */
void sharded_need(const struct problem *problem, const struct sharded_buffers *buffers, uint32_t rows,
                  uint32_t count, bool recompute, double share, struct memory_need *need);
/* What the busiest member computes, mean over steps: rows go to members in order, from `first` round to the
 * one before it. */
double sharded_busiest(const struct problem *problem, const struct place_member *members, uint32_t count,
                       uint32_t first);
/* Bytes of what is shared out: the state, or the frozen base of LoRA. */
double sharded_state_bytes(const struct problem *problem);

/* --- data with sharded state (sharded_plan.c) --- */

/* Proposes uneven rows × uneven shards into the list; plans are emitted by layered_emit. Returns −1 on
 * ERR_NOMEM only. */
int sharded_propose(const struct problem *problem, struct choice_list *list, struct err *err);

/* --- server (place_server.c) --- */

/* What the holder must hold: all of the state, a place for what comes in, and its own micro-batches if count
 * is not 0. */
void server_holder_need(const struct problem *problem, uint32_t rows, uint32_t count, bool recompute,
                        struct memory_need *need);
/* LoRA: what a worker must hold: the frozen base, adapters and gradients that come and go at once, one
 * micro-batch at a time; and where they come to and wait. */
void server_worker_need(const struct problem *problem, uint32_t rows, uint32_t count, bool recompute,
                        struct memory_need *need);
struct sharded_buffers server_buffers(const struct problem *problem);

/* --- programs by layers (layered.c) --- */

/* The plan of a data choice with gathered_layers > 0, or of a server choice of full fine-tuning, whose first
 * member is the holder. NULL with ERR_NOFIT, ERR_NOMEM. */
struct plan *layered_emit(const struct problem *problem, const struct place_choice *choice, bool programs,
                          struct err *err);
/* The choice that such a plan came from; choice_fini. ERR_INVALID, ERR_NOMEM. */
int layered_from_plan(const struct problem *problem, const struct plan *plan, struct place_choice *choice,
                      struct err *err);

#endif
