/* Reading tensor groups off their plans. */
#include <stdlib.h>

#include "planner/tensor/tensor.h"

/* Micro-batches that are worked on in turns: the buffers between the halves of a block. */
static uint32_t together_of(const struct plan_rank *rank)
{
    uint32_t least = 0;
    for (uint32_t s = 0; s < rank->slot_count; s++) {
        uint32_t ring = rank->slots[s].ring_micro_batches;
        if (rank->slots[s].kind == SLOT_PARTIAL && (least == 0 || ring < least))
            least = ring;
    }
    return least ? least : 1;
}

int tensor_from_plan(const struct problem *p, const struct plan *plan, struct place_choice *choice,
                     struct err *err)
{
    uint32_t together = together_of(&plan->ranks[0]);
    *choice =
        (struct place_choice){.placement = plan->placement,
                              .micro_batch_rows = plan->micro_batch_start[1],
                              .member_count = plan->rank_count,
                              .together = together,
                              .estimate_s = plan->costs.step_s,
                              .stages = calloc((size_t)plan->rank_count + 1, sizeof(*choice->stages)),
                              .members = calloc((size_t)plan->rank_count + 1, sizeof(*choice->members))};
    int result = choice->stages && choice->members ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < plan->rank_count && result == 0; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        uint32_t device = cluster_device_find(p->cluster, rank->device);
        if (r > 0 && rank->stage == plan->ranks[r - 1].stage)
            choice->stages[choice->stage_count - 1].member_count++;
        else
            choice->stages[choice->stage_count++] =
                (struct place_stage){rank->block_begin, rank->block_end, r, 1};
        if (device == UINT32_MAX || rank->stage + 1 != (int32_t)choice->stage_count)
            result = err_set(err, ERR_INVALID, "its rank %u on %s is not where its stage %d should be", r,
                             rank->device, rank->stage);
        choice->members[r] = (struct place_member){.device = device,
                                                   .micro_rows = choice->micro_batch_rows,
                                                   .micro_count = plan->micro_batch_count,
                                                   .state_share = 1,
                                                   .window = (rank->window + together - 1) / together,
                                                   .recompute = rank->recompute,
                                                   .tensor = rank->tensor};
    }
    if (result < 0)
        choice_fini(choice);
    return result;
}
