/* Programs that go layer by layer, for state that is sharded over a group (data) or kept by a parameter
 * server (server).
 *
 * Full fine-tuning keeps 16 or 18 bytes per parameter (cost/memory.h). Sharded, each member keeps its shard
 * of them, gathers a block's weights before it computes the block, and reduces the block's gradients to their
 * shards (ALL_GATHER, REDUCE_SCATTER). With a server, workers pull weights from it and push gradients to it.
 * Members run one block for all their micro-batches before the next block (layered accumulation: Cephalo), so
 * a block is gathered once per pass, whatever the number of micro-batches. Sharded LoRA shards the frozen
 * base; no gradients are then reduced block by block. LoRA with a server moves all adapters at once. Pure.
 */
#ifndef MOTLEY_PLANNER_EMIT_LAYERED_H
#define MOTLEY_PLANNER_EMIT_LAYERED_H

#include "planner/candidate/candidate.h"
#include "planner/cost/memory.h"

/* Bytes of the buffers for gathered weights and unreduced gradients. A tied embedding is gathered once per
 * step for both of its uses; otherwise embedding and head share one buffer. */
struct layered_buffers {
    enum memory_outside outside; /* the area of a block's memory (trained or frozen) that is gathered */
    uint32_t layers;             /* buffers for gathered layers; 0: all blocks are moved at once */
    uint32_t wholes;             /* buffers for the layers' unreduced gradients; 0: none */
    int32_t ring_end;            /* blocks [1, ring_end) use the layers' buffers as a ring */
    /* bytes of one buffer: the largest area of the blocks that use it; if all blocks are moved at once, their
     * areas together */
    uint64_t layer_weights, edge_weights, layer_gradients, edge_gradients;
    uint64_t total; /* bytes of all buffers, as the allocator counts them */
};
/* Returns the sizes of the buffers, with `layers` buffers for gathered layers but at most the number of
 * layers. */
struct layered_buffers layered_buffers(const struct problem *problem, bool server, uint32_t layers);

enum layered_role { LAYERED_MEMBER, LAYERED_WORKER, LAYERED_HOLDER };
static inline enum layered_role layered_role(const struct candidate *candidate, uint32_t member)
{
    return candidate->placement != PLACE_SERVER ? LAYERED_MEMBER : member ? LAYERED_WORKER : LAYERED_HOLDER;
}

/* Fills the memory that a member needs for its rows and micro-batches, and for its shard `kept` of the
 * sharded state; a parameter server keeps all of it. */
void layered_need(const struct problem *problem, const struct layered_buffers *buffers,
                  enum layered_role role, const struct member *member, struct flat_share kept,
                  struct memory_need *need);
/* Returns the shard of the sharded state that member m keeps. */
struct flat_share layered_part(const struct candidate *candidate, uint32_t m);
/* Returns the bytes of the sharded state: parameters, gradients and moments, or the frozen base of LoRA. A
 * member's shard takes up to layered_state_slack() bytes more than its share of them. */
double layered_state_bytes(const struct problem *problem);
uint64_t layered_state_slack(const struct problem *problem);

/* Makes the plan of a data candidate with gathered_layers > 0, or of a server candidate, whose first member
 * is the parameter server. NULL with ERR_NOFIT, ERR_NOMEM. */
struct plan *layered_emit(const struct problem *problem, const struct candidate *candidate,
                          enum emit_programs programs, struct err *err);
/* Rebuilds the candidate (candidate_fini) of a plan of layered_emit, or of a data plan of whole replicas.
 * ERR_INVALID, ERR_NOMEM. */
int layered_from_plan(const struct problem *problem, const struct plan *plan, struct candidate *candidate,
                      struct err *err);

#endif
