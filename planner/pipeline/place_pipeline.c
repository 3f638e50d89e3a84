/* pipeline: contiguous blocks, one device a stage, 1F1B with windows that hide the links, or GPipe; other
 * schedules are made of the best of them (pipe_variants.c).
 *
 * Up to PIPELINE_EXHAUSTIVE devices: every ordered subset, every micro-batch size, and for up to three stages
 * every split; longer ones are balanced by bisection and refined by moving blocks. More devices: a few
 * orders, refined. Formulas: docs/PLANNER.md, Time. */
#include "planner/cost/micro.h"
#include "planner/pipeline/chain.h"
#include "planner/pipeline/lap_exact.h"
#include "planner/pipeline/pipe_exact.h"
#include "planner/pipeline/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define VARIED_CELLS 4000u /* ranks · micro-batches up to which other schedules than 1F1B are looked at */
#define STAGES_ENUMERATED 3u
#define REFINE_ROUNDS 200u
#define REFINED 12u /* choices of more stages that are refined */
#define BALANCE_TURNS 28
#define STAGES_BUDGET 2000000u /* micro-batches through stages that pipe_exact may follow */
#define RANGES_BUDGET 400000u  /* likewise lap_exact, through ranges */
#define CUTOFF 1.12            /* estimates this much above the best one are not looked into */

/* One order of devices at one micro-batch size. */
struct pipe {
    const struct problem *p;
    struct choice_list *list;
    const struct pipe_table *table; /* real micro-batches; its cost may be NULL */
    double *scratch;                /* for the recurrence; NULL with table->cost */
    uint32_t rows, micro_batches, stages;
    uint32_t device[PIPELINE_STAGES_MAX];
    struct micro_cost cost[PIPELINE_STAGES_MAX];
    double link_s[PIPELINE_STAGES_MAX],
        occupied_s[PIPELINE_STAGES_MAX]; /* between s and s + 1, one direction */
};

/* One split of it. */
struct split {
    int32_t end[PIPELINE_STAGES_MAX]; /* blocks of stage s: [end[s − 1], end[s]) */
    bool recompute[PIPELINE_STAGES_MAX];
    uint32_t window[PIPELINE_STAGES_MAX];
    double f[PIPELINE_STAGES_MAX], b[PIPELINE_STAGES_MAX];
    double estimate_s;
};

static int32_t split_begin(const struct split *split, uint32_t s)
{
    return s ? split->end[s - 1] : 0;
}

static void pipe_links(struct pipe *pipe)
{
    const struct problem *p = pipe->p;
    double bytes = p->bytes_per_token * p->mean_step.tokens / pipe->micro_batches;
    for (uint32_t s = 0; s + 1 < pipe->stages; s++) {
        double latency, rate;
        bool emulated;
        cluster_link(p->cluster, pipe->device[s], pipe->device[s + 1], &latency, &rate, &emulated);
        pipe->occupied_s[s] = bytes / rate;
        pipe->link_s[s] = latency + bytes / rate;
    }
}

/* P = max over s ≤ j of the cycle through stages s..j over the micro-batches in flight there, and of
 * occupancies. */
static double split_period(const struct pipe *pipe, const struct split *split)
{
    double period = 0;
    for (uint32_t s = 0; s < pipe->stages; s++) {
        double cycle = 0;
        for (uint32_t j = s; j < pipe->stages; j++) {
            cycle += split->f[j] + split->b[j] + (j > s ? 2 * pipe->link_s[j - 1] : 0);
            double each = cycle / (double)(split->window[s] - split->window[j] + 1);
            period = each > period ? each : period;
        }
        if (s + 1 < pipe->stages && pipe->occupied_s[s] > period)
            period = pipe->occupied_s[s];
    }
    return period;
}

static void split_times(const struct pipe *pipe, struct split *split)
{
    for (uint32_t s = 0; s < pipe->stages; s++) {
        int32_t begin = split_begin(split, s), end = split->end[s];
        split->f[s] = micro_forward(pipe->p, &pipe->cost[s], begin, end);
        split->b[s] = micro_backward(pipe->p, &pipe->cost[s], begin, end, split->recompute[s]);
    }
}

/* The least window of stage s that hides its links, given the later ones: docs/PLANNER.md. */
static uint32_t window_wanted(const struct pipe *pipe, const struct split *split, uint32_t s, double best)
{
    uint32_t wanted = s + 1 < pipe->stages ? split->window[s + 1] : 1;
    double cycle = split->f[s] + split->b[s];
    for (uint32_t j = s + 1; j < pipe->stages; j++) {
        cycle += split->f[j] + split->b[j] + 2 * pipe->link_s[j - 1];
        double need = ceil(cycle / best - 1e-9) - 1 + split->window[j];
        if (need > wanted)
            wanted = need < pipe->micro_batches ? (uint32_t)need : pipe->micro_batches;
    }
    return wanted;
}

static uint64_t stage_memory(const struct pipe *pipe, const struct split *split, uint32_t s)
{
    return pipe_table_memory(pipe->table, pipe->p, split_begin(split, s), split->end[s], split->recompute[s],
                             split->window[s] < pipe->micro_batches ? split->window[s] : pipe->micro_batches,
                             chain_boundary_buffers(s, pipe->stages, split->window, pipe->micro_batches));
}

static uint64_t stage_limit(const struct pipe *pipe, uint32_t s)
{
    return pipe->p->cluster->devices[pipe->device[s]].memory_limit_bytes;
}

/* Windows from the tail, `slack` more than hides the links. `eager`: recompute rather than give up a window.
 */
static void windows_choose(const struct pipe *pipe, struct split *split, bool eager, uint32_t slack)
{
    double best = 0;
    for (uint32_t s = 0; s < pipe->stages; s++) {
        split->recompute[s] = !micro_recompute_allowed(pipe->p, false);
        split->window[s] = 1;
    }
    split_times(pipe, split);
    for (uint32_t s = 0; s < pipe->stages; s++) {
        best = fmax(best, split->f[s] + split->b[s]);
        best = s + 1 < pipe->stages ? fmax(best, pipe->occupied_s[s]) : best;
    }
    for (uint32_t s = pipe->stages; s-- > 0;) {
        uint32_t least = s + 1 < pipe->stages ? split->window[s + 1] : 1;
        uint32_t wanted = window_wanted(pipe, split, s, best) + (s + 1 < pipe->stages ? slack : 0);
        wanted = wanted < pipe->micro_batches ? wanted : pipe->micro_batches;
        for (int recompute = split->recompute[s]; recompute < 2; recompute++) {
            if (!micro_recompute_allowed(pipe->p, recompute))
                break;
            split->recompute[s] = recompute;
            split->window[s] = wanted;
            bool fits = stage_memory(pipe, split, s) <= stage_limit(pipe, s);
            while (!fits && split->window[s] > least) {
                split->window[s]--;
                fits = stage_memory(pipe, split, s) <= stage_limit(pipe, s);
            }
            if (fits && (split->window[s] == wanted || !eager))
                break;
            if (recompute == 0 && !micro_recompute_allowed(pipe->p, true))
                break;
        }
    }
    split_times(pipe, split);
}

/* Rings depend on neighbours' windows, so memory is looked at again with all of them set; windows shrink
 * until all fits. Returns false if it cannot. */
static bool memory_settle(const struct pipe *pipe, struct split *split)
{
    for (uint32_t s = pipe->stages; s-- > 0;) {
        while (stage_memory(pipe, split, s) > stage_limit(pipe, s)) {
            uint32_t least = s + 1 < pipe->stages ? split->window[s + 1] : 1;
            if (split->window[s] > least) {
                split->window[s]--;
            } else if (s > 0 && split->window[s - 1] > split->window[s] + 1) {
                split->window[s - 1]--;
            } else {
                return false;
            }
        }
    }
    return true;
}

/* All forwards, then all backwards: windows of all micro-batches, differing by what is on the links between
 * stages. Returns false when some stage cannot hold as many. */
static bool windows_gpipe(const struct pipe *pipe, struct split *split)
{
    for (uint32_t s = 0; s < pipe->stages; s++)
        split->recompute[s] = !micro_recompute_allowed(pipe->p, false);
    split_times(pipe, split);
    split->window[pipe->stages - 1] = pipe->micro_batches;
    for (uint32_t s = pipe->stages - 1; s-- > 0;) {
        double each =
            fmin(fmax(split->f[s + 1], pipe->occupied_s[s]), fmax(split->b[s], pipe->occupied_s[s]));
        double wait = fmax(split->f[s + 1], split->b[s]) + pipe->link_s[s];
        double depth = each > 0 ? fmin(ceil(wait / each - 1e-9), pipe->micro_batches) : 1;
        split->window[s] = split->window[s + 1] + (depth > 2 ? (uint32_t)depth - 1 : 0);
    }
    for (uint32_t s = 0; s < pipe->stages; s++) {
        if (stage_memory(pipe, split, s) <= stage_limit(pipe, s))
            continue;
        split->recompute[s] = true;
        if (!micro_recompute_allowed(pipe->p, true) || stage_memory(pipe, split, s) > stage_limit(pipe, s))
            return false;
    }
    split_times(pipe, split);
    return true;
}

/* A step of real micro-batches: rows differ in length, which a period of means does not see. */
static double split_recurrence(const struct pipe *pipe, const struct split *split)
{
    uint32_t count = pipe->micro_batches;
    size_t cells = (size_t)pipe->stages * count, each = (size_t)PIPE_STEPS * count;
    double *f = pipe->scratch, *b = f + cells, *rest = b + cells, first = 0, seconds = 0;
    for (uint32_t t = 0; t < PIPE_STEPS; t++) {
        if (t > 0 && pipe->table->same[t]) {
            seconds += first / PIPE_STEPS;
            continue;
        }
        for (uint32_t s = 0; s < pipe->stages; s++)
            micro_row(pipe->p, &pipe->table->cost[pipe->device[s] * each + (size_t)t * count], count,
                      split_begin(split, s), split->end[s], split->recompute[s], &f[s * count],
                      &b[s * count]);
        double now = pipe_recurrence(pipe->stages, count, f, b, pipe->link_s, split->window, rest);
        first = t ? first : now;
        seconds += now / PIPE_STEPS;
    }
    return seconds;
}

static double split_estimate(const struct pipe *pipe, const struct split *split)
{
    double update = 0, once = 0;
    double tied = chain_tied_seconds(pipe->p, pipe->device[0], pipe->device[pipe->stages - 1]);
    for (uint32_t s = 0; s < pipe->stages; s++) {
        once += split->f[s] + split->b[s] + (s + 1 < pipe->stages ? 2 * pipe->link_s[s] : 0);
        update = fmax(update,
                      problem_step_seconds(pipe->p, pipe->device[s], split_begin(split, s), split->end[s]));
    }
    if (pipe->scratch)
        return split_recurrence(pipe, split) + update + tied;
    return (pipe->micro_batches - 1) * split_period(pipe, split) + once + update + tied;
}

static bool windows_equal(const struct pipe *pipe, const struct split *a, const struct split *b)
{
    return memcmp(a->window, b->window, pipe->stages * sizeof(a->window[0])) == 0 &&
           memcmp(a->recompute, b->recompute, pipe->stages * sizeof(a->recompute[0])) == 0;
}

/* Settles a split whose ends are given: the best of a few ways to choose windows. Slack is for rows of unlike
 * length. Returns false when none fits. */
static bool split_settle(const struct pipe *pipe, struct split *split)
{
    static const struct {
        bool eager;
        uint32_t slack;
    } ways[] = {{false, 0}, {true, 0}, {false, 1}, {true, 1}, {false, 2}};
    struct split best = *split, last = {0};
    best.estimate_s = INFINITY;
    pipe->list->evaluations++;
    for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct split trial = *split;
        windows_choose(pipe, &trial, ways[i].eager, ways[i].slack);
        if (!memory_settle(pipe, &trial) || windows_equal(pipe, &trial, &last))
            continue;
        last = trial;
        trial.estimate_s = split_estimate(pipe, &trial);
        if (trial.estimate_s < best.estimate_s)
            best = trial;
    }
    struct split trial = *split;
    if (pipe->stages > 1 && windows_gpipe(pipe, &trial)) {
        trial.estimate_s = split_estimate(pipe, &trial);
        if (trial.estimate_s < best.estimate_s)
            best = trial;
    }
    *split = best;
    return best.estimate_s < INFINITY;
}

static int split_add(const struct pipe *pipe, const struct split *split, struct err *err)
{
    struct place_stage stages[PIPELINE_STAGES_MAX];
    struct place_member members[PIPELINE_STAGES_MAX];
    for (uint32_t s = 0; s < pipe->stages; s++) {
        stages[s] = (struct place_stage){.block_begin = split_begin(split, s),
                                         .block_end = split->end[s],
                                         .member_first = s,
                                         .member_count = 1};
        members[s] = (struct place_member){.device = pipe->device[s],
                                           .micro_rows = pipe->rows,
                                           .micro_count = pipe->micro_batches,
                                           .state_share = 1,
                                           .window = split->window[s],
                                           .recompute = split->recompute[s]};
    }
    bool all = split->window[pipe->stages - 1] >= pipe->micro_batches && pipe->micro_batches > 1;
    struct place_choice choice = {.placement = PLACE_PIPELINE,
                                  .schedule = all ? SCHEDULE_GPIPE : SCHEDULE_1F1B,
                                  .micro_batch_rows = pipe->rows,
                                  .stage_count = pipe->stages,
                                  .member_count = pipe->stages,
                                  .stages = stages,
                                  .members = members,
                                  .estimate_s = split->estimate_s};
    return choice_list_add(pipe->list, &choice, err);
}

/* What an estimate must stay below to be worth looking at. */
static double cutoff(const struct choice_list *list)
{
    return list->count ? list->choices[0].estimate_s * CUTOFF : INFINITY;
}

static double stage_seconds(const struct pipe *pipe, uint32_t s, int32_t begin, int32_t end, bool recompute)
{
    return micro_forward(pipe->p, &pipe->cost[s], begin, end) +
           micro_backward(pipe->p, &pipe->cost[s], begin, end, recompute);
}

/* Every split whose stages are all short enough to compete. */
static int splits_enumerate(const struct pipe *pipe, struct split *split, uint32_t s, struct err *err)
{
    int32_t begin = split_begin(split, s), last = pipe->p->block_count;
    bool recompute = !micro_recompute_allowed(pipe->p, false);
    if (s + 1 == pipe->stages) {
        split->end[s] = last;
        struct split settled = *split;
        if (pipe->micro_batches * stage_seconds(pipe, s, begin, last, recompute) > cutoff(pipe->list))
            return 0;
        return split_settle(pipe, &settled) ? split_add(pipe, &settled, err) : 0;
    }
    int32_t left = (int32_t)(pipe->stages - s - 1);
    for (int32_t end = begin + 1; end <= last - left; end++) {
        split->end[s] = end;
        if (pipe->micro_batches * stage_seconds(pipe, s, begin, end, recompute) > cutoff(pipe->list))
            break;
        if (splits_enumerate(pipe, split, s + 1, err) < 0)
            return -1;
    }
    return 0;
}

/* Most blocks that fit stage s from `begin` on, the head not among them, at the window a balanced pipeline
 * wants. */
static int32_t stage_capacity(const struct pipe *pipe, uint32_t s, int32_t begin)
{
    struct split split = {0};
    int32_t low = 0, high = pipe->p->block_count - 1 - begin;
    uint32_t window = pipe->stages - s < pipe->micro_batches ? pipe->stages - s : pipe->micro_batches;
    if (s > 0)
        split.end[s - 1] = begin;
    for (uint32_t k = 0; k < pipe->stages; k++)
        split.window[k] = k <= s ? window : 1;
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        bool fits = false;
        for (int recompute = 0; recompute < 2 && !fits; recompute++) {
            split.end[s] = begin + middle;
            split.recompute[s] = recompute;
            fits = micro_recompute_allowed(pipe->p, recompute) &&
                   stage_memory(pipe, &split, s) <= stage_limit(pipe, s);
        }
        if (fits)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* The furthest end of stage s within `period` and capacity that leaves one block to each later stage. */
static int32_t fill_stage(const struct pipe *pipe, uint32_t s, int32_t begin, int32_t capacity, double period)
{
    int32_t last = pipe->p->block_count - (int32_t)(pipe->stages - s - 1);
    int32_t low = begin + 1, high = begin + capacity < last ? begin + capacity : last;
    bool recompute = !micro_recompute_allowed(pipe->p, false);
    if (s + 1 == pipe->stages)
        high = last; /* with the head; memory is looked at when the split is settled */
    while (low < high) {
        int32_t middle = (low + high + 1) / 2;
        if (stage_seconds(pipe, s, begin, middle, recompute) <= period)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Bisection over the period: the least at which filling from the front covers all blocks. */
static void split_balance(const struct pipe *pipe, struct split *split)
{
    int32_t capacity[PIPELINE_STAGES_MAX];
    double low = 0, high = 0;
    for (uint32_t s = 0; s < pipe->stages; s++) {
        high = fmax(high, stage_seconds(pipe, s, 0, pipe->p->block_count, true));
        capacity[s] = stage_capacity(pipe, s, s ? 1 : 0);
    }
    struct split trial = *split;
    for (int turn = 0; turn < BALANCE_TURNS; turn++) {
        double middle = turn ? (low + high) / 2 : high;
        for (uint32_t s = 0; s < pipe->stages; s++)
            trial.end[s] = fill_stage(pipe, s, split_begin(&trial, s), capacity[s], middle);
        bool covers = trial.end[pipe->stages - 1] == pipe->p->block_count;
        if (covers || turn == 0)
            *split = trial;
        if (covers)
            high = middle;
        else
            low = middle;
    }
    split->end[pipe->stages - 1] = pipe->p->block_count;
}

/* Moves single blocks over boundaries, and from any stage to any other, while the estimate falls. */
static void split_refine(const struct pipe *pipe, struct split *split)
{
    bool fits = split_settle(pipe, split);
    for (uint32_t round = 0; round < REFINE_ROUNDS; round++) {
        struct split best = *split;
        for (uint32_t from = 0; from + 1 < pipe->stages; from++) {
            for (uint32_t to = from; to + 1 < pipe->stages; to++) {
                for (int32_t step = -1; step <= 1; step += 2) {
                    struct split trial = *split;
                    bool valid = true;
                    for (uint32_t s = from; s <= to; s++)
                        trial.end[s] += step;
                    for (uint32_t s = 0; s < pipe->stages; s++)
                        valid = valid && trial.end[s] > split_begin(&trial, s);
                    if (valid && split_settle(pipe, &trial) &&
                        (!fits || trial.estimate_s < best.estimate_s)) {
                        best = trial;
                        fits = true;
                    }
                }
            }
        }
        if (!fits || best.estimate_s >= split->estimate_s)
            break;
        *split = best;
    }
}

static int pipe_init(struct pipe *pipe, const struct problem *p, const struct pipe_table *table,
                     const uint32_t *devices, uint32_t count, struct choice_list *list, struct err *err)
{
    uint32_t micro_batch_rows = table->rows;
    size_t cells = (size_t)count * table->micro_batches;
    pipe->p = p;
    pipe->list = list;
    pipe->table = table;
    pipe->rows = micro_batch_rows;
    pipe->stages = count;
    pipe->micro_batches = table->micro_batches;
    pipe->scratch = table->cost ? malloc((4 * cells + 3 * (size_t)count) * sizeof(double)) : NULL;
    if (table->cost && !pipe->scratch)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t s = 0; s < count; s++) {
        pipe->device[s] = devices[s];
        micro_cost_init(&pipe->cost[s], p, devices[s], micro_batch_rows);
    }
    pipe_links(pipe);
    return 0;
}

/* Devices together cannot be faster than the sum of their rates. */
static double pipe_bound(const struct pipe *pipe)
{
    double rate = 0;
    bool recompute = !micro_recompute_allowed(pipe->p, false);
    for (uint32_t s = 0; s < pipe->stages; s++)
        rate += 1 / stage_seconds(pipe, s, 0, pipe->p->block_count, recompute);
    return pipe->micro_batches / rate;
}

static int order_look(struct pipe *pipe, enum pipeline_effort effort, struct err *err)
{
    struct split split = {.estimate_s = INFINITY};
    if (pipe_bound(pipe) > cutoff(pipe->list))
        return 0;
    split_balance(pipe, &split);
    struct split settled = split;
    bool fits = effort != PIPELINE_REFINE && split_settle(pipe, &settled);
    if (fits && split_add(pipe, &settled, err) < 0)
        return -1;
    if (effort == PIPELINE_BALANCE)
        return 0;
    if (!fits) { /* asked for; or balance alone asks too much of some device: move blocks until it fits */
        split_refine(pipe, &split);
        return split.estimate_s < INFINITY ? split_add(pipe, &split, err) : 0;
    }
    return pipe->stages <= STAGES_ENUMERATED ? splits_enumerate(pipe, &split, 0, err) : 0;
}

int pipeline_try(const struct problem *p, const struct pipe_table *table, const uint32_t *devices,
                 uint32_t count, enum pipeline_effort effort, struct choice_list *list, struct err *err)
{
    struct pipe pipe;
    if (count > PIPELINE_STAGES_MAX || (int32_t)count > p->block_count)
        return 0;
    if (pipe_init(&pipe, p, table, devices, count, list, err) < 0)
        return -1;
    int result = order_look(&pipe, effort, err);
    free(pipe.scratch);
    return result;
}

/* Refines what is in the list so far. */
static int list_refine(const struct problem *p, struct choice_list *list, struct err *err)
{
    uint32_t count = list->count < REFINED ? list->count : REFINED;
    struct choice_list found = {.evaluations = list->evaluations, .evaluations_max = list->evaluations_max};
    int result = 0;
    for (uint32_t i = 0; i < count && result == 0; i++) {
        const struct place_choice *c = &list->choices[i];
        uint32_t devices[PIPELINE_STAGES_MAX];
        struct pipe pipe;
        struct split split = {.estimate_s = c->estimate_s};
        if (c->stage_count <= STAGES_ENUMERATED)
            continue;
        for (uint32_t s = 0; s < c->stage_count; s++) {
            devices[s] = c->members[s].device;
            split.end[s] = c->stages[s].block_end;
        }
        struct pipe_table table;
        result = pipe_table_init(&table, p, c->micro_batch_rows, err);
        if (result == 0)
            result = pipe_init(&pipe, p, &table, devices, c->stage_count, &found, err);
        if (result == 0) {
            split_refine(&pipe, &split);
            if (split.estimate_s < c->estimate_s)
                result = split_add(&pipe, &split, err);
            free(pipe.scratch);
        }
        pipe_table_fini(&table);
    }
    for (uint32_t i = 0; i < found.count && result == 0; i++)
        result = choice_list_add(list, &found.choices[i], err);
    list->evaluations = found.evaluations;
    found.evaluations = 0;
    choice_list_fini(&found);
    return result;
}

/* Every order of every subset of the usable devices. */
struct orders {
    const struct problem *p;
    struct choice_list *list;
    uint32_t device[PIPELINE_EXHAUSTIVE], device_count;
    uint32_t chosen[PIPELINE_EXHAUSTIVE], count;
    bool taken[PIPELINE_EXHAUSTIVE];
    uint32_t sizes[MICRO_SIZES_MAX], size_count;
};

static int orders_walk(struct orders *o, const struct pipe_table *table, uint32_t wanted, struct err *err)
{
    if (o->count == wanted)
        return pipeline_try(o->p, table, o->chosen, o->count, PIPELINE_ENUMERATE, o->list, err);
    for (uint32_t d = 0; d < o->device_count; d++) {
        if (o->taken[d])
            continue;
        o->taken[d] = true;
        o->chosen[o->count++] = o->device[d];
        int result = orders_walk(o, table, wanted, err);
        o->count--;
        o->taken[d] = false;
        if (result < 0)
            return -1;
    }
    return 0;
}

/* All devices first: their bound is the lowest, and what is found prunes the rest. */
static int orders_all(struct orders *o, struct err *err)
{
    uint32_t stages = o->p->workload->stages;
    for (uint32_t wanted = o->device_count; wanted >= 2; wanted--) {
        if (stages && stages != wanted)
            continue;
        for (uint32_t i = 0; i < o->size_count; i++) {
            struct pipe_table table;
            if (pipe_table_init(&table, o->p, o->sizes[i], err) < 0)
                return -1;
            int result = orders_walk(o, &table, wanted, err);
            pipe_table_fini(&table);
            if (result < 0)
                return -1;
        }
    }
    return list_refine(o->p, o->list, err);
}

static bool pipeline_supports(const struct problem *problem, struct err *err)
{
    return placement_stages(problem, 2, 0, err) && placement_devices(problem, 2, "a pipeline takes", err);
}

bool pipeline_exhausts(const struct problem *problem)
{
    return problem_usable_count(problem) <= PIPELINE_EXHAUSTIVE && !problem->exhaustive_off;
}

static int pipeline_propose(const struct problem *problem, struct choice_list *list, struct err *err)
{
    struct orders o = {.p = problem, .list = list};
    uint32_t usable = 0;
    o.size_count = micro_sizes(problem, o.sizes);
    for (uint32_t d = 0; d < problem->device_count; d++) {
        if (problem->usable[d] && usable++ < PIPELINE_EXHAUSTIVE)
            o.device[o.device_count++] = d;
    }
    int result = pipeline_exhausts(problem) ? orders_all(&o, err) : pipeline_propose_many(problem, list, err);
    bool large = list->count > 0 && (uint64_t)list->choices[0].member_count *
                                            micro_count(problem, list->choices[0].micro_batch_rows) >
                                        VARIED_CELLS;
    if (result == 0 && !large)
        result = pipeline_variants(problem, list, err);
    return result < 0 || pipeline_exhausts(problem) ? result : pipeline_propose_few(problem, list, err);
}

/* The worker runs one range of blocks at once, and whole backwards. */
static bool pipeline_runnable(const struct problem *problem, const struct place_choice *choice)
{
    (void)problem;
    return choice->schedule == SCHEDULE_1F1B || choice->schedule == SCHEDULE_GPIPE;
}

static int pipeline_exact(const struct problem *problem, double beat_s, uint32_t steps_max,
                          struct place_choice *choice, double *seconds, struct err *err)
{
    struct place_choice around;
    double around_s = 0;
    int found = pipe_exact(problem, beat_s, steps_max, STAGES_BUDGET, choice, seconds, NULL, err);
    if (found < 0)
        return -1;
    int more = lap_exact(problem, found ? *seconds : beat_s, steps_max, RANGES_BUDGET, &around, &around_s,
                         NULL, err);
    if (more == 0)
        return found;
    choice_fini(choice);
    *choice = around;
    *seconds = more > 0 ? around_s : *seconds;
    return more;
}

const struct placement place_pipeline = {.kind = PLACE_PIPELINE,
                                         .supports = pipeline_supports,
                                         .propose = pipeline_propose,
                                         .emit = chain_emit,
                                         .runnable = pipeline_runnable,
                                         .from_plan = pipeline_from_plan,
                                         .exact = pipeline_exact};
