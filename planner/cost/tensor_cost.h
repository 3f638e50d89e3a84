/* Costs and memory of a member of a tensor group, which has a part of every matrix.
 *
 * Attention is cut by key and value heads (each with the query heads that use it), the FFN by columns, the
 * embedding and the head by rows of the vocabulary (Shoeybi et al. 2019, section 3). Each half of a layer
 * ends with an all-reduce over the group. A member's seconds are its share of the block's seconds plus an
 * overhead that does not shrink. Pure.
 */
#ifndef MOTLEY_PLANNER_COST_TENSOR_COST_H
#define MOTLEY_PLANNER_COST_TENSOR_COST_H

#include "planner/cost/memory.h"
#include "planner/cost/problem.h"
#include "program/program.h"

/* The share of each kind of matrix that a member keeps; 1 for kinds that are not cut. */
struct tensor_shares {
    double heads, columns, vocabulary;
};
struct tensor_shares tensor_shares(const struct problem *problem, const struct plan_tensor *part);

/* The share of a layer's time that attention takes, estimated by FLOPs. */
double tensor_attention(const struct problem *problem, int32_t block, const struct cost_load *load);
/* Seconds of a share of work that takes `seconds` as a whole. */
double tensor_shrink(double seconds, double share);

enum tensor_half { TENSOR_WHOLE, TENSOR_FIRST, TENSOR_SECOND };
/* Seconds of a half of a block on a device that keeps `part` of it. */
double tensor_seconds(const struct problem *problem, uint32_t device, const struct plan_tensor *part,
                      int32_t block, enum tensor_half half, enum cost_way way, const struct cost_load *load);
/* Seconds of the optimiser step of a member's share of blocks [begin, end). */
double tensor_step_seconds(const struct problem *problem, uint32_t device, const struct tensor_shares *shares,
                           int32_t begin, int32_t end);
/* Seconds of a compute instruction of a rank of a tensor plan. */
double tensor_instr_seconds(const struct problem *problem, uint32_t device, const struct plan_rank *rank,
                            const struct instr *instr, const struct cost_load *load);

/* Seconds of an all-reduce of `bytes` over a group: by a ring, or up and down a tree if that is faster
 * (docs/PLANNER.md, Time). */
double tensor_sum_seconds(uint32_t members, double bytes, double latency_s, double bytes_per_s);

/* Bytes that a member keeps and needs. */
struct tensor_need {
    /* Activations saved in a layer's halves and in the head, for one micro-batch. */
    uint64_t saved_first, saved_second, saved_head;
    uint64_t shared_gradients; /* gradients of parameters that every member has whole */
    uint64_t live_bytes;       /* of one micro-batch between its forward and its backward */
    uint64_t partial_bytes;    /* of one buffer of a boundary tensor's size */
    struct memory_need need;   /* all other memory */
};
void tensor_need_fill(const struct problem *problem, int32_t begin, int32_t end,
                      const struct plan_tensor *part, uint32_t rows, bool recompute, struct tensor_need *out);
static inline uint64_t tensor_need_total(const struct tensor_need *need, uint64_t live, uint64_t partials)
{
    return need->need.total + live * need->live_bytes + partials * need->partial_bytes;
}

#endif
