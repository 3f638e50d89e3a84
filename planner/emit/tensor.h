/* Plans of tensor groups: tensor.c has groups, memory and slots, tensor_program.c the instruction lists.
 * For planner/emit and planner/kind/tensor.c. */
#ifndef MOTLEY_PLANNER_EMIT_TENSOR_H
#define MOTLEY_PLANNER_EMIT_TENSOR_H

#include "planner/candidate/candidate.h"

/* Of a step of so many micro-batches: how many are worked on in turns, and buffers of a boundary tensor's
 * size that a rank of stage s has. Windows are in units of micro-batches worked on in turns. */
uint32_t tensor_together(const struct candidate *candidate, uint32_t micro_batches);
uint32_t tensor_partials(const struct candidate *candidate, uint32_t s, uint32_t micro_batches);
/* Units between their forward and the next stage's: depth of the ring between stages with those windows. */
uint32_t tensor_ring(uint32_t window, uint32_t next);

/* As struct kind's emit. */
struct plan *tensor_emit(const struct problem *problem, const struct candidate *candidate, bool programs,
                         struct err *err);

/* Slots of one rank; PLAN_NONE where it has none. */
struct tensor_slots {
    int32_t sum[2], gradient[2]; /* between the halves of a block; between blocks */
    int32_t act_in, act_out, grad_in, grad_out, statistics;
    int32_t saved_first, saved_second, saved_head, shared;
    int32_t scalars, norm, barrier, cache, token;
    uint32_t ring_act, ring_grad, ring_out;
};

struct tensor_plan {
    const struct problem *problem;
    const struct candidate *candidate;
    struct plan *plan;
    uint32_t together;
    struct err *err;
};

int tensor_programs(struct tensor_plan *t, uint32_t stage, uint32_t r, const struct tensor_slots *slots);

#endif
