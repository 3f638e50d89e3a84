/* Costs and memory of a member of a tensor group, which has a part of every matrix of a layer.
 *
 * Attention is cut by key and value heads (each with the query heads that use it), the FFN by columns
 * (Shoeybi et al. 2019, section 3); embedding and head are whole on the group's first member. Each half of a
 * layer ends with an all-reduce over the group, in fp32. A member's seconds are its share of a layer's
 * seconds plus what does not shrink: what every member does, and what smaller products lose. Pure.
 */
#ifndef MOTLEY_PLANNER_COST_TENSOR_COST_H
#define MOTLEY_PLANNER_COST_TENSOR_COST_H

#include "planner/cost/memory.h"
#include "planner/cost/problem.h"
#include "planner/cost/ring.h"
#include "planner/cost/tensor_parts.h"
#include "program/program.h"

/* The share of each kind of matrix that a member keeps; 1 for kinds that are not cut. */
struct tensor_shares {
    double heads, columns;
};
struct tensor_shares tensor_shares(const struct problem *problem, const struct plan_tensor *part);

/* Returns the share of a layer's time that attention takes on a device: measured if its profile has points of
 * attention and FFN, else estimated by FLOPs. */
double tensor_attention(const struct problem *problem, uint32_t device, int32_t block, enum cost_way way,
                        const struct cost_load *load);

enum tensor_half { TENSOR_WHOLE, TENSOR_FIRST, TENSOR_SECOND };
/* Returns the share of the seconds of attention (TENSOR_FIRST) or FFN (TENSOR_SECOND), which take `seconds`
 * as a whole, that does not shrink with a member's heads or columns: measured (cost_fixed_share), else that
 * of kernel launches. */
double tensor_fixed(const struct problem *problem, uint32_t device, enum tensor_half half, enum cost_way way,
                    const struct cost_load *load, double seconds);
/* Returns the seconds of a member with `share` of the heads or columns, where `fixed` of `seconds` does not
 * shrink. */
static inline double tensor_shrink(double seconds, double share, double fixed)
{
    return seconds * (fixed + (1 - fixed) * share);
}

/* Returns the seconds of half a block (attention or FFN) on a device that keeps `part` of its matrices. */
double tensor_seconds(const struct problem *problem, uint32_t device, const struct plan_tensor *part,
                      int32_t block, enum tensor_half half, enum cost_way way, const struct cost_load *load);
/* Returns the seconds of the optimiser step of a member's share of its blocks [begin, end). */
double tensor_step_seconds(const struct problem *problem, uint32_t device, const struct tensor_shares *shares,
                           int32_t begin, int32_t end);
/* Returns the seconds of a compute instruction of a rank of a tensor plan. */
double tensor_instr_seconds(const struct problem *problem, uint32_t device, const struct plan_rank *rank,
                            const struct instr *instr, const struct cost_load *load);

/* Returns the bytes of a boundary tensor per token: it is in fp32, whatever the dtype between other stages,
 * because it is a sum over a group. */
double tensor_token_bytes(const struct problem *problem);
/* Return the seconds of an all-reduce of `bytes` over a group (two members exchange whole tensors, more use a
 * ring; docs/PLANNER.md, Time), and of sending a tensor from the first member to the others, one after
 * another. */
double tensor_sum_seconds(const struct ring_figures *ring, uint32_t members, double bytes);
/* Returns the seconds that a sum takes from what the member's CPU computes meanwhile, as it encrypts,
 * decrypts and copies what it sends and receives. */
double tensor_host_seconds(const struct problem *p, uint32_t device, uint32_t members, double bytes);
double tensor_broadcast_seconds(const struct ring_figures *ring, uint32_t members, double bytes);

/* The part of a stage of blocks [begin, end) that one member keeps. */
struct tensor_member {
    int32_t block_begin, block_end; /* the member's blocks: all of the stage's, or only its layers (embedding
                                       and head are on the first member) */
    bool alone, follows; /* alone: the stage has one member; follows: the member is not the group's first */
    struct plan_tensor part;
};
struct tensor_member tensor_member(const struct problem *problem, int32_t begin, int32_t end,
                                   uint32_t members, uint32_t position, const struct plan_tensor *part);

/* Bytes that a member keeps and needs. */
struct tensor_need {
    uint64_t shared_gradients; /* gradients of parameters that every member has whole */
    uint64_t live_bytes;       /* bytes that one in-flight micro-batch keeps between forward and backward */
    uint64_t partial_bytes;    /* bytes of one buffer of a boundary tensor's size */
    struct memory_need need;   /* all other memory */
};
/* Fills an upper bound of the memory that grows linearly with heads and with columns, for the search. It is
 * exact for the smallest part, for all heads and for all columns. */
void tensor_need_fill(const struct problem *problem, const struct tensor_member *member, uint32_t rows,
                      bool recompute, struct tensor_need *out);
/* Fills the bytes that the engine allocates, exactly. ERR_NOMEM. */
int tensor_need_exact(const struct problem *problem, const struct tensor_member *member, uint32_t rows,
                      bool recompute, struct tensor_need *out, struct err *err);
static inline uint64_t tensor_need_total(const struct tensor_need *need, uint64_t live, uint64_t partials)
{
    return need->need.total + live * need->live_bytes + partials * need->partial_bytes;
}

#endif
