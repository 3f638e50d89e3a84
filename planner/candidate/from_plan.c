/* Converts a plan into a candidate, and prices an existing plan again. */
#include "planner/candidate/from_plan.h"

#include <stdlib.h>
#include <string.h>

#include "planner/cost/price.h"
#include "program/check/check.h"
#include "program/codec.h"

/* Returns the index of the rank's device, or UINT32_MAX with the reason: the device is gone or excluded. */
static uint32_t rank_device(const struct problem *p, const struct plan_rank *rank, struct err *err)
{
    uint32_t device = cluster_device_find(p->cluster, rank->device);
    if (device == UINT32_MAX)
        err_set(err, ERR_INVALID, "%s is no longer there", rank->device);
    else if (!p->usable[device])
        err_set(err, ERR_INVALID, "%s is not to be used: %s", rank->device, problem_why_unusable(p, device));
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
    if (w->method == METHOD_FULL ? !plan->trains_embedding : plan->trains_embedding && !w->saves_embedding)
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
    /* One micro-batch is in the order of GPipe and of 1F1B. */
    const bool either =
        plan->micro_batch_count == 1 && plan->schedule <= SCHEDULE_GPIPE && w->order <= SCHEDULE_GPIPE + 1;
    if (w->order && stages > 1 && !either && w->order - 1 != (uint32_t)plan->schedule)
        return err_set(err, ERR_INVALID, "its schedule is %s, %s is asked for",
                       plan_schedule_name(plan->schedule),
                       plan_schedule_name((enum plan_schedule)(w->order - 1)));
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

/* Returns the number of micro-batches that a rank works on: the forwards of the first block it has, or,
 * without programs, its rows divided by the micro-batch's rows. */
static uint32_t rank_micro_batches(const struct plan *plan, const struct plan_rank *rank)
{
    const struct program *program = &rank->programs[PROGRAM_TRAIN];
    uint32_t count = 0;
    for (uint32_t i = 0; i < program->instr_count; i++)
        count +=
            program->instrs[i].op == INSTR_FORWARD && program->instrs[i].block_begin == rank->block_begin;
    if (count == 0 && plan->rows_bound > 0)
        count = (rank->rows + plan->rows_bound - 1) / plan->rows_bound;
    return count ? count : 1;
}

/* Reads rows and counts of a plan of one stage, whose members take consecutive micro-batches of one size
 * each. */
static int members_rows(const struct plan *plan, struct candidate *c, struct err *err)
{
    uint32_t k = 0;
    for (uint32_t m = 0; m < c->member_count; m++) {
        struct member *member = &c->members[m];
        uint32_t taken = 0;
        member->count = 0;
        while (k < plan->micro_batch_count && taken < plan->ranks[m].rows) {
            uint32_t rows = plan->micro_batch_start[k + 1] - plan->micro_batch_start[k];
            if (member->count && rows != member->rows)
                return err_set(err, ERR_INVALID, "its rank %u takes micro-batches of unlike sizes", m);
            member->rows = rows;
            member->count++;
            taken += rows;
            k++;
        }
        if (taken != plan->ranks[m].rows || taken == 0)
            return err_set(err, ERR_INVALID, "its rank %u takes %u rows, its micro-batches hold %u", m,
                           plan->ranks[m].rows, taken);
    }
    return 0;
}

/* Returns by how many micro-batches BACKWARD_WEIGHT comes later in a split backward. */
static uint32_t rank_delay(const struct plan_rank *rank)
{
    const struct program *program = &rank->programs[PROGRAM_TRAIN];
    uint32_t open = 0, most = 0;
    for (uint32_t i = 0; i < program->instr_count; i++) {
        open += program->instrs[i].op == INSTR_BACKWARD_INPUT;
        most = open > most ? open : most;
        open -= program->instrs[i].op == INSTR_BACKWARD_WEIGHT && open > 0;
    }
    return most > 0 ? most - 1 : 0;
}

static int from_plan_member_read(const struct problem *p, const struct plan *plan, uint32_t r,
                                 struct candidate *c, struct err *err)
{
    const struct plan_rank *rank = &plan->ranks[r];
    uint32_t device = rank_device(p, rank, err);
    if (device == UINT32_MAX)
        return -1;
    c->members[r] = (struct member){.device = device,
                                    .rows = plan->micro_batch_start[1] - plan->micro_batch_start[0],
                                    .count = rank_micro_batches(plan, rank),
                                    .state_share = rank->state_share,
                                    .window = rank->window,
                                    .delay = plan->schedule == SCHEDULE_SPLIT ? rank_delay(rank) : 0,
                                    .recompute = rank->recompute,
                                    .recompute_end = rank->recompute_end};
    return 0;
}

/* Reads the lap-th range of blocks of every rank of an interleaved plan as stages; ranks with an equal
 * `stage` are the members of one. */
static int lap_read(const struct plan *plan, uint32_t lap, struct candidate *c, struct err *err)
{
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        const struct plan_range *range = &rank->ranges[lap];
        struct candidate_stage *last = c->stage_count ? &c->stages[c->stage_count - 1] : NULL;
        int32_t end = last ? last->block_end : 0;
        bool joins = last && r > 0 && rank->stage == plan->ranks[r - 1].stage;
        if (rank->range_count != plan->ranks[0].range_count ||
            (joins ? range->begin != last->block_begin || range->end != end : range->begin != end))
            return err_set(err, ERR_INVALID, "its ranges do not go round its ranks");
        if (joins)
            last->member_count++;
        else
            c->stages[c->stage_count++] =
                (struct candidate_stage){range->begin, range->end, STAGE_REPLICAS, r, 1};
    }
    return 0;
}

/* Returns how many layers' weights an interleaved rank has room for at a time; 0: the rank keeps the weights
 * of all its layers. */
static uint32_t gathered_layers(const struct plan_rank *rank)
{
    uint32_t most = 0;
    for (uint32_t s = 0; s < rank->slot_count; s++)
        if (rank->slots[s].kind == SLOT_GATHERED && rank->slots[s].ring_blocks > most &&
            rank->slots[s].block_end > 1)
            most = rank->slots[s].ring_blocks;
    return most;
}

/* Reads the stages of an interleaved plan: the ranks' (or groups of ranks') first ranges of blocks in turn,
 * then their second ranges, and so on. */
static int from_plan_ranges_read(const struct problem *p, const struct plan *plan, struct candidate *c,
                                 struct err *err)
{
    for (uint32_t lap = 0; lap < plan->ranks[0].range_count; lap++)
        if (lap_read(plan, lap, c, err) < 0)
            return -1;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        uint32_t layers = gathered_layers(&plan->ranks[r]);
        if (from_plan_member_read(p, plan, r, c, err) < 0)
            return -1;
        c->gathered_layers =
            plan->placement == PLACE_HYBRID && layers > c->gathered_layers ? layers : c->gathered_layers;
    }
    return c->stage_count > 0 && c->stages[c->stage_count - 1].block_end == p->block_count
               ? 0
               : err_set(err, ERR_INVALID, "its ranks do not hold all blocks");
}

/* If a rank's first layer is also the last one of the stage before, the two stages share the layer; sets
 * next_count to the number of micro-batches for which the earlier stage has a FORWARD of it. */
static void layer_read(const struct plan *plan, uint32_t r, struct candidate *c)
{
    struct candidate_stage *before = &c->stages[c->stage_count - 1];
    const struct plan_rank *rank = &plan->ranks[r - 1];
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    if (plan->ranks[r].block_begin != before->block_end - 1)
        return;
    before->block_end--;
    for (uint32_t i = 0; i < train->instr_count; i++)
        c->members[r - 1].next_count +=
            train->instrs[i].op == INSTR_FORWARD && train->instrs[i].block_end == rank->block_end;
}

static int from_plan_stages_read(const struct problem *p, const struct plan *plan, struct candidate *c,
                                 struct err *err)
{
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        const struct plan_rank *rank = &plan->ranks[r];
        struct candidate_stage *last = c->stage_count ? &c->stages[c->stage_count - 1] : NULL;
        if (from_plan_member_read(p, plan, r, c, err) < 0)
            return -1;
        if (last && plan->placement == PLACE_PIPELINE)
            layer_read(plan, r, c);
        if (last && rank->stage == plan->ranks[r - 1].stage && rank->block_begin == last->block_begin &&
            rank->block_end == last->block_end) {
            last->member_count++;
        } else if (rank->block_begin == (last ? last->block_end : 0) && rank->block_end > rank->block_begin) {
            c->stages[c->stage_count++] = (struct candidate_stage){.block_begin = rank->block_begin,
                                                                   .block_end = rank->block_end,
                                                                   .member_first = r,
                                                                   .member_count = 1};
        } else {
            return err_set(err, ERR_INVALID, "its ranks do not stand in the order of its stages");
        }
    }
    if (c->stages[c->stage_count - 1].block_end != p->block_count)
        return err_set(err, ERR_INVALID, "its ranks do not hold all blocks");
    return 0;
}

/* Reads which member works on which micro-batch of a pipeline of groups, from the forwards of the
 * programs. */
static int owners_read(const struct plan *plan, struct candidate *c, struct err *err)
{
    uint32_t count = plan->micro_batch_count, found = 0;
    if (candidate_own(c, count, err) < 0)
        return -1;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        const struct candidate_stage *stage = &c->stages[s];
        for (uint32_t m = 0; m < stage->member_count; m++) {
            const struct program *program = &plan->ranks[stage->member_first + m].programs[PROGRAM_TRAIN];
            for (uint32_t i = 0; i < program->instr_count; i++) {
                const struct instr *x = &program->instrs[i];
                if (x->op != INSTR_FORWARD || x->micro_batch < 0 || (uint32_t)x->micro_batch >= count ||
                    x->block_begin < stage->block_begin || x->block_begin >= stage->block_end)
                    continue;
                c->owner[s * count + (uint32_t)x->micro_batch] = (uint8_t)m;
                found++;
            }
        }
    }
    if (found != c->owner_count)
        c->owner_count = 0;
    return 0;
}

/* Whether the members of some stage shard its state; groups 1 to `stages` of the plan are the stages'
 * members. */
static bool shares_state(const struct plan *plan, uint32_t stages)
{
    bool any = false;
    for (uint32_t g = 1; g <= stages && g < plan->group_count; g++)
        any |= plan->groups[g].rank_count > 1 && plan->groups[g].shares;
    return any;
}

int candidate_from_plan(const struct problem *p, const struct plan *plan, struct candidate *c,
                        struct err *err)
{
    *c = (struct candidate){
        .placement = plan->placement, .micro_batch_rows = plan->rows_bound, .estimate_s = plan->costs.step_s};
    bool turns = plan->schedule == SCHEDULE_1F1B || plan->schedule == SCHEDULE_GPIPE,
         round = plan->schedule == SCHEDULE_INTERLEAVED;
    uint32_t stages = plan->rank_count * (round ? plan->ranks[0].range_count : 1);
    if (candidate_reserve(c, stages, plan->rank_count, err) < 0)
        return -1;
    c->schedule = turns ? SCHEDULE_1F1B : plan->schedule;
    c->member_count = plan->rank_count;
    int result = round ? from_plan_ranges_read(p, plan, c, err) : from_plan_stages_read(p, plan, c, err);
    if (result == 0 && c->stage_count == 1 && c->member_count > 1)
        result = members_rows(plan, c, err);
    bool groups = result == 0 && c->stage_count > 1 && c->member_count > candidate_groups(c);
    if (groups) {
        c->eager = !round;
        result = owners_read(plan, c, err);
    }
    for (uint32_t m = 0; m < c->member_count; m++) {
        if (c->stage_count > 1 || c->member_count == 1)
            c->members[m].count = 0;
        /* A rank's window is at most the number of its own micro-batches. */
        if (plan->schedule == SCHEDULE_GPIPE)
            c->members[m].window = plan->micro_batch_count;
        c->members[m].state_share = 1;
    }
    c->whole = p->workload->method == METHOD_FULL && groups && !shares_state(plan, candidate_groups(c));
    if (result < 0)
        candidate_fini(c);
    return result;
}
