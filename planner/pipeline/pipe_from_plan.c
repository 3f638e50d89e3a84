/* Reading pipelines off their plans: what choice_from_plan does not know of. */
#include <stdlib.h>

#include "planner/pipeline/pipeline.h"

/* By how many micro-batches a rank puts its weights' gradients off: as many of the halves that the neighbour
 * waits for come before the first of the others, but one. */
static uint32_t delay_of(const struct program *program)
{
    uint32_t inputs = 0;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        if (program->instrs[i].op == OP_BACKWARD_WEIGHT)
            break;
        inputs += program->instrs[i].op == OP_BACKWARD_INPUT;
    }
    return inputs ? inputs - 1 : 0;
}

static int ranges_read(const struct problem *p, const struct plan *plan, struct place_choice *choice,
                       struct err *err)
{
    uint32_t laps = plan->ranks[0].range_count, ranks = plan->rank_count;
    choice->stage_count = laps * ranks;
    choice->stages = calloc((size_t)choice->stage_count + 1, sizeof(*choice->stages));
    choice->members = calloc((size_t)ranks + 1, sizeof(*choice->members));
    if (!choice->stages || !choice->members)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < ranks; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        uint32_t device = cluster_device_find(p->cluster, rank->device);
        if (rank->range_count != laps || device == UINT32_MAX)
            return err_set(err, ERR_INVALID, "its rank %u has %u ranges of blocks on %s; rank 0 has %u", r,
                           rank->range_count, rank->device, laps);
        for (uint32_t lap = 0; lap < laps; lap++)
            choice->stages[lap * ranks + r] =
                (struct place_stage){rank->ranges[lap].begin, rank->ranges[lap].end, r, 1};
        choice->members[r] = (struct place_member){.device = device,
                                                   .micro_rows = choice->micro_batch_rows,
                                                   .micro_count = plan->micro_batch_count,
                                                   .state_share = 1,
                                                   .window = rank->window,
                                                   .recompute = rank->recompute};
    }
    for (uint32_t j = 1; j < choice->stage_count; j++) {
        if (choice->stages[j].block_begin != choice->stages[j - 1].block_end)
            return err_set(err, ERR_INVALID, "its ranges of blocks do not go round its ranks in order");
    }
    return 0;
}

int pipeline_from_plan(const struct problem *p, const struct plan *plan, struct place_choice *choice,
                       struct err *err)
{
    if (plan->schedule != SCHEDULE_INTERLEAVED) {
        if (choice_from_plan(p, plan, choice, err) < 0)
            return -1;
        choice->schedule = plan->schedule;
        for (uint32_t r = 0; r < plan->rank_count && plan->schedule == SCHEDULE_SPLIT; r++)
            choice->members[r].delay = delay_of(&plan->ranks[r].programs[PROGRAM_TRAIN]);
        return 0;
    }
    *choice = (struct place_choice){.placement = plan->placement,
                                    .schedule = plan->schedule,
                                    .micro_batch_rows = plan->micro_batch_start[1],
                                    .member_count = plan->rank_count,
                                    .estimate_s = plan->costs.step_s};
    if (ranges_read(p, plan, choice, err) == 0)
        return 0;
    choice_fini(choice);
    return -1;
}
