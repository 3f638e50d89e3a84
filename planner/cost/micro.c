#include "planner/cost/micro.h"

uint32_t micro_sizes(const struct problem *problem, uint32_t sizes[MICRO_SIZES_MAX])
{
    uint32_t batch = problem->workload->batch_rows, count = 0;
    if (problem->workload->micro_batch_rows) {
        sizes[0] = problem->workload->micro_batch_rows;
        return 1;
    }
    for (uint32_t base = 1; base < batch && count + 3 < MICRO_SIZES_MAX; base *= 2) {
        sizes[count++] = base;
        if (base >= 2 && base + base / 2 < batch)
            sizes[count++] = base + base / 2;
    }
    sizes[count++] = batch;
    return count;
}

bool micro_recompute_allowed(const struct problem *problem, bool recompute)
{
    enum workload_recompute asked = problem->workload->recompute;
    return asked == RECOMPUTE_AUTO || recompute == (asked == RECOMPUTE_YES);
}

static double classes_sum(const struct problem *problem, const struct micro_cost *cost, int32_t begin,
                          int32_t end, enum cost_way way)
{
    double seconds = 0;
    for (int cls = 0; cls < COST_CLASSES; cls++)
        seconds += (problem->prefix[end][cls] - problem->prefix[begin][cls]) * cost->seconds[cls][way];
    return seconds;
}

double micro_forward(const struct problem *problem, const struct micro_cost *cost, int32_t begin, int32_t end)
{
    return classes_sum(problem, cost, begin, end, COST_FORWARD);
}

double micro_backward(const struct problem *problem, const struct micro_cost *cost, int32_t begin,
                      int32_t end, bool recompute)
{
    double seconds = classes_sum(problem, cost, begin, end, COST_BACKWARD);
    return recompute ? seconds + classes_sum(problem, cost, begin, end, COST_RECOMPUTE) : seconds;
}

double micro_backward_again(const struct problem *problem, const struct micro_cost *cost, int32_t begin,
                            int32_t end, int32_t again_end)
{
    int32_t middle = again_end < begin ? begin : again_end < end ? again_end : end;
    return micro_backward(problem, cost, begin, middle, true) +
           micro_backward(problem, cost, middle, end, false);
}

double micro_weight_share(const struct problem *problem, int32_t begin, int32_t end,
                          const struct cost_load *load)
{
    bool full = problem->workload->method == METHOD_FULL;
    double weight = 0, input = 0;
    for (int32_t b = begin; b < end; b++) {
        const struct block *block = &problem->blocks.blocks[b];
        double tokens = block->kind == BLOCK_HEAD ? load->labelled : load->tokens, adapters = 0;
        for (uint32_t i = 0; i < block->part_count; i++)
            adapters += block->parts[i].lora_flops_per_token * block->parts[i].active;
        adapters = full ? 0 : adapters * tokens;
        double matrices = block->flops_per_token * tokens - adapters;
        weight += full ? matrices : adapters;
        input += matrices + adapters + 2 * block->flops_per_square * load->sum_sq;
    }
    return weight > 0 ? weight / (weight + input) : 0;
}
