/* Reading a choice off a plan, and keeping a plan as it is. */
#include "planner/search/from_plan.h"

#include <stdlib.h>
#include <string.h>

#include "planner/hybrid/deal_moves.h"
#include "program/check/check.h"
#include "program/codec.h"

/* The device of a rank, if it is there and may be used; UINT32_MAX with the reason otherwise. */
static uint32_t rank_device(const struct problem *p, const struct plan_rank *rank, struct err *err)
{
    uint32_t device = cluster_device_find(p->cluster, rank->device);
    if (device == UINT32_MAX)
        err_set(err, ERR_INVALID, "%s is no longer there", rank->device);
    else if (!p->usable[device])
        err_set(err, ERR_INVALID, "%s is not to be used", rank->device);
    else
        return device;
    return UINT32_MAX;
}

static int bounds_check(const struct problem *p, const struct plan *plan, struct err *err)
{
    if (plan->rows_bound == 0 || plan->rows_bound > p->workload->batch_rows)
        return err_set(err, ERR_INVALID, "its micro-batches hold up to %u rows of %u", plan->rows_bound,
                       p->workload->batch_rows);
    if (plan->tokens_bound < problem_tokens_bound(p, plan->rows_bound) ||
        plan->labelled_bound < problem_labelled_bound(p, plan->rows_bound) ||
        plan->sequence_bound < p->sequence_bound)
        return err_set(err, ERR_INVALID, "it was made for shorter rows");
    return 0;
}

int from_plan_check(const struct problem *p, const struct plan *plan, struct err *err)
{
    const struct workload *w = p->workload;
    if (plan->block_count != p->block_count)
        return err_set(err, ERR_INVALID, "it is for a model of %d blocks, this one has %d", plan->block_count,
                       p->block_count);
    if (plan->batch_rows != w->batch_rows)
        return err_set(err, ERR_INVALID, "it is for batches of %u rows, this job's have %u", plan->batch_rows,
                       w->batch_rows);
    if (plan->trains_embedding != (w->method == METHOD_FULL))
        return err_set(err, ERR_INVALID, "it trains other parameters");
    if (w->place >= 0 && w->place != (int)plan->placement)
        return err_set(err, ERR_INVALID, "it is of kind %s, %s is asked for",
                       plan_placement_name(plan->placement), plan_placement_name(w->place));
    if (w->micro_batch_rows && w->micro_batch_rows != plan->rows_bound)
        return err_set(err, ERR_INVALID, "its micro-batches hold %u rows, %u are asked for", plan->rows_bound,
                       w->micro_batch_rows);
    uint32_t stages = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        uint32_t device = rank_device(p, rank, err);
        if (device == UINT32_MAX)
            return -1;
        uint64_t limit = p->cluster->devices[device].memory_limit_bytes;
        if (rank->memory_bytes > limit)
            return err_set(err, ERR_INVALID, "it needs %llu bytes on %s, which has %llu",
                           (unsigned long long)rank->memory_bytes, rank->device, (unsigned long long)limit);
        stages = rank->stage >= 0 && (uint32_t)rank->stage + 1 > stages ? (uint32_t)rank->stage + 1 : stages;
    }
    if (w->stages && w->stages != stages)
        return err_set(err, ERR_INVALID, "it has %u stages, %u are asked for", stages, w->stages);
    return bounds_check(p, plan, err);
}

struct plan *from_plan_keep(const struct problem *problem, const struct plan *plan, uint32_t steps_max,
                            double *step_s, struct err *err)
{
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        if (plan->ranks[r].programs[PROGRAM_TRAIN].instr_count == 0) {
            err_set(err, ERR_INVALID, "it comes without its programs");
            return NULL;
        }
    }
    json_t *json = plan_to_json(plan, err);
    if (!json)
        return NULL;
    struct plan *copy = plan_from_json(json, err);
    json_decref(json);
    for (uint32_t r = 0; copy && r < copy->rank_count; r++) {
        uint32_t device = cluster_device_find(problem->cluster, copy->ranks[r].device);
        if (device != UINT32_MAX)
            copy->ranks[r].memory_limit_bytes = problem->cluster->devices[device].memory_limit_bytes;
    }
    if (copy && (plan_check(copy, err) < 0 || price_plan(problem, copy, steps_max, step_s, err) < 0)) {
        plan_destroy(copy);
        return NULL;
    }
    return copy;
}

/* Micro-batches that a rank takes: its forwards from the first block it holds on, or, without programs, as
 * many as its rows make. */
static uint32_t rank_micro_batches(const struct plan *plan, const struct plan_rank *rank)
{
    const struct program *program = &rank->programs[PROGRAM_TRAIN];
    uint32_t count = 0;
    for (uint32_t i = 0; i < program->instr_count; i++)
        count += program->instrs[i].op == OP_FORWARD && program->instrs[i].block_begin == rank->block_begin;
    if (count == 0 && plan->rows_bound > 0)
        count = (rank->rows + plan->rows_bound - 1) / plan->rows_bound;
    return count ? count : 1;
}

/* One stage of several: members take their micro-batches one after the other, each of one size. */
static int members_rows(const struct plan *plan, struct place_choice *choice, struct err *err)
{
    uint32_t k = 0;
    for (uint32_t m = 0; m < choice->member_count; m++) {
        struct place_member *member = &choice->members[m];
        uint32_t taken = 0;
        member->micro_count = 0;
        while (k < plan->micro_batch_count && taken < plan->ranks[m].rows) {
            uint32_t rows = plan->micro_batch_start[k + 1] - plan->micro_batch_start[k];
            if (member->micro_count && rows != member->micro_rows)
                return err_set(err, ERR_INVALID, "its rank %u takes micro-batches of unlike sizes", m);
            member->micro_rows = rows;
            member->micro_count++;
            taken += rows;
            k++;
        }
        if (taken != plan->ranks[m].rows || taken == 0)
            return err_set(err, ERR_INVALID, "its rank %u takes %u rows, its micro-batches hold %u", m,
                           plan->ranks[m].rows, taken);
    }
    return 0;
}

static int stages_read(const struct problem *p, const struct plan *plan, struct place_choice *choice,
                       struct err *err)
{
    uint32_t rows = plan->micro_batch_start[1] - plan->micro_batch_start[0];
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        struct place_stage *last = choice->stage_count ? &choice->stages[choice->stage_count - 1] : NULL;
        uint32_t device = rank_device(p, rank, err);
        if (device == UINT32_MAX)
            return -1;
        if (last && rank->stage == plan->ranks[r - 1].stage && rank->block_begin == last->block_begin &&
            rank->block_end == last->block_end) {
            last->member_count++;
        } else if (rank->block_begin == (last ? last->block_end : 0) && rank->block_end > rank->block_begin) {
            choice->stages[choice->stage_count++] = (struct place_stage){.block_begin = rank->block_begin,
                                                                         .block_end = rank->block_end,
                                                                         .member_first = r,
                                                                         .member_count = 1};
        } else {
            return err_set(err, ERR_INVALID, "its ranks do not stand in the order of its stages");
        }
        choice->members[r] = (struct place_member){.device = device,
                                                   .micro_rows = rows,
                                                   .micro_count = rank_micro_batches(plan, rank),
                                                   .state_share = rank->state_share,
                                                   .window = rank->window,
                                                   .recompute = rank->recompute};
    }
    if (choice->stages[choice->stage_count - 1].block_end != p->block_count)
        return err_set(err, ERR_INVALID, "its ranks do not hold all blocks");
    return 0;
}

/* Likewise in which order everybody works. */
static int order_read(const struct plan *plan, struct place_choice *choice, struct err *err)
{
    uint32_t most = 2 * choice->dealt_count, count = 0;
    choice->order = calloc((size_t)most + 1, 1);
    if (!choice->order)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct program *program = &plan->ranks[r].programs[PROGRAM_TRAIN];
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *x = &program->instrs[i];
            if (x->op != OP_FORWARD && x->op != OP_BACKWARD)
                continue;
            if (count < most)
                choice->order[count] = x->op == OP_BACKWARD;
            count++;
        }
    }
    if (count != most)
        deal_order_drop(choice);
    return 0;
}

/* Groups: who takes which micro-batch, where the programs say it of all. */
static int dealt_read(const struct plan *plan, struct place_choice *choice, struct err *err)
{
    uint32_t count = plan->micro_batch_count, cells = choice->stage_count * count, found = 0;
    if (choice->placement != PLACE_HYBRID || choice->stage_count < 2 || cells > DEALT_CELLS ||
        choice->member_count > UINT8_MAX)
        return 0;
    choice->dealt = calloc((size_t)cells + 1, 1);
    choice->dealt_count = cells;
    if (!choice->dealt)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        const struct program *program = &rank->programs[PROGRAM_TRAIN];
        uint32_t s = (uint32_t)rank->stage;
        const struct place_stage *stage = s < choice->stage_count ? &choice->stages[s] : NULL;
        if (!stage || r < stage->member_first || r - stage->member_first >= stage->member_count)
            continue;
        for (uint32_t i = 0; i < program->instr_count; i++) {
            const struct instr *x = &program->instrs[i];
            if (x->op != OP_FORWARD || x->micro_batch < 0 || (uint32_t)x->micro_batch >= count)
                continue;
            choice->dealt[s * count + (uint32_t)x->micro_batch] = (uint8_t)(r - stage->member_first);
            found++;
        }
    }
    if (found != cells) {
        deal_drop(choice);
        return 0;
    }
    return order_read(plan, choice, err);
}

int choice_from_plan(const struct problem *p, const struct plan *plan, struct place_choice *choice,
                     struct err *err)
{
    *choice = (struct place_choice){
        .placement = plan->placement,
        .micro_batch_rows = plan->micro_batch_start[1] - plan->micro_batch_start[0],
        .stages = calloc((size_t)plan->rank_count + 1, sizeof(*choice->stages)),
        .members = calloc((size_t)plan->rank_count + 1, sizeof(*choice->members)),
        .member_count = plan->rank_count,
        .estimate_s = plan->costs.step_s,
    };
    int result = choice->stages && choice->members ? 0 : err_set(err, ERR_NOMEM, "planner: out of memory");
    if (result == 0)
        result = stages_read(p, plan, choice, err);
    if (result == 0 && choice->stage_count == 1 && choice->member_count > 1) {
        result = members_rows(plan, choice, err);
        choice->micro_batch_rows = plan->rows_bound;
    }
    for (uint32_t s = 0; s < choice->stage_count && choice->stage_count > 1 && result == 0; s++) {
        /* a group's window counts micro-batches of the step: all its members' */
        const struct place_stage *stage = &choice->stages[s];
        uint32_t window = 0;
        for (uint32_t m = 0; m < stage->member_count; m++) {
            window += choice->members[stage->member_first + m].window;
            choice->members[stage->member_first + m].state_share = 1;
        }
        window = window < plan->micro_batch_count ? window : plan->micro_batch_count;
        for (uint32_t m = 0; m < stage->member_count; m++)
            choice->members[stage->member_first + m].window = window;
    }
    if (result == 0)
        result = dealt_read(plan, choice, err);
    if (result < 0)
        choice_fini(choice);
    return result;
}

int from_plan_choice(const struct problem *problem, const struct plan *plan, struct place_choice *choice,
                     struct err *err)
{
    const struct placement *placement = placement_find(plan->placement);
    if (!placement)
        return err_set(err, ERR_INVALID, "%s is not built", plan_placement_name(plan->placement));
    return placement->from_plan ? placement->from_plan(problem, plan, choice, err)
                                : choice_from_plan(problem, plan, choice, err);
}
