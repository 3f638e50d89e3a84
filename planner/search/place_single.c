/* single: the whole model on one device, micro-batch after micro-batch. */
#include "planner/cost/micro.h"
#include "planner/pipeline/chain.h"

static bool single_supports(const struct problem *problem, struct err *err)
{
    return placement_stages(problem, 1, 1, err);
}

static double single_seconds(const struct problem *p, uint32_t device, uint32_t rows, bool recompute)
{
    struct micro_cost cost;
    uint32_t micro_batches = micro_count(p, rows);
    micro_cost_init(&cost, p, device, rows);
    double each =
        micro_forward(p, &cost, 0, p->block_count) + micro_backward(p, &cost, 0, p->block_count, recompute);
    return micro_batches * each + problem_step_seconds(p, device, 0, p->block_count);
}

static int single_device(const struct problem *p, uint32_t device, struct choice_list *list, struct err *err)
{
    uint32_t sizes[MICRO_SIZES_MAX], count = micro_sizes(p, sizes);
    struct place_stage stage = {.block_end = p->block_count, .member_count = 1};
    struct place_member best = {0};
    double best_s = 0;
    uint32_t best_rows = 0;
    for (uint32_t i = 0; i < count; i++) {
        for (int recompute = 0; recompute < 2; recompute++) {
            if (!micro_recompute_allowed(p, recompute))
                continue;
            struct memory_stage m = {.block_end = p->block_count,
                                     .window = 1,
                                     .micro_batch_rows = sizes[i],
                                     .recompute = recompute,
                                     .state_share = 1,
                                     .tensor_share = 1};
            struct memory_need need;
            uint64_t limit = p->cluster->devices[device].memory_limit_bytes;
            memory_stage_need(p, &m, &need);
            list->evaluations++;
            if (need.total > limit) {
                choice_list_short(list, device, need.total, limit);
                continue;
            }
            double seconds = single_seconds(p, device, sizes[i], recompute);
            if (best_rows == 0 || seconds < best_s) {
                best_s = seconds;
                best_rows = sizes[i];
                best = (struct place_member){.device = device,
                                             .micro_rows = sizes[i],
                                             .micro_count = micro_count(p, sizes[i]),
                                             .state_share = 1,
                                             .window = 1,
                                             .recompute = recompute};
            }
        }
    }
    if (best_rows == 0)
        return 0;
    struct place_choice choice = {.placement = PLACE_SINGLE,
                                  .micro_batch_rows = best_rows,
                                  .stage_count = 1,
                                  .member_count = 1,
                                  .stages = &stage,
                                  .members = &best,
                                  .estimate_s = best_s};
    return choice_list_add(list, &choice, err);
}

static int single_propose(const struct problem *problem, struct choice_list *list, struct err *err)
{
    for (uint32_t d = 0; d < problem->device_count; d++) {
        bool wanted = list->must_use == 0 || list->must_use == d + 1;
        if (wanted && problem->usable[d] && single_device(problem, d, list, err) < 0)
            return -1;
    }
    return 0;
}

const struct placement place_single = {
    .kind = PLACE_SINGLE, .supports = single_supports, .propose = single_propose, .emit = chain_emit};
