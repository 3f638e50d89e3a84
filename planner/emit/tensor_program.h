/* The instruction lists of tensor groups, for tensor.c. */
#ifndef MOTLEY_PLANNER_EMIT_TENSOR_PROGRAM_H
#define MOTLEY_PLANNER_EMIT_TENSOR_PROGRAM_H

#include "planner/candidate/candidate.h"

/* Slot numbers of one rank; PLAN_NONE: there is no such slot. */
struct tensor_slots {
    /* slots of all-reduced sums between the halves of a block, and of gradients between blocks */
    int32_t sum[2], gradient[2];
    int32_t act_in, act_out, grad_in, grad_out;
    /* slots of activations saved by a layer's two halves, embedding and head (in a stage of one member
     * saved_first is for all blocks); shared: gradients of parameters that all members hold as equal copies
     */
    int32_t saved_first, saved_second, saved_table, saved_head, shared;
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

/* The layers [begin, end) of a stage, which are cut over the group's members; alone: the stage has one
 * member. */
struct tensor_writer_blocks {
    int32_t begin, end;
    bool alone;
};
struct tensor_writer_blocks tensor_layers(const struct tensor_plan *t, uint32_t stage);

/* Makes the programs of rank r of a stage; the rank's slots exist. ERR_NOMEM, ERR_TOO_BIG. */
int tensor_programs(struct tensor_plan *t, uint32_t stage, uint32_t r, const struct tensor_slots *slots);

#endif
