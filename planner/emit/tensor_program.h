/* The instruction lists of tensor groups, for tensor.c. */
#ifndef MOTLEY_PLANNER_EMIT_TENSOR_PROGRAM_H
#define MOTLEY_PLANNER_EMIT_TENSOR_PROGRAM_H

#include "planner/candidate/candidate.h"

/* Slot numbers of one rank; PLAN_NONE: there is no such slot. */
struct tensor_slots {
    /* all-reduced sums between the halves of a block; gradients between blocks */
    int32_t sum[2], gradient[2];
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

/* Makes the programs of rank r of a stage; the rank's slots exist. ERR_NOMEM, ERR_TOO_BIG. */
int tensor_programs(struct tensor_plan *t, uint32_t stage, uint32_t r, const struct tensor_slots *slots);

#endif
