/* The simulator's inside: shared by simulate.c and timeline.c only. */
#ifndef MOTLEY_PLANNER_SIMULATE_SIM_PRIVATE_H
#define MOTLEY_PLANNER_SIMULATE_SIM_PRIVATE_H

#include "planner/simulate/wire.h"
#include "program/graph.h"

struct sim_node { /* one instruction, as the running loop touches it */
    double ready;
    uint32_t waits;   /* predecessors not yet done */
    uint32_t meeting; /* or UINT32_MAX */
};

struct sim_pair {
    struct sim_wire wire;
    uint32_t shared_count; /* of the wire's, those that somebody else uses too */
    struct {
        uint32_t resource;
        double bytes_per_s;
    } shared[SIM_SHARED_MAX];
};

struct sim_resource { /* something shared */
    double free_at;
    uint32_t holder; /* meeting that it was busy with last, or UINT32_MAX */
    uint32_t users;
};

struct sim_item { /* a meeting that waits for something shared */
    double start; /* no earlier than this */
    uint32_t meeting;
};

struct sim {
    struct plan_graph graph;
    struct sim_node *nodes; /* [total] */
    double *end;            /* [total]; before an instruction has run, its own seconds (sends: occupancy) */
    double *lead;           /* [total]: of a collective's member, how much earlier it must be ready */
    uint32_t *missing;      /* [meetings]: members not yet ready */
    double *meeting_ready, *meeting_start;
    uint32_t *pair_of; /* [meetings]: pair of a transfer; of a collective that moves tensors, its group's
                          first pair of the ring; UINT32_MAX: a collective of scalars */
    uint32_t *holder;  /* [meetings]: the meeting that made it wait for something shared, or UINT32_MAX */
    uint32_t *stack;
    struct sim_item *heap;
    uint32_t heap_count;
    /* graph pairs first, then the rings of the groups that move tensors */
    uint32_t
        transfer_count; /* meetings below are transfers, members[0] of each sends; the others collectives */
    uint32_t pair_count;
    struct graph_pair *ring; /* [pair_count − graph.pair_count] */
    uint32_t *group_first;   /* [groups + 1]: a group's pairs, from graph.pair_count on */
    struct sim_pair *pairs;  /* [pair_count] */
    struct sim_resource *resources;
    uint32_t resource_count, resource_capacity;
};

#endif
