/* The simulator's structs, shared by simulate.c and timeline.c only. */
#ifndef MOTLEY_PLANNER_SIMULATE_SIM_PRIVATE_H
#define MOTLEY_PLANNER_SIMULATE_SIM_PRIVATE_H

#include "common/arena.h"
#include "planner/simulate/wire.h"
#include "program/graph.h"

struct sim_node { /* the state of one instruction during a run */
    double ready;
    uint32_t waits;   /* number of instructions that this one waits for and that have not ended */
    uint32_t meeting; /* number of the transfer or collective (program/graph.h, meeting) that the instruction
                         belongs to, or UINT32_MAX */
};

struct sim_pair {
    struct sim_wire wire;
    uint32_t
        shared_count; /* how many of wire.shared (wires and network cards) other pairs of ranks use too */
    struct {
        uint32_t resource;
        double bytes_per_s;
    } shared[SIM_SHARED_MAX];
};

struct sim_resource { /* a wire or network card that several pairs of ranks share */
    double free_at;
    uint32_t holder; /* the transfer or collective that used the resource last, or UINT32_MAX */
};

struct sim_use { /* use of a wire or network card by a pair of ranks or by the whole ring of a group */
    uint64_t number;
    uint32_t user, pair, at;
};

struct sim_item { /* a transfer or collective that waits for a shared resource */
    double start; /* the earliest possible start, in seconds */
    uint32_t meeting;
};

struct sim {
    struct plan_graph graph;
    struct arena arena;     /* all arrays below */
    struct sim_node *nodes; /* [total]: one for each instruction of the graph */
    double *end;            /* [total]: the end of an instruction; before it has run, its duration (of a send:
                               seconds on the wire) */
    double *lead;      /* [total]; a collective's member must be ready this many seconds before the collective
                          begins */
    uint32_t *missing; /* [meetings]: how many instructions of the transfer or collective are not ready */
    double *meeting_ready, *meeting_start;
    /* [meetings]: index in `pairs` of a transfer's sender and receiver; for a collective that moves tensors,
     * the first pair of its group's ring; UINT32_MAX: a collective of scalars */
    uint32_t *pair_of;
    uint32_t *holder; /* [meetings]: the transfer or collective for whose shared resource this one waited, or
                         UINT32_MAX */
    uint32_t *stack;
    struct sim_item *heap;
    uint32_t heap_count;
    /* In `pairs` the ranks with transfers (the graph's pairs) come first, then neighbours in the rings of
     * groups that move tensors. */
    /* meetings below this index are transfers, whose first member is the sender; the others are collectives
     */
    uint32_t transfer_count;
    uint32_t pair_count;
    struct graph_pair *ring; /* [pair_count − graph.pair_count]: neighbours in the groups' rings */
    uint32_t *group_first;   /* [groups + 1]: index of a group's first pair, ≥ graph.pair_count */
    struct sim_pair *pairs;  /* [pair_count]: the graph's pairs, then those of `ring` */
    struct sim_use *uses;    /* scratch: every pair's wire and network cards */
    struct sim_resource *resources;
    uint32_t resource_count;
};

#endif
