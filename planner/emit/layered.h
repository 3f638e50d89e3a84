/* Programs that go layer by layer, for state that is sharded over a group (data) or kept by one holder
 * (server).
 *
 * Full fine-tuning keeps 16 or 18 bytes per parameter (cost/memory.h). Sharded, each member keeps its
 * share of them, gathers a block's weights before it computes the block, and reduces the block's gradients
 * to their shards (ALL_GATHER, REDUCE_SCATTER). With a server, workers pull weights from the holder and
 * push gradients to it. Members run one block for all their micro-batches before the next block (layered
 * accumulation: Cephalo), so a block is gathered once per pass, whatever the number of micro-batches.
 * Sharded LoRA shards the frozen base, and no gradients are reduced by block. LoRA with a server moves all
 * adapters at once. Pure.
 */
#ifndef MOTLEY_PLANNER_EMIT_LAYERED_H
#define MOTLEY_PLANNER_EMIT_LAYERED_H

#include "planner/candidate/candidate.h"
#include "planner/cost/memory.h"

/* Bytes of the buffers for gathered weights and unreduced gradients. A tied embedding is gathered once per
 * step for both of its uses; otherwise embedding and head share one buffer. */
struct layered_buffers {
    uint32_t layers;  /* buffers for gathered layers; 0: all blocks are moved at once */
    uint32_t wholes;  /* buffers for the layers' unreduced gradients; 0: none */
    int32_t ring_end; /* blocks [1, ring_end) use the layers' buffers in turn */
    uint64_t layer_weights, edge_weights, layer_gradients, edge_gradients; /* bytes of one buffer */
    uint64_t total;
};
/* `layers` buffers for gathered layers, limited to the number of layers. */
struct layered_buffers layered_buffers(const struct problem *problem, bool server, uint32_t layers);

enum layered_role { LAYERED_MEMBER, LAYERED_WORKER, LAYERED_HOLDER };
static inline enum layered_role layered_role(const struct candidate *candidate, uint32_t member)
{
    return candidate->placement != PLACE_SERVER ? LAYERED_MEMBER : member ? LAYERED_WORKER : LAYERED_HOLDER;
}

/* Memory that a member needs for its rows, micro-batches and state_share. */
void layered_need(const struct problem *problem, const struct layered_buffers *buffers,
                  enum layered_role role, const struct member *member, struct memory_need *need);
/* Bytes that are divided among the members: the state, or the frozen base of LoRA. */
double layered_state_bytes(const struct problem *problem);

/* The plan of a data candidate with gathered_layers > 0, or of a server candidate, whose first member is
 * the holder. NULL with ERR_NOFIT, ERR_NOMEM. */
struct plan *layered_emit(const struct problem *problem, const struct candidate *candidate, bool programs,
                          struct err *err);
/* Rebuilds the candidate of such a plan, or of a plan of whole replicas (candidate_fini). ERR_INVALID,
 * ERR_NOMEM. */
int layered_from_plan(const struct problem *problem, const struct plan *plan, struct candidate *candidate,
                      struct err *err);

#endif
