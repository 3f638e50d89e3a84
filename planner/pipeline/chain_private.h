/* Shared by chain.c (plan, memory, slots) and chain_program.c (instructions); not for others. */
#ifndef MOTLEY_PLANNER_PIPELINE_CHAIN_PRIVATE_H
#define MOTLEY_PLANNER_PIPELINE_CHAIN_PRIVATE_H

#include "planner/pipeline/chain.h"
#include "planner/pipeline/pipe_order.h"

/* Slot numbers of one stage, PLAN_NONE where it has none. */
struct chain_stage {
    int32_t act_in, act_out, grad_in, grad_out, saved;
    uint32_t ring_act, ring_grad; /* depths of act_in and grad_in */
    uint32_t live;                /* micro-batches whose saved values are kept at once */
    uint64_t saved_bytes;         /* of one of them */
};

/* Slot numbers of one rank. */
struct chain_rank {
    int32_t scalars, norm, cache, token, barrier, tied_gradients, tied_parameters;
};

struct chain {
    const struct problem *problem;
    const struct place_choice *choice;
    struct plan *plan;
    uint32_t ranks, stages, micro_batches;
    uint32_t *windows, *delays;              /* [ranks] */
    struct chain_stage *stage;               /* [stages] */
    struct chain_rank slots;                 /* of the rank being made */
    struct pipe_order train, forwards, once; /* a step; evaluation; one micro-batch's forward */
    int32_t tied_group;                      /* owner and copy of a trained tied embedding; PLAN_NONE */
    int32_t *memory;                         /* of histories */
    struct err *err;
};

/* Buffers that a stage sends from. */
static inline uint32_t chain_ring_out(uint32_t micro_batches)
{
    return micro_batches < 2 ? micro_batches : 2;
}

/* How many arrivals of each stage wait at most for their turn in the lists themselves, because the sender
 * sends in another order than the receiver computes in; one and more. act, grad: [stages]. ERR_NOMEM. */
int chain_waiting(const struct chain *c, uint32_t *act, uint32_t *grad);

/* Fills the programs of rank r; its slots are there. ERR_NOMEM, ERR_TOO_BIG. */
int chain_programs(struct chain *c, uint32_t r);

#endif
