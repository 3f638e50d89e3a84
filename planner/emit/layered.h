/* Programs by layers: state in shards over a group (data), or kept by one holder (server).
 *
 * Full fine-tuning keeps 16 or 18 bytes a parameter (cost/memory.h). In shards, each member keeps its share
 * of them, gathers a block's weights before it computes it and gives its gradients to the members that keep
 * them (ALL_GATHER, REDUCE_SCATTER); with a server, workers pull weights from the holder and push gradients
 * to it. Members run one block over all their micro-batches before the next (layered accumulation: Cephalo),
 * so that a block is gathered once a pass, however many micro-batches there are. Of LoRA in shards it is the
 * frozen base that is shared out, and nothing is reduced by block; with a server and LoRA the adapters come
 * and go all at once. Pure.
 */
#ifndef MOTLEY_PLANNER_EMIT_LAYERED_H
#define MOTLEY_PLANNER_EMIT_LAYERED_H

#include "planner/candidate/candidate.h"
#include "planner/cost/memory.h"

/* Bytes of the places where weights come to and whole gradients wait. A tied embedding is gathered once a
 * step, for both of its uses; otherwise embedding and head take turns in one place. */
struct layered_buffers {
    uint32_t layers;  /* places for gathered layers; 0: all blocks come and go at once */
    uint32_t wholes;  /* places for whole gradients of layers; 0: none */
    int32_t ring_end; /* blocks [1, ring_end) take turns in the layers' places */
    uint64_t layer_weights, edge_weights, layer_gradients, edge_gradients; /* of one place */
    uint64_t total;
};
/* layers: places for gathered layers, cut to what there is. */
struct layered_buffers layered_buffers(const struct problem *problem, bool server, uint32_t layers);

enum layered_role { LAYERED_MEMBER, LAYERED_WORKER, LAYERED_HOLDER };
static inline enum layered_role layered_role(const struct candidate *candidate, uint32_t member)
{
    return candidate->placement != PLACE_SERVER ? LAYERED_MEMBER : member ? LAYERED_WORKER : LAYERED_HOLDER;
}

/* What a member with these rows, micro-batches and state_share must hold. */
void layered_need(const struct problem *problem, const struct layered_buffers *buffers,
                  enum layered_role role, const struct member *member, struct memory_need *need);
/* Bytes of what is shared out: the state, or the frozen base of LoRA. */
double layered_state_bytes(const struct problem *problem);

/* The plan of a data candidate with gathered_layers > 0, or of a server candidate, whose first member is the
 * holder. NULL with ERR_NOFIT, ERR_NOMEM. */
struct plan *layered_emit(const struct problem *problem, const struct candidate *candidate, bool programs,
                          struct err *err);
/* The candidate that such a plan, or one of whole replicas, came from (candidate_fini). ERR_INVALID,
 * ERR_NOMEM. */
int layered_from_plan(const struct problem *problem, const struct plan *plan, struct candidate *candidate,
                      struct err *err);

#endif
