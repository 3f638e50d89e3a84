/* What layered ranks hold. */
#include "planner/emit/layered.h"

static uint64_t larger(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

struct layered_buffers layered_buffers(const struct problem *p, bool server, uint32_t layers)
{
    int32_t last = p->block_count - 1;
    bool full = p->workload->method == METHOD_FULL, tied = p->blocks.tied;
    struct layered_buffers b = {.ring_end = 1};
    if (server && !full) {
        b.edge_weights = b.edge_gradients = memory_gradient_bytes(p, 0, p->block_count);
        b.total = 2 * b.edge_weights;
        return b;
    }
    b.ring_end = tied ? last + 1 : last;
    uint32_t ring = (uint32_t)b.ring_end - 1;
    b.layers = layers < ring ? layers : ring;
    b.wholes = full ? (ring < 2 ? ring : 2) : 0;
    for (int32_t k = 0; k <= last; k++) {
        uint64_t weights = memory_gathered_bytes(p, k, k + 1), whole = memory_gradient_bytes(p, k, k + 1);
        bool layer = k >= 1 && k < b.ring_end, edge = k == 0 || (k == last && !tied);
        b.layer_weights = layer ? larger(b.layer_weights, weights) : b.layer_weights;
        b.layer_gradients = layer ? larger(b.layer_gradients, whole) : b.layer_gradients;
        b.edge_weights = edge ? larger(b.edge_weights, weights) : b.edge_weights;
        b.edge_gradients = edge && full ? larger(b.edge_gradients, whole) : b.edge_gradients;
    }
    b.total = b.layers * b.layer_weights + b.edge_weights + b.wholes * b.layer_gradients + b.edge_gradients;
    return b;
}

double layered_state_bytes(const struct problem *p)
{
    if (p->workload->method == METHOD_LORA)
        return (double)memory_gathered_bytes(p, 0, p->block_count);
    return memory_state_bytes(p) * (double)memory_trained(p, 0, p->block_count);
}

void layered_need(const struct problem *p, const struct layered_buffers *buffers, enum layered_role role,
                  const struct member *x, struct memory_need *need)
{
    bool full = p->workload->method == METHOD_FULL, holder = role == LAYERED_HOLDER,
         worker = role == LAYERED_WORKER;
    bool at_once = buffers->layers == 0;
    uint64_t arrives = larger(buffers->layer_gradients, buffers->edge_gradients);
    struct memory_stage m = {.block_end = p->block_count,
                             .window = at_once ? 1 : x->count,
                             .micro_batch_rows = x->rows ? x->rows : 1,
                             .recompute = x->recompute,
                             .boundary_buffers = at_once ? 0 : 4 * x->count,
                             .state_share = worker            ? 0
                                            : holder || !full ? 1
                                                              : x->state_share,
                             .tensor_share = 1,
                             .sharded = true,
                             .frozen_share = holder || worker ? x->count > 0
                                             : full           ? 0
                                                              : x->state_share,
                             .buffer_bytes = holder ? arrives : buffers->total};
    memory_stage_need(p, &m, need);
    if (x->count > 0)
        return;
    /* it computes nothing: state, and a place for what comes in */
    need->purpose[PURPOSE_ACTIVATIONS] = 0;
    need->purpose[PURPOSE_BUFFERS] = arrives;
    need->saved_bytes = need->cache_bytes = need->total = 0;
    for (int i = 0; i < PURPOSE_COUNT; i++)
        need->total += need->purpose[i];
}
