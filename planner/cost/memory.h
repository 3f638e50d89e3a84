/* Memory that a rank needs on its device. The engine lays a stage out by model/shape/footprint.h and
 * allocates everything when the stage is made. This file sums the same sizes, so the predicted peak equals
 * what the allocator will count.
 *
 * For a placement that the engine does not run yet (shards), the rules of docs/PLANNER.md, Memory, are
 * used; `exact` is false then.
 */
#ifndef MOTLEY_PLANNER_COST_MEMORY_H
#define MOTLEY_PLANNER_COST_MEMORY_H

#include "planner/cost/problem.h"
#include "program/program.h"

struct memory_stage {
    int32_t block_begin, block_end;
    uint32_t window; /* micro-batches in flight, ≥ 1 */
    uint32_t micro_batch_rows;
    bool recompute;
    bool split; /* the backward is in two halves, and each place of the window also keeps the gradients that
                   the second half needs */
    uint32_t boundary_buffers; /* boundary tensors of tokens_bound tokens in all rings of the rank's slots */
    /* Share of the trained state kept here; 1: all. Unless `sharded`, it applies to frozen weights too. */
    double state_share;
    double tensor_share; /* share of each matrix kept here (tensor placement); 1: all */
    /* Weights are gathered from other ranks, block by block or all at once. The rank keeps its share of
     * the trained state (of a tied embedding only if it is among the blocks) and frozen_share of the
     * frozen base. buffer_bytes hold gathered weights and unreduced gradients. */
    bool sharded;
    double frozen_share;
    uint64_t buffer_bytes;
};

struct memory_need {
    uint64_t purpose[PURPOSE_COUNT];
    uint64_t total;
    uint64_t saved_bytes; /* of one micro-batch's saved activations; each place of the window needs as much */
    uint64_t boundary_bytes; /* of one boundary buffer */
    uint64_t cache_bytes;    /* of the KV cache, a part of purpose "buffers" */
    uint64_t work_bytes; /* of the workspace, a part of "buffers"; the stages of a device share the largest */
    uint64_t host_bytes; /* host memory for moments, which the device does not hold */
    bool exact;
};

/* Bytes of one trained parameter: values, gradient and moments. Full fine-tuning: 16 in fp32; 18 in bf16,
 * whose gradients are summed in fp32 (2 for the bf16 value, 4 for the fp32 one, 4, 8). LoRA: the same for
 * a parameter of an adapter. */
double memory_state_bytes(const struct problem *problem);
/* Parameters trained in blocks [begin, end). */
uint64_t memory_trained(const struct problem *problem, int32_t begin, int32_t end);
/* Bytes to gather before blocks [begin, end) compute: all weights in the compute dtype for full
 * fine-tuning, the frozen base for LoRA. */
uint64_t memory_gathered_bytes(const struct problem *problem, int32_t begin, int32_t end);
/* True if the embedding is trained (and with it the head, if they are tied). */
bool memory_trains_table(const struct problem *problem);
/* Bytes of the second copy of a tied, trained embedding, which the rank with the head holds: its values. */
uint64_t memory_table_bytes(const struct problem *problem);
/* Bytes of the gradients of blocks [begin, end), fp32. */
uint64_t memory_gradient_bytes(const struct problem *problem, int32_t begin, int32_t end);

/* Fills *need. Never fails: sizes beyond the engine's limits give large totals. */
void memory_stage_need(const struct problem *problem, const struct memory_stage *stage,
                       struct memory_need *need);
#endif
