/* What a rank's device must hold, by the engine's own formulas (engine/README.md): the engine allocates
 * everything when a stage is made, so the peak is a sum, and equals what the device's allocator will count.
 *
 * Where the engine does not run a method or model yet (full fine-tuning, bf16 or NF4 bases, mixtures of
 * experts), the rules of docs/PLANNER.md, Memory, take over; `exact` says which it was.
 */
#ifndef MOTLEY_PLANNER_MEMORY_H
#define MOTLEY_PLANNER_MEMORY_H

#include "planner/problem.h"
#include "program/program.h"

struct memory_stage {
    int32_t block_begin, block_end;
    uint32_t window; /* micro-batches in flight, ≥ 1 */
    uint32_t micro_batch_rows;
    bool recompute;
    uint32_t boundary_buffers; /* boundary tensors of tokens_bound that the rank's slots hold, all rings
                                  together */
    double state_share;        /* of optimiser state and sharded weights kept here; 1: all of it */
    double tensor_share;       /* of each matrix kept here (tensor placement); 1: all */
};

struct memory_need {
    uint64_t purpose[PURPOSE_COUNT];
    uint64_t total;
    uint64_t saved_bytes; /* of one micro-batch's place */
    uint64_t cache_bytes; /* of the KV cache, inside buffers */
    bool exact;
};

/* Reads the widths off the model and method; problem_init calls it. */
void memory_widths_init(struct memory_widths *widths, const struct problem *problem);

/* Never fails: numbers too large for the engine come out as large totals. */
void memory_stage_need(const struct problem *problem, const struct memory_stage *stage,
                       struct memory_need *need);
#endif
