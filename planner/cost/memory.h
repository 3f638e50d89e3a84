/* Memory that a rank needs on its device. The engine lays a stage out by model/shape/footprint.h and
 * allocates everything when the stage is made. This file sums the same sizes, so the predicted peak equals
 * what the allocator will count.
 *
 * One of the two areas of the rank's blocks (model/shape/flat.h: frozen and trained values) may be sharded
 * over a group of ranks or kept by a parameter server. The rank then keeps its shard of that area beside the
 * stage, or all of it, or nothing.
 */
#ifndef MOTLEY_PLANNER_COST_MEMORY_H
#define MOTLEY_PLANNER_COST_MEMORY_H

#include "model/shape/flat.h"
#include "planner/cost/problem.h"
#include "program/program.h"

/* Which of a block's two areas (frozen, trained) is not in the stage's own memory, because it is sharded over
 * ranks or kept by a parameter server. */
enum memory_outside { OUTSIDE_NONE, OUTSIDE_FROZEN, OUTSIDE_TRAINED };

struct memory_stage {
    int32_t block_begin, block_end;
    uint32_t window; /* micro-batches in flight, ≥ 1 */
    uint32_t micro_batch_rows;
    bool recompute;
    int32_t recompute_end; /* with recompute: blocks from this one on save their activations and are not
                              recomputed; 0: all blocks are recomputed */
    bool split; /* the backward is split (BACKWARD_INPUT, BACKWARD_WEIGHT), and each in-flight micro-batch
                   also keeps the gradients that BACKWARD_WEIGHT needs */
    uint32_t boundary_buffers; /* number of buffers for boundary tensors, each of tokens_bound tokens, in
                                  all rings of the rank's slots */
    enum memory_outside outside;
    struct flat_share kept; /* the shard of the outside area that the rank keeps; 0..0: none */
    bool keeps_only;        /* the rank runs no block, so it has no stage; it only keeps its shard */
    uint64_t buffer_bytes;  /* bytes of further buffers, as the allocator counts them */
};

struct memory_need {
    uint64_t purpose[PURPOSE_COUNT];
    uint64_t total;
    uint64_t saved_bytes;    /* saved activations of one in-flight micro-batch */
    uint64_t boundary_bytes; /* bytes of one boundary buffer */
    uint64_t cache_bytes;    /* bytes of the KV cache, a part of purpose "buffers" */
    uint64_t work_bytes;     /* bytes of the workspace, a part of "buffers"; the stages of a device share the
                                largest */
    uint64_t host_bytes;     /* host memory for moments, which the device does not hold */
    uint64_t kept_values;    /* bytes of parameter values in the rank's shard of the outside area, as the
                                allocator counts them */
};

/* Returns the number of parameters trained in blocks [begin, end). */
uint64_t memory_trained(const struct problem *problem, int32_t begin, int32_t end);
/* Returns the bytes to gather before blocks [begin, end) compute: their trained areas for full fine-tuning,
 * their frozen ones for LoRA. */
uint64_t memory_gathered_bytes(const struct problem *problem, int32_t begin, int32_t end);
/* Returns the bytes of the trained areas of blocks [begin, end). Their gradients take as many. */
uint64_t memory_trained_bytes(const struct problem *problem, int32_t begin, int32_t end);
/* Returns the bytes on the device of the sharded state of blocks [begin, end), summed over all shards:
 * values, gradients and moments of the trained areas, or the values of the frozen ones. A shard takes its
 * share of these bytes, and up to memory_share_slack() more, because buffers are counted in granules and
 * shards begin at aligned offsets. */
double memory_shared_bytes(const struct problem *problem, enum memory_outside outside, int32_t begin,
                           int32_t end);
uint64_t memory_share_slack(const struct problem *problem, int32_t begin, int32_t end);
/* True if the embedding is trained (and with it the head, if they are tied). */
bool memory_trains_table(const struct problem *problem);
/* Returns the bytes of the second copy of a tied, trained embedding's values, which the rank with the head
 * holds. */
uint64_t memory_table_bytes(const struct problem *problem);
/* Returns the bytes of the fp32 gradients of blocks [begin, end) without padding, as all-reduces move them.
 */
uint64_t memory_gradient_bytes(const struct problem *problem, int32_t begin, int32_t end);

/* A rank's shard of the outside areas, over all its ranges of blocks: one buffer of frozen weights, or
 * trained values with gradients and moments. */
struct memory_kept {
    uint64_t frozen;
    struct footprint_shard shard;
};
/* Adds shard `share` of the outside areas of blocks [begin, end). `span`: from the rank's first block to its
 * last, which decides whether the head has a copy of a tied embedding. */
void memory_kept_add(const struct problem *problem, enum memory_outside outside, struct flat_share share,
                     int32_t begin, int32_t end, struct plan_range span, struct memory_kept *kept);
/* Adds the bytes of a rank's shard to *need. */
void memory_kept_put(enum memory_outside outside, const struct memory_kept *kept, struct memory_need *need);
/* Returns by how many bytes the head's frozen area is larger on a rank without the embedding it is tied to.
 */
uint64_t memory_head_table_bytes(const struct problem *problem);

/* Fills *need. Never fails: sizes beyond the engine's limits give large totals. */
void memory_stage_need(const struct problem *problem, const struct memory_stage *stage,
                       struct memory_need *need);
#endif
