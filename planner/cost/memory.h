/* What a rank's device must hold. The engine lays a stage out by model/shape/footprint.h and allocates
 * everything when the stage is made; so does this, and the peak is a sum that equals what the allocator will
 * count.
 *
 * Where the engine does not run a placement yet (shards), the rules of docs/PLANNER.md, Memory, take over;
 * `exact` says which it was.
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
    bool split; /* backward in two halves: the gradients that the second needs are kept in each place */
    uint32_t boundary_buffers; /* boundary tensors of tokens_bound that the rank's slots hold, all rings
                                  together */
    double state_share;        /* of the trained state kept here; 1: all of it. Where the stage is not
                                  `sharded`, of frozen weights too */
    double tensor_share;       /* of each matrix kept here (tensor placement); 1: all */
    /* Weights come from elsewhere, block by block or all at a time: what is kept is the share of the trained
     * state (of a tied embedding only where it is among the blocks) and frozen_share of the frozen base;
     * buffer_bytes are the places where weights come to and whole gradients wait. */
    bool sharded;
    double frozen_share;
    uint64_t buffer_bytes;
};

struct memory_need {
    uint64_t purpose[PURPOSE_COUNT];
    uint64_t total;
    uint64_t saved_bytes;    /* of one micro-batch's place: each in the window needs so much */
    uint64_t boundary_bytes; /* of one boundary buffer */
    uint64_t cache_bytes;    /* of the KV cache, inside buffers */
    uint64_t work_bytes;     /* of the workspace, inside buffers: stages of a device share the largest */
    uint64_t host_bytes;     /* beside the device, of host memory: moments that lie there */
    bool exact;
};

/* Full fine-tuning: a parameter's values, gradient and moments, bytes. 16 in fp32; 18 in bf16, whose
 * gradients are summed in fp32 (2 the bf16 values, 4 the fp32 ones, 4, 8). Of LoRA: of an adapter's
 * parameter. */
double memory_state_bytes(const struct problem *problem);
/* Parameters trained in blocks [begin, end). */
uint64_t memory_trained(const struct problem *problem, int32_t begin, int32_t end);
/* Bytes of what is gathered before blocks [begin, end) compute: full fine-tuning, all weights as computed
 * with; LoRA, the frozen base. */
uint64_t memory_gathered_bytes(const struct problem *problem, int32_t begin, int32_t end);
/* Is the embedding trained (where it is tied, the head with it)? */
bool memory_trains_table(const struct problem *problem);
/* Bytes of a tied embedding that is trained as a head on another rank has it: its values. */
uint64_t memory_table_bytes(const struct problem *problem);
/* Bytes of the gradients of blocks [begin, end), fp32. */
uint64_t memory_gradient_bytes(const struct problem *problem, int32_t begin, int32_t end);

/* Never fails: numbers too large for the engine come out as large totals. */
void memory_stage_need(const struct problem *problem, const struct memory_stage *stage,
                       struct memory_need *need);
#endif
