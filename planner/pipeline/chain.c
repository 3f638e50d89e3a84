/* Emitting chains: one rank a stage, or ranks that hold several ranges of blocks (interleaved); who computes
 * what when is pipe_order.h's, the instructions are chain_program.c's. Here: assignment, rings, memory.
 *
 * Windows may say more than there are micro-batches: saved values are kept for those there are, but the
 * difference of neighbours' windows still says how many may be on the link between them. */
#include "planner/pipeline/chain.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/cost/micro.h"
#include "planner/pipeline/chain_private.h"

uint32_t chain_ring(uint32_t w, uint32_t v, uint32_t micro_batches)
{
    uint32_t depth = w > v ? w - v + 1 : 2;
    depth = depth < 2 ? 2 : depth;
    return depth < micro_batches ? depth : micro_batches;
}

uint32_t chain_boundary_buffers(uint32_t stage, uint32_t stage_count, const uint32_t *windows,
                                uint32_t micro_batches)
{
    uint32_t buffers = 0, out = chain_ring_out(micro_batches);
    if (stage > 0)
        buffers += chain_ring(windows[stage - 1], windows[stage], micro_batches) + out;
    if (stage + 1 < stage_count)
        buffers += chain_ring(windows[stage], windows[stage + 1], micro_batches) + out;
    return buffers;
}

uint64_t chain_held_gradients(const struct problem *problem, uint32_t tokens, int32_t begin, int32_t end)
{
    const struct footprint_shape *s = &problem->footprint.shape;
    int32_t first = begin > 1 ? begin : 1,
            last = end < problem->block_count - 1 ? end : problem->block_count - 1;
    uint64_t layers = last > first ? (uint64_t)(last - first) : 0;
    return 4ull * (s->qkv_width + 2 * s->hidden + 2 * s->ffn) * layers * tokens;
}

static int32_t boundary_slot(struct chain *c, struct plan_rank *rank, int kind, uint32_t ring)
{
    uint64_t bound = (uint64_t)(c->problem->bytes_per_token * c->plan->tokens_bound);
    struct plan_slot slot = {.kind = (uint8_t)kind,
                             .place = SLOT_ON_DEVICE,
                             .lifetime = SLOT_FOR_INSTRUCTIONS,
                             .purpose = PURPOSE_BUFFERS,
                             .ring_micro_batches = ring,
                             .ring_blocks = 1,
                             .bytes_per_token = c->problem->bytes_per_token,
                             .bytes_bound = bound,
                             .bytes_total = bound * ring};
    return plan_rank_slot(rank, &slot);
}

/* Split backwards also keep the gradients of every matrix's output from one half to the other. */
static uint64_t held_bytes(const struct chain *c, uint32_t stage)
{
    const struct place_stage *s = &c->choice->stages[stage];
    return c->choice->schedule == SCHEDULE_SPLIT
               ? chain_held_gradients(c->problem, c->plan->tokens_bound, s->block_begin, s->block_end)
               : 0;
}

static uint64_t held_total(const struct chain *c, uint32_t stage)
{
    uint32_t most = c->delays[stage % c->ranks] + 1;
    return held_bytes(c, stage) * (most < c->stage[stage].live ? most : c->stage[stage].live);
}

static int32_t saved_slot(struct chain *c, struct plan_rank *rank, uint32_t stage)
{
    const struct chain_stage *s = &c->stage[stage];
    struct plan_slot slot = {.kind = SLOT_SAVED,
                             .place = SLOT_ON_DEVICE,
                             .lifetime = SLOT_FOR_INSTRUCTIONS,
                             .purpose = PURPOSE_ACTIVATIONS,
                             .ring_micro_batches = s->live,
                             .ring_blocks = 1,
                             .block_begin = c->choice->stages[stage].block_begin,
                             .block_end = c->choice->stages[stage].block_end,
                             .bytes_fixed = s->saved_bytes + held_bytes(c, stage),
                             .bytes_bound = s->saved_bytes + held_bytes(c, stage),
                             .bytes_total = s->saved_bytes * s->live + held_total(c, stage)};
    return plan_rank_slot(rank, &slot);
}

static void stage_slots(struct chain *c, struct plan_rank *rank, uint32_t stage)
{
    struct chain_stage *s = &c->stage[stage];
    uint32_t out = chain_ring_out(c->micro_batches);
    s->act_in = s->act_out = s->grad_in = s->grad_out = PLAN_NONE;
    if (stage > 0) {
        s->act_in = boundary_slot(c, rank, SLOT_ACTIVATION, s->ring_act);
        s->grad_out = boundary_slot(c, rank, SLOT_GRADIENT, out);
    }
    if (stage + 1 < c->stages) {
        s->act_out = boundary_slot(c, rank, SLOT_ACTIVATION, out);
        s->grad_in = boundary_slot(c, rank, SLOT_GRADIENT, s->ring_grad);
    }
    s->saved = saved_slot(c, rank, stage);
}

static int32_t tied_slot(struct chain *c, struct plan_rank *rank, int kind)
{
    int32_t slot = plan_rank_fixed_slot(rank, kind, SLOT_FOR_RUN, SLOT_ON_DEVICE, PURPOSE_BUFFERS,
                                        4 * c->problem->blocks.tied_params);
    if (slot >= 0) {
        rank->slots[slot].purpose = PURPOSE_ADAPTERS;
        rank->slots[slot].block_begin = 0;
        rank->slots[slot].block_end = 1;
    }
    return slot;
}

static int slots_fill(struct chain *c, uint32_t r, uint64_t cache_bytes)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    struct chain_rank *s = &c->slots;
    uint32_t expected = 3;
    memset(s, 0xff, sizeof(*s));
    for (uint32_t j = r; j < c->stages; j += c->ranks) {
        stage_slots(c, rank, j);
        expected += 1 + 2 * (uint32_t)(j > 0) + 2 * (uint32_t)(j + 1 < c->stages);
    }
    s->scalars = plan_rank_fixed_slot(rank, SLOT_STEP_SCALARS, SLOT_FOR_STEP, SLOT_ON_HOST, PURPOSE_BUFFERS,
                                      sizeof(struct plan_step_scalars));
    s->norm = plan_rank_fixed_slot(rank, SLOT_NORM_SCALAR, SLOT_FOR_STEP, SLOT_ON_HOST, PURPOSE_BUFFERS,
                                   sizeof(double));
    s->barrier = plan_rank_fixed_slot(rank, SLOT_BARRIER, SLOT_FOR_STEP, SLOT_ON_HOST, PURPOSE_BUFFERS,
                                      sizeof(double));
    if (c->problem->workload->sample_tokens > 0) { /* a rank without layers has an empty cache: it still takes
                                                      part */
        s->cache = plan_rank_fixed_slot(rank, SLOT_KV_CACHE, SLOT_FOR_RUN, SLOT_ON_DEVICE, PURPOSE_BUFFERS,
                                        cache_bytes);
        s->token = plan_rank_fixed_slot(rank, SLOT_TOKEN, SLOT_FOR_STEP, SLOT_ON_HOST, PURPOSE_BUFFERS,
                                        sizeof(int32_t));
        expected += 2;
    }
    if (c->tied_group >= 0 && plan_group_position(&c->plan->groups[c->tied_group], r) >= 0) {
        s->tied_gradients = tied_slot(c, rank, SLOT_GRADIENTS);
        s->tied_parameters = tied_slot(c, rank, SLOT_PARAMETERS);
        expected += 2;
    }
    return rank->slot_count == expected ? 0 : err_set(c->err, ERR_NOMEM, "planner: out of memory");
}

void chain_range_need(const struct problem *problem, const struct memory_stage *range, uint64_t *shared,
                      struct memory_need *need, uint64_t *saved)
{
    struct memory_stage alone = *range;
    struct memory_need each, bare;
    alone.boundary_buffers = 0;
    memory_stage_need(problem, range, &each);
    memory_stage_need(problem, &alone, &bare);
    *saved = each.saved_bytes;
    uint64_t work = bare.purpose[PURPOSE_BUFFERS] - bare.cache_bytes;
    each.purpose[PURPOSE_BUFFERS] -= work < *shared ? work : *shared;
    *shared = work > *shared ? work : *shared;
    need->total = 0;
    for (int p = 0; p < PURPOSE_COUNT; p++)
        need->total += need->purpose[p] += each.purpose[p];
    need->cache_bytes += each.cache_bytes;
    need->exact = need->exact && each.exact;
}

/* What a rank's stages need together. */
static void rank_need(struct chain *c, uint32_t r, struct memory_need *need)
{
    uint32_t out = chain_ring_out(c->micro_batches);
    uint64_t shared = 0;
    memset(need, 0, sizeof(*need));
    need->exact = c->stages == c->ranks && c->choice->schedule != SCHEDULE_SPLIT;
    for (uint32_t j = r; j < c->stages; j += c->ranks) {
        const struct place_stage *stage = &c->choice->stages[j];
        struct chain_stage *s = &c->stage[j];
        const struct memory_stage range = {.block_begin = stage->block_begin,
                                           .block_end = stage->block_end,
                                           .window = s->live,
                                           .micro_batch_rows = c->plan->rows_bound,
                                           .recompute = c->choice->members[stage->member_first].recompute,
                                           .boundary_buffers = (j > 0 ? s->ring_act + out : 0) +
                                                               (j + 1 < c->stages ? s->ring_grad + out : 0),
                                           .state_share = 1,
                                           .tensor_share = 1};
        chain_range_need(c->problem, &range, &shared, need, &s->saved_bytes);
        uint64_t held = held_total(c, j);
        need->purpose[PURPOSE_ACTIVATIONS] += held;
        need->total += held;
    }
}

static int ranges_fill(struct chain *c, uint32_t r)
{
    struct plan_rank *rank = &c->plan->ranks[r];
    uint32_t laps = c->stages / c->ranks;
    rank->block_begin = c->choice->stages[r].block_begin;
    rank->block_end = c->choice->stages[r + (laps - 1) * c->ranks].block_end;
    if (laps == 1)
        return 0;
    rank->ranges = calloc(laps, sizeof(*rank->ranges));
    if (!rank->ranges)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    rank->range_count = laps;
    for (uint32_t lap = 0; lap < laps; lap++) {
        const struct place_stage *stage = &c->choice->stages[r + lap * c->ranks];
        rank->ranges[lap] = (struct plan_range){stage->block_begin, stage->block_end};
    }
    return 0;
}

static double state_share(const struct chain *c, uint32_t r)
{
    bool full = c->problem->workload->method == METHOD_FULL;
    const struct block_list *list = &c->problem->blocks;
    uint64_t mine = 0, all = full ? list->params : list->lora_params;
    for (uint32_t j = r; j < c->stages; j += c->ranks) {
        for (int32_t b = c->choice->stages[j].block_begin; b < c->choice->stages[j].block_end; b++)
            mine += full ? list->blocks[b].params : list->blocks[b].lora_params;
    }
    return all ? (double)mine / (double)all : 1.0 / c->ranks;
}

static int rank_emit(struct chain *c, uint32_t r, bool programs)
{
    const struct place_member *member = &c->choice->members[c->choice->stages[r].member_first];
    struct plan_rank *rank = &c->plan->ranks[r];
    struct memory_need need;
    uint32_t forwards = c->micro_batches * (c->stages / c->ranks);
    if (ranges_fill(c, r) < 0)
        return -1;
    rank_need(c, r, &need);
    rank->stage = (int32_t)r;
    rank->rows = c->plan->batch_rows;
    rank->rows_share = 1;
    rank->window = c->windows[r] < forwards ? c->windows[r] : forwards;
    rank->state_share = state_share(c, r);
    if (c->tied_group >= 0) {
        rank->owns_tied = rank->block_begin == 0;
        rank->copies_tied = rank->block_end == c->plan->block_count;
    }
    if (plan_rank_fill(rank, c->problem, member, &need, c->err) < 0 || slots_fill(c, r, need.cache_bytes) < 0)
        return -1;
    return programs ? chain_programs(c, r) : 0;
}

/* --- rings --- */

static void parts_fill(const struct chain *c, double *f, double *b)
{
    for (uint32_t j = 0; j < c->stages; j++) {
        const struct place_stage *stage = &c->choice->stages[j];
        const struct place_member *member = &c->choice->members[stage->member_first];
        struct micro_cost cost;
        micro_cost_init(&cost, c->problem, member->device, c->choice->micro_batch_rows);
        for (uint32_t k = 0; k < c->micro_batches; k++) {
            size_t at = (size_t)j * c->micro_batches + k;
            f[at] = micro_forward(c->problem, &cost, stage->block_begin, stage->block_end);
            b[at] =
                micro_backward(c->problem, &cost, stage->block_begin, stage->block_end, member->recompute);
        }
    }
}

void chain_links(const struct problem *problem, const struct place_choice *choice, double *latency_s,
                 double *occupied_s)
{
    double bytes =
        problem->bytes_per_token * problem->mean_step.tokens / micro_count(problem, choice->micro_batch_rows);
    for (uint32_t j = 0; j + 1 < choice->stage_count; j++) {
        double rate;
        bool emulated;
        cluster_link(problem->cluster, choice->members[choice->stages[j].member_first].device,
                     choice->members[choice->stages[j + 1].member_first].device, &latency_s[j], &rate,
                     &emulated);
        occupied_s[j] = bytes / rate;
    }
}

double chain_tied_seconds(const struct problem *problem, uint32_t first, uint32_t last)
{
    double latency, rate, bytes = 4 * (double)problem->blocks.tied_params;
    bool emulated;
    if (problem->workload->method != METHOD_FULL || !problem->blocks.tied || first == last)
        return 0;
    cluster_link(problem->cluster, first, last, &latency, &rate, &emulated);
    return 2 * (latency + bytes / rate);
}

/* Most transfers that were begun and not used up at once: sent[k] to used[k], both rising. */
static uint32_t overlap(const double *sent, const double *used, uint32_t count)
{
    uint32_t most = 1, done = 0;
    for (uint32_t k = 0; k < count; k++) {
        while (done < k && used[done] <= sent[k])
            done++;
        most = k - done + 1 > most ? k - done + 1 : most;
    }
    return most;
}

/* Interleaved: what is on the way to a range at once is read off a run at mean times, and off the lists. */
static int rings_interleaved(struct chain *c)
{
    uint32_t count = c->micro_batches;
    size_t cells = (size_t)c->stages * count;
    double *memory = calloc(6 * cells + 2 * (size_t)c->stages, sizeof(*memory));
    uint32_t *waiting = calloc(2 * (size_t)c->stages, sizeof(*waiting));
    int result = memory && waiting ? chain_waiting(c, waiting, waiting + c->stages)
                                   : err_set(c->err, ERR_NOMEM, "planner: out of memory");
    if (result == 0) {
        double *latency = memory + 6 * cells, *occupied = latency + c->stages;
        struct pipe_order_times t = {memory, memory + cells, memory + 2 * cells, memory + 3 * cells};
        struct pipe_order_costs costs = {.forward = memory + 4 * cells,
                                         .backward = memory + 5 * cells,
                                         .latency_s = latency,
                                         .occupied_s = occupied};
        parts_fill(c, memory + 4 * cells, memory + 5 * cells);
        chain_links(c->problem, c->choice, latency, occupied);
        double seconds = pipe_order_seconds(&c->train, &costs, &t, c->err);
        if (!(seconds >= 0 && seconds < INFINITY))
            result =
                err_set(c->err, seconds < 0 ? ERR_NOMEM : ERR_NOFIT,
                        "planner: %u micro-batches cannot go round %u ranks in this order", count, c->ranks);
        for (uint32_t j = 0; j < c->stages && result == 0; j++) {
            size_t row = (size_t)j * count;
            uint32_t act = j ? overlap(&t.forward_sent[row - count], &t.forward_end[row], count) : 0;
            uint32_t grad =
                j + 1 < c->stages ? overlap(&t.backward_sent[row + count], &t.backward_end[row], count) : 0;
            uint32_t least_act = waiting[j] + 1, least_grad = waiting[c->stages + j] + 1;
            act = act > least_act ? act : least_act;
            grad = grad > least_grad ? grad : least_grad;
            c->stage[j].ring_act = act < count ? act : count;
            c->stage[j].ring_grad = grad < count ? grad : count;
        }
    }
    free(memory);
    free(waiting);
    return result;
}

static int rings_fill(struct chain *c)
{
    for (uint32_t j = 0; j < c->stages; j++) {
        c->stage[j].live = pipe_order_live(&c->train, j);
        if (c->stages > c->ranks)
            continue;
        if (j > 0)
            c->stage[j].ring_act = chain_ring(c->windows[j - 1], c->windows[j], c->micro_batches);
        if (j + 1 < c->stages)
            c->stage[j].ring_grad = chain_ring(c->windows[j], c->windows[j + 1], c->micro_batches);
    }
    return c->stages > c->ranks ? rings_interleaved(c) : 0;
}

/* --- the whole --- */

static void schedule_note(struct chain *c)
{
    c->plan->schedule = c->choice->schedule;
    bool turns = c->choice->schedule == SCHEDULE_1F1B || c->choice->schedule == SCHEDULE_GPIPE;
    if (!turns || c->stages == 1)
        return;
    bool all = c->micro_batches > 1; /* a last window of all micro-batches makes 1F1B all forwards first */
    for (uint32_t r = 0; r < c->ranks; r++)
        all = all && c->windows[r] >= c->micro_batches;
    c->plan->schedule = all ? SCHEDULE_GPIPE : SCHEDULE_1F1B;
}

static int orders_fill(struct chain *c)
{
    enum plan_schedule s = c->choice->schedule;
    if (pipe_order_init(&c->train, s, c->ranks, c->stages, c->micro_batches, c->windows, c->delays, false,
                        c->err) < 0 ||
        pipe_order_init(&c->forwards, s, c->ranks, c->stages, c->micro_batches, c->windows, c->delays, true,
                        c->err) < 0 ||
        pipe_order_init(&c->once, s, c->ranks, c->stages, 1, c->windows, c->delays, true, c->err) < 0)
        return -1;
    return rings_fill(c);
}

static int tied_fill(struct chain *c)
{
    if (c->tied_group < 0)
        return 0;
    struct plan_group *group = &c->plan->groups[c->tied_group];
    group->ranks = calloc(2, sizeof(*group->ranks));
    if (!group->ranks)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    group->rank_count = 2;
    group->ranks[1] = c->ranks - 1;
    return 0;
}

static int chain_fill(struct chain *c, bool programs)
{
    c->windows = calloc(c->ranks, sizeof(*c->windows));
    c->delays = calloc(c->ranks, sizeof(*c->delays));
    c->stage = calloc(c->stages, sizeof(*c->stage));
    if (!c->windows || !c->delays || !c->stage)
        return err_set(c->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t r = 0; r < c->ranks; r++) {
        const struct place_member *member = &c->choice->members[c->choice->stages[r].member_first];
        c->windows[r] = member->window ? member->window : 1;
        uint32_t laps = c->stages / c->ranks;
        uint32_t least = laps > 1 ? pipe_order_window(c->ranks, laps, c->micro_batches, r) : 1;
        c->windows[r] = c->windows[r] > least ? c->windows[r] : least;
        c->delays[r] = member->delay < c->micro_batches ? member->delay : c->micro_batches;
    }
    schedule_note(c);
    if (tied_fill(c) < 0 || orders_fill(c) < 0)
        return -1;
    for (uint32_t r = 0; r < c->ranks; r++) {
        if (rank_emit(c, r, programs) < 0)
            return -1;
    }
    return 0;
}

struct plan *chain_emit(const struct problem *problem, const struct place_choice *choice, bool programs,
                        struct err *err)
{
    uint32_t ranks = choice->schedule == SCHEDULE_INTERLEAVED ? choice->member_count : choice->stage_count;
    bool tied = problem->workload->method == METHOD_FULL && problem->blocks.tied && ranks > 1;
    if (ranks == 0 || choice->stage_count % ranks != 0) {
        err_set(err, ERR_INTERNAL, "planner: %u ranges of blocks for %u ranks", choice->stage_count, ranks);
        return NULL;
    }
    struct plan *plan =
        plan_create(ranks, tied ? 2 : 1, problem->workload->batch_rows, choice->micro_batch_rows, err);
    if (!plan)
        return NULL;
    struct chain c = {.problem = problem,
                      .choice = choice,
                      .plan = plan,
                      .ranks = ranks,
                      .stages = choice->stage_count,
                      .micro_batches = plan->micro_batch_count,
                      .tied_group = tied ? 1 : PLAN_NONE,
                      .err = err};
    plan_frame_fill(plan, problem, choice);
    int result = chain_fill(&c, programs);
    pipe_order_fini(&c.train);
    pipe_order_fini(&c.forwards);
    pipe_order_fini(&c.once);
    free(c.windows);
    free(c.delays);
    free(c.stage);
    free(c.memory);
    if (result < 0) {
        plan_destroy(plan);
        return NULL;
    }
    return plan;
}
