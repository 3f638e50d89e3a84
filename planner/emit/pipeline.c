/* Makes plans of pipelines whose stages are one rank or several replicas: assignment, memory, slots.
 * planner/schedule decides the order of work, pipeline_program.c makes instructions, and pipeline_state.c
 * shards weights and optimiser state. */
#include "planner/emit/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/emit/pipeline_private.h"

/* --- memory and prices of one member --- */

static uint32_t rows_bound(const struct problem *problem, const struct candidate *candidate)
{
    uint32_t rows = candidate->micro_batch_rows, batch = problem->workload->batch_rows;
    return rows < batch ? rows : batch;
}

/* Adds a member's shard of the state that is not in the stages' own memory, over all ranges of blocks of the
 * member. Stage s has the first of these ranges. */
static void laps_kept_add(const struct problem *problem, const struct candidate *candidate, uint32_t s,
                          struct flat_share share, struct memory_need *need)
{
    enum memory_outside outside = state_outside(problem, candidate, s);
    uint32_t groups = candidate_groups(candidate), last = s + (candidate_laps(candidate) - 1) * groups;
    struct plan_range span = {candidate->stages[s].block_begin, candidate->stages[last].block_end};
    struct memory_kept kept = {0};
    for (; s <= last && share.end > share.begin; s += groups)
        memory_kept_add(problem, outside, share, candidate->stages[s].block_begin,
                        candidate->stages[s].block_end, span, &kept);
    memory_kept_put(outside, &kept, need);
}

void pipeline_member_need(const struct problem *problem, const struct candidate *candidate, uint32_t s,
                          uint32_t member, struct flat_share kept, uint32_t window, uint32_t boundary_buffers,
                          struct memory_need *need)
{
    const struct candidate_stage *stage = &candidate->stages[s];
    const struct member *m = &candidate->members[member];
    enum memory_outside outside = state_outside(problem, candidate, s);
    struct memory_stage range = {.block_begin = stage->block_begin,
                                 .block_end = candidate_stage_end(candidate, s),
                                 .window = window,
                                 .micro_batch_rows = rows_bound(problem, candidate),
                                 .recompute = m->recompute,
                                 .recompute_end = m->recompute_end,
                                 .split = candidate->schedule == SCHEDULE_SPLIT,
                                 .boundary_buffers = boundary_buffers};
    if (outside != OUTSIDE_NONE) { /* gathered weights and unreduced gradients take buffers, and those of a
                                      tied embedding's table take further ones */
        struct state_ring rings[RINGS];
        int32_t apart = outside == OUTSIDE_TRAINED && s == 0 && state_table_apart(problem, candidate);
        uint64_t table = memory_trained_bytes(problem, 0, apart),
                 rest = memory_trained_bytes(problem, stage->block_begin + apart, stage->block_end);
        range.outside = outside;
        range.kept = candidate_laps(candidate) == 1 ? kept : (struct flat_share){0};
        range.buffer_bytes = 2 * footprint_counted(table);
        if (!candidate_gathers(candidate))
            range.buffer_bytes +=
                2 * footprint_counted(rest); /* weights and gradients of all blocks at once */
        else if (s < candidate_groups(candidate))
            range.buffer_bytes += state_rings(problem, candidate, s, rings);
    }
    memory_stage_need(problem, &range, need);
    if (outside != OUTSIDE_NONE && candidate_laps(candidate) > 1 && s < candidate_groups(candidate))
        laps_kept_add(problem, candidate, s, kept, need);
}

/* Adds one stage's memory to its member's. All purposes are summed except the workspace, which the stages of
 * a member share. *sum is zeros at first. */
static void pipeline_need_add(struct memory_need *sum, const struct memory_need *more)
{
    uint64_t again = more->work_bytes < sum->work_bytes ? more->work_bytes : sum->work_bytes;
    for (int p = 0; p < PURPOSE_COUNT; p++)
        sum->purpose[p] += more->purpose[p];
    sum->purpose[PURPOSE_BUFFERS] -= again;
    sum->total += more->total - again;
    sum->cache_bytes += more->cache_bytes;
    sum->host_bytes += more->host_bytes;
    sum->kept_values += more->kept_values;
    sum->work_bytes += more->work_bytes - again;
}

/* Adds the seconds of the layer that a stage shares with the next one to the stage's mean micro-batch, for
 * the micro-batches for which the stage runs that layer. Subtracts those of its first layer for the
 * micro-batches for which the previous stage runs it. */
static void shared_price_add(const struct problem *problem, const struct candidate *candidate, uint32_t s,
                             const struct micro_cost *cost, struct stage_price *price)
{
    const struct candidate_stage *stage = &candidate->stages[s];
    int32_t again = member_again_end(&candidate->members[stage->member_first]);
    double count = micro_count(problem, candidate->micro_batch_rows);
    double own = candidate_next_count(candidate, (int32_t)s) / count;
    double before = candidate_next_count(candidate, (int32_t)s - 1) / count;
    int32_t first = stage->block_begin, next = stage->block_end;
    if (own > 0) {
        price->next_s[0] = micro_forward(problem, cost, next, next + 1);
        price->next_s[1] = micro_backward_again(problem, cost, next, next + 1, again);
    }
    if (before > 0) {
        price->first_s[0] = micro_forward(problem, cost, first, first + 1);
        price->first_s[1] = micro_backward_again(problem, cost, first, first + 1, again);
    }
    price->forward_s += own * price->next_s[0] - before * price->first_s[0];
    price->backward_s += own * price->next_s[1] - before * price->first_s[1];
}

void pipeline_stage_price(const struct problem *problem, const struct candidate *candidate, uint32_t s,
                          uint32_t member, struct stage_price *price)
{
    const struct candidate_stage *stage = &candidate->stages[s];
    const struct member *m = &candidate->members[member];
    struct cost_load load = micro_load_mean(problem, micro_count(problem, candidate->micro_batch_rows));
    struct micro_cost cost;
    if (m->count) { /* in data plans a member's micro-batches have a size of their own */
        load = problem_mean_rows(problem, m->rows);
        micro_cost_load(&cost, problem, m->device, &load);
    } else {
        micro_cost_init(&cost, problem, m->device, candidate->micro_batch_rows);
    }
    *price =
        (struct stage_price){.forward_s = micro_forward(problem, &cost, stage->block_begin, stage->block_end),
                             .backward_s = micro_backward_again(problem, &cost, stage->block_begin,
                                                                stage->block_end, member_again_end(m))};
    shared_price_add(problem, candidate, s, &cost, price);
    if (candidate->schedule != SCHEDULE_SPLIT)
        return;
    price->weight_s = micro_weight_share(problem, stage->block_begin, stage->block_end, &load) *
                      micro_backward(problem, &cost, stage->block_begin, stage->block_end, false);
    price->backward_s -= price->weight_s;
}

/* --- slots --- */

/* Returns the ring of a kind of boundary tensor (enum boundary). */
static const struct schedule_ring *pipeline_ring_of(const struct schedule_rings *rings, int boundary)
{
    const struct schedule_ring *const of[BOUNDARIES] = {&rings->activations, &rings->returning,
                                                        &rings->leaving, &rings->gradients};
    return of[boundary];
}

/* Returns the bytes per token of a kind of boundary tensor of stage `stage`. Where two stages share a layer,
 * a micro-batch crosses in front of it or behind it. */
static double boundary_width(const struct pipeline_emitter *c, uint32_t stage, int boundary)
{
    bool enters = boundary == ACT_IN || boundary == GRAD_OUT;
    uint32_t behind = enters ? stage : stage + 1;
    if (behind == 0 || behind >= c->stages)
        return c->problem->bytes_per_token;
    return problem_boundary_width(c->problem, c->candidate->stages[behind].block_begin,
                                  candidate_stage_end(c->candidate, behind - 1),
                                  boundary == GRAD_OUT || boundary == GRAD_IN);
}

/* Returns the bytes per row of a kind of boundary tensor: the sums of the load-balancing loss, of which half
 * travel back. */
static double boundary_row(const struct pipeline_emitter *c, int boundary)
{
    return c->problem->bytes_per_row / (boundary == ACT_IN || boundary == ACT_OUT ? 1 : 2);
}

static void stage_slots(struct pipeline_emitter *c, struct plan_rank *rank, uint32_t stage)
{
    struct rank_stage *part = &c->parts[stage];
    for (int i = 0; i < BOUNDARIES; i++) {
        const struct schedule_ring *ring = pipeline_ring_of(&part->rings, i);
        bool activation = i == ACT_IN || i == ACT_OUT;
        double each = boundary_width(c, stage, i), row = boundary_row(c, i);
        uint64_t bound = (uint64_t)(each * c->plan->tokens_bound + row * c->plan->rows_bound);
        part->track[i] = (struct ring_track){.ring = ring->ring, .held = ring->held};
        part->slot[i] = PLAN_NONE;
        if (ring->ring == 0)
            continue;
        struct plan_slot slot = {.kind = activation ? SLOT_ACTIVATION : SLOT_GRADIENT,
                                 .place = SLOT_ON_DEVICE,
                                 .lifetime = SLOT_FOR_INSTRUCTIONS,
                                 .purpose = PURPOSE_BUFFERS,
                                 .dtype = (uint8_t)c->problem->workload->boundary,
                                 .ring_micro_batches = ring->ring,
                                 .ring_blocks = 1,
                                 .bytes_per_token = each,
                                 .bytes_per_row = row,
                                 .bytes_bound = bound,
                                 .bytes_total = bound * ring->held};
        part->slot[i] = plan_rank_slot(rank, &slot);
    }
    struct plan_slot saved = {.kind = SLOT_SAVED,
                              .place = SLOT_ON_DEVICE,
                              .lifetime = SLOT_FOR_INSTRUCTIONS,
                              .purpose = PURPOSE_ACTIVATIONS,
                              .ring_micro_batches = part->rings.saved.ring,
                              .ring_blocks = 1,
                              .block_begin = c->candidate->stages[stage].block_begin,
                              .block_end = candidate_stage_end(c->candidate, stage),
                              .bytes_fixed = part->saved_bytes,
                              .bytes_bound = part->saved_bytes,
                              .bytes_total = part->saved_total};
    part->saved = plan_rank_slot(rank, &saved);
}

/* Returns the bytes of the gradients that the rank's optimiser step uses, at most as many as its values take.
 */
static uint64_t gradient_bytes(const struct pipeline_emitter *c, uint32_t r, uint64_t kept)
{
    uint64_t bytes = 0;
    if (!c->full || (c->shards && stage_of(c, r)->member_count > 1))
        return kept / 2;
    for (uint32_t s = c->first_stage[r]; s < c->stages; s = c->next_stage[s])
        bytes += memory_gradient_bytes(c->problem, c->candidate->stages[s].block_begin,
                                       candidate_stage_end(c->candidate, s));
    return bytes < kept ? bytes : kept;
}

static int pipeline_slots_fill(struct pipeline_emitter *c, uint32_t r, const struct memory_need *need)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    uint64_t kept = need->purpose[PURPOSE_ADAPTERS];
    c->gradients = c->cache = c->token = PLAN_NONE;
    for (uint32_t s = c->first_stage[r]; s < c->stages; s = c->next_stage[s])
        stage_slots(c, rank, s);
    c->scalars = plan_rank_fixed_slot(rank, SLOT_STEP_SCALARS, SLOT_FOR_STEP, PURPOSE_BUFFERS,
                                      sizeof(struct plan_step_scalars));
    c->norm = plan_rank_fixed_slot(rank, SLOT_NORM_SCALAR, SLOT_FOR_STEP, PURPOSE_BUFFERS, sizeof(double));
    c->barrier = plan_rank_fixed_slot(rank, SLOT_BARRIER, SLOT_FOR_STEP, PURPOSE_BUFFERS, sizeof(double));
    if (c->full || c->table_group >= 0 || stage_of(c, r)->member_count > 1 ||
        state_layer_group(c, rank->stage) >= 0 || state_layer_group(c, rank->stage - 1) >= 0)
        c->gradients = plan_rank_fixed_slot(rank, SLOT_GRADIENTS, SLOT_FOR_RUN, PURPOSE_ADAPTERS,
                                            gradient_bytes(c, r, kept));
    /* A rank without layers has an empty cache, but takes part in sampling. */
    if (c->problem->workload->sample_tokens) {
        c->cache =
            plan_rank_fixed_slot(rank, SLOT_KV_CACHE, SLOT_FOR_RUN, PURPOSE_BUFFERS, need->cache_bytes);
        c->token = plan_rank_fixed_slot(rank, SLOT_TOKEN, SLOT_FOR_STEP, PURPOSE_BUFFERS, sizeof(int32_t));
    }
    return plan_rank_slots_made(rank, c->err) < 0 ? -1 : state_slots(c, r, need);
}

/* --- ranks --- */

/* Returns the counted bytes of a boundary tensor. */
static uint64_t boundary_counted(const struct pipeline_emitter *c, uint32_t stage, int boundary)
{
    uint32_t rows = rows_bound(c->problem, c->candidate);
    return footprint_counted(
        (uint64_t)(boundary_width(c, stage, boundary) * problem_tokens_bound(c->problem, rows) +
                   boundary_row(c, boundary) * rows));
}

/* Computes the depth of the rings of a rank's boundary slots, and the rank's memory with the shard `kept` of
 * its stage's state. */
static int rank_look(struct pipeline_emitter *c, uint32_t r, struct flat_share kept, struct memory_need *need)
{
    *need = (struct memory_need){0};
    for (uint32_t s = c->first_stage[r]; s < c->stages; s = c->next_stage[s]) {
        struct rank_stage *part = &c->parts[s];
        struct memory_need own;
        uint32_t buffers = 0;
        if (schedule_rings(&c->schedule, c->candidate, s, r, &part->rings, c->err) < 0)
            return -1;
        for (int i = 0; i < BOUNDARIES; i++)
            buffers += pipeline_ring_of(&part->rings, i)->held;
        pipeline_member_need(c->problem, c->candidate, s, r, kept, part->rings.saved.held, buffers, &own);
        uint64_t less = 0;
        for (int i = 0; i < BOUNDARIES; i++)
            less +=
                pipeline_ring_of(&part->rings, i)->held * (own.boundary_bytes - boundary_counted(c, s, i));
        own.purpose[PURPOSE_BUFFERS] -= less;
        own.total -= less;
        part->saved_bytes = own.saved_bytes;
        part->saved_total = own.purpose[PURPOSE_ACTIVATIONS];
        pipeline_need_add(need, &own);
    }
    return 0;
}

/* Fills stage, blocks and rows of a rank. */
static int rank_assign(struct pipeline_emitter *c, uint32_t r)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    uint32_t first = c->first_stage[r], ranges = 0, live = 0;
    for (uint32_t s = first; s < c->stages; s = c->next_stage[s], ranges++)
        rank->block_end = candidate_stage_end(c->candidate, s);
    rank->stage = (int32_t)first;
    rank->block_begin = c->candidate->stages[first].block_begin;
    if (ranges > 1) {
        rank->ranges = calloc(ranges, sizeof(*rank->ranges));
        if (!rank->ranges)
            return err_set(c->err, ERR_NOMEM, "planner: out of memory");
        for (uint32_t s = first; s < c->stages; s = c->next_stage[s])
            rank->ranges[rank->range_count++] =
                (struct plan_range){c->candidate->stages[s].block_begin, c->candidate->stages[s].block_end};
    }
    for (uint32_t k = 0; k < c->micro_batches; k++)
        if (owner_of(c, first, k) == r)
            rank->rows += c->plan->micro_batch_start[k + 1] - c->plan->micro_batch_start[k];
    rank->rows_share = (double)rank->rows / c->plan->batch_rows;
    for (uint32_t i = c->schedule.first[r]; i < c->schedule.first[r + 1]; i++) {
        enum schedule_kind kind = c->schedule.events[i].kind;
        live += kind == EVENT_FORWARD;
        live -= kind == EVENT_BACKWARD || kind == EVENT_INPUT;
        rank->window = live > rank->window ? live : rank->window;
    }
    return rank->rows > 0 ? 0
                          : err_set(c->err, ERR_INVALID, "planner: a member would never have a micro-batch");
}

static double pipeline_state_share(const struct pipeline_emitter *c, uint32_t r)
{
    uint64_t mine = 0, all = memory_trained(c->problem, 0, c->problem->block_count);
    if ((c->grouped && !c->shards) || all == 0)
        return 1;
    for (uint32_t s = c->first_stage[r]; s < c->stages; s = c->next_stage[s])
        mine += memory_trained(c->problem, c->candidate->stages[s].block_begin,
                               candidate_stage_end(c->candidate, s));
    return state_share_of(c, r) * (double)mine / (double)all;
}

static int pipeline_rank_emit(struct pipeline_emitter *c, uint32_t r)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    struct memory_need need;
    if (rank_assign(c, r) < 0 || rank_look(c, r, state_part_of(c, r), &need) < 0)
        return -1;
    rank->state_share = pipeline_state_share(c, r);
    if (plan_rank_fill(rank, c->problem, &c->candidate->members[r], &need, c->err) < 0 ||
        pipeline_slots_fill(c, r, &need) < 0)
        return -1;
    return c->programs == EMIT_NO_PROGRAMS ? 0 : pipeline_programs(c, r);
}

/* --- the plan --- */

/* Shards each stage's state in proportion to the memory that its members have left. */
static int pipeline_shares_fill(struct pipeline_emitter *c)
{
    double *room = arena_get(&c->arena, c->candidate->member_count, sizeof(*room));
    if (!room)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t s = 0; s < c->groups; s++) {
        const struct candidate_stage *stage = &c->candidate->stages[s];
        if (stage->member_count < 2)
            continue;
        for (uint32_t m = 0; m < stage->member_count; m++) {
            uint32_t r = stage->member_first + m, d = c->candidate->members[r].device;
            struct memory_need need;
            if (rank_look(c, r, (struct flat_share){0}, &need) < 0)
                return -1;
            room[m] = (double)c->problem->cluster->devices[d].memory_limit_bytes - (double)need.total;
        }
        if (state_share_out(c, s, room) < 0)
            return -1;
    }
    return 0;
}

static int schedule_make(struct pipeline_emitter *c)
{
    const struct candidate *candidate = c->candidate;
    uint32_t laps = c->stages / c->groups;
    struct stage_price *prices =
        arena_get(&c->arena, (size_t)laps * candidate->member_count, sizeof(*prices));
    struct pipeline_sync *syncs = arena_get(&c->arena, c->stages, sizeof(*syncs));
    if (c->arena.failed)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    if (pipeline_syncs(c->problem, candidate, syncs, c->err) < 0)
        return -1;
    for (uint32_t s = 0, at = 0; s < c->stages; s++) {
        for (uint32_t m = 0; m < candidate->stages[s].member_count; m++, at++) {
            pipeline_stage_price(c->problem, candidate, s, candidate->stages[s].member_first + m,
                                 &prices[at]);
            prices[at].ready_s = syncs[s].before_s;
        }
    }
    return schedule_run(&c->schedule, c->problem, candidate, prices, c->micro_batches, INFINITY, c->err);
}

/* Allocates the emitter's arrays and lists each rank's stages. */
static int room_make(struct pipeline_emitter *c)
{
    uint32_t ranks = c->plan->rank_count, laps = c->stages / c->groups;
    ARENA_ARRAY(&c->arena, c->first_stage, ranks);
    ARENA_ARRAY(&c->arena, c->next_stage, c->stages);
    ARENA_ARRAY(&c->arena, c->cursor, ranks);
    ARENA_ARRAY(&c->arena, c->parts, c->stages);
    ARENA_ARRAY(&c->arena, c->numbers, pipeline_numbers(c, laps));
    ARENA_ARRAY(&c->arena, c->freed, state_freed_count(c));
    if (c->arena.failed)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < ranks; r++)
        c->first_stage[r] = c->stages;
    for (uint32_t s = c->stages; s-- > 0;) {
        const struct candidate_stage *stage = &c->candidate->stages[s];
        c->next_stage[s] = c->first_stage[stage->member_first];
        for (uint32_t m = 0; m < stage->member_count; m++)
            c->first_stage[stage->member_first + m] = s;
    }
    return 0;
}

/* Records the schedule's name: 1F1B whose windows contain all micro-batches is GPipe. */
static void schedule_note(const struct pipeline_emitter *c)
{
    enum plan_schedule schedule = c->candidate->schedule;
    bool turns = schedule == SCHEDULE_1F1B || schedule == SCHEDULE_GPIPE;
    bool all = c->micro_batches > 1 && c->stages > 1;
    for (uint32_t m = 0; m < c->candidate->member_count; m++)
        all = all && c->candidate->members[m].window >= c->micro_batches;
    c->plan->schedule = !turns ? schedule : all ? SCHEDULE_GPIPE : SCHEDULE_1F1B;
}

static int pipeline_plan_fill(struct pipeline_emitter *c)
{
    int result = plan_rows_fill(c->plan, c->candidate, c->err);
    plan_frame_fill(c->plan, c->problem, c->candidate);
    c->plan->trains_embedding = memory_trains_table(c->problem);
    c->micro_batches = c->plan->micro_batch_count;
    if (result == 0 && c->plan->rows_bound > c->candidate->micro_batch_rows)
        result =
            err_set(c->err, ERR_INTERNAL, "planner: a micro-batch of %u rows, the largest of which has %u",
                    c->plan->rows_bound, c->candidate->micro_batch_rows);
    if (result == 0)
        result = room_make(c);
    if (result == 0)
        result = schedule_make(c);
    if (result == 0)
        result = state_groups(c);
    if (result == 0 && (c->shards || c->gathers))
        result = pipeline_shares_fill(c);
    if (result == 0)
        result = state_table_shares(c);
    for (uint32_t r = 0; r < c->plan->rank_count && result == 0; r++)
        result = pipeline_rank_emit(c, r);
    if (result == 0)
        schedule_note(c);
    return result;
}

bool pipeline_halves_fit(const struct candidate *candidate)
{
    bool again = false;
    for (uint32_t m = 0; m < candidate->member_count; m++)
        again |= candidate->members[m].recompute;
    return candidate->schedule != SCHEDULE_SPLIT || !again;
}

bool pipeline_layers_fit(const struct problem *problem, const struct candidate *candidate)
{
    uint32_t last = candidate->stage_count - 1, count = micro_count(problem, candidate->micro_batch_rows);
    if (candidate->schedule != SCHEDULE_1F1B || candidate->member_count != candidate->stage_count ||
        problem->workload->router_loss)
        return false;
    for (uint32_t s = 0; s < last; s++) { /* the embedding and the head are not shared */
        const struct candidate_stage *next = &candidate->stages[s + 1];
        uint32_t shared = candidate_next_count(candidate, (int32_t)s);
        if (shared > 0 && (shared >= count || next->block_begin + 1 >= next->block_end ||
                           next->block_begin < 1 || next->block_begin > problem->block_count - 2))
            return false;
    }
    return candidate_next_count(candidate, (int32_t)last) == 0;
}

struct plan *pipeline_emit(const struct problem *problem, const struct candidate *candidate,
                           enum emit_programs programs, struct err *err)
{
    uint32_t layers = 0, laps_groups = candidate_groups(candidate);
    bool apart = state_table_apart(problem, candidate), grouped = candidate->member_count > laps_groups;
    for (uint32_t s = 0; s < candidate->stage_count; s++)
        layers += candidate_next_count(candidate, (int32_t)s) > 0;
    if (layers > 0 && !pipeline_layers_fit(problem, candidate)) {
        err_set(err, ERR_UNSUPPORTED, "planner: a layer shared by two stages with this order or loss");
        return NULL;
    }
    if (!pipeline_halves_fit(candidate)) {
        err_set(err, ERR_UNSUPPORTED, "planner: a backward in halves with recomputation");
        return NULL;
    }
    if (candidate_gathers(candidate) && candidate->schedule != SCHEDULE_INTERLEAVED) {
        err_set(err, ERR_UNSUPPORTED,
                "planner: weights gathered range by range in groups that do not interleave");
        return NULL;
    }
    bool shards = grouped && !state_whole(problem, candidate);
    uint32_t groups = 1 + (grouped ? laps_groups + 1 : 0) + apart + (apart && grouped && !shards) + layers;
    struct plan *plan = plan_create(candidate->member_count, groups, problem->workload->batch_rows,
                                    candidate->micro_batch_rows, err);
    if (!plan)
        return NULL;
    struct pipeline_emitter c = {.problem = problem,
                                 .candidate = candidate,
                                 .plan = plan,
                                 .err = err,
                                 .programs = programs,
                                 .stages = candidate->stage_count,
                                 .groups = laps_groups,
                                 .gathers = grouped && candidate_gathers(candidate) &&
                                            (shards || problem->workload->method == METHOD_LORA),
                                 .full = problem->workload->method == METHOD_FULL,
                                 .grouped = grouped,
                                 .shards = shards,
                                 .table_group =
                                     apart ? 1 + (grouped ? (int32_t)laps_groups + 1 : 0) : PLAN_NONE,
                                 .table_sum = apart && grouped && !shards ? (int32_t)groups - 1 : PLAN_NONE,
                                 .layer_groups = (int32_t)(groups - layers)};
    int result = pipeline_plan_fill(&c);
    schedule_fini(&c.schedule);
    arena_fini(&c.arena);
    return plan_emitted(plan, result);
}
