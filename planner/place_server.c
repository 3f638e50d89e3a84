/* server: one holder of the state, stateless workers. Placeholder until the next commit. */
#include "planner/sharded.h"

void server_holder_need(const struct problem *p, uint32_t rows, uint32_t count, bool recompute,
                        struct memory_need *need)
{
    struct sharded_buffers in = sharded_buffers(p, 1);
    uint64_t arrives = in.layer_gradients > in.edge_gradients ? in.layer_gradients : in.edge_gradients;
    struct memory_stage m = {.block_end = p->block_count,
                             .window = count,
                             .micro_batch_rows = rows ? rows : 1,
                             .recompute = recompute,
                             .boundary_buffers = 4 * count,
                             .state_share = 1,
                             .tensor_share = 1,
                             .sharded = true,
                             .frozen_share = count > 0,
                             .buffer_bytes = arrives};
    memory_stage_need(p, &m, need);
}
