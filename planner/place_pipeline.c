/* pipeline: contiguous blocks, one device a stage, 1F1B with windows that hide the links.
 *
 * Up to PIPELINE_EXHAUSTIVE devices: every ordered subset, every micro-batch size, and for up to three stages
 * every split; longer ones are balanced by bisection and refined by moving blocks. More devices: a few
 * orders, refined. Formulas: docs/PLANNER.md, Time. */
#include "planner/chain.h"
#include "planner/micro.h"
#include "planner/pipeline.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define STAGES_ENUMERATED 3u
#define REFINE_ROUNDS 200u

/* One order of devices at one micro-batch size. */
struct pipe {
    const struct problem *p;
    struct choice_list *list;
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

static uint64_t stage_memory(const struct pipe *pipe, const struct split *split, uint32_t s,
                             struct memory_need *need)
{
    struct memory_stage m = {.block_begin = split_begin(split, s),
                             .block_end = split->end[s],
                             .window = split->window[s],
                             .micro_batch_rows = pipe->rows,
                             .recompute = split->recompute[s],
                             .boundary_buffers =
                                 chain_boundary_buffers(s, pipe->stages, split->window, pipe->micro_batches),
                             .state_share = 1,
                             .tensor_share = 1};
    memory_stage_need(pipe->p, &m, need);
    return need->total;
}

static uint64_t stage_limit(const struct pipe *pipe, uint32_t s)
{
    return pipe->p->cluster->devices[pipe->device[s]].memory_limit_bytes;
}

/* Windows from the tail. `eager`: recompute rather than give up a window that hides the links. */
static void windows_choose(const struct pipe *pipe, struct split *split, bool eager)
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
        uint32_t wanted = window_wanted(pipe, split, s, best);
        for (int recompute = split->recompute[s]; recompute < 2; recompute++) {
            struct memory_need need;
            if (!micro_recompute_allowed(pipe->p, recompute))
                break;
            split->recompute[s] = recompute;
            split->window[s] = wanted;
            while (stage_memory(pipe, split, s, &need) > stage_limit(pipe, s) && split->window[s] > least)
                split->window[s]--;
            bool fits = need.total <= stage_limit(pipe, s);
            if (fits && (split->window[s] == wanted || !eager))
                break;
            if (recompute == 0 && !micro_recompute_allowed(pipe->p, true))
                break;
        }
    }
    split_times(pipe, split);
}

/* Rings depend on neighbours' windows, so memory is looked at again with all of them set; windows shrink
 * until all fits. Returns false, and notes by how much, if it cannot. */
static bool memory_settle(const struct pipe *pipe, struct split *split)
{
    struct memory_need need;
    for (uint32_t s = pipe->stages; s-- > 0;) {
        while (stage_memory(pipe, split, s, &need) > stage_limit(pipe, s)) {
            uint32_t least = s + 1 < pipe->stages ? split->window[s + 1] : 1;
            if (split->window[s] > least) {
                split->window[s]--;
            } else if (s > 0 && split->window[s - 1] > split->window[s] + 1) {
                split->window[s - 1]--;
            } else {
                choice_list_short(pipe->list, pipe->device[s], need.total, stage_limit(pipe, s));
                return false;
            }
        }
    }
    return true;
}

static double split_estimate(const struct pipe *pipe, const struct split *split)
{
    double period = split_period(pipe, split), once = 0, update = 0;
    for (uint32_t s = 0; s < pipe->stages; s++) {
        once += split->f[s] + split->b[s];
        once += s + 1 < pipe->stages ? 2 * pipe->link_s[s] : 0;
        update = fmax(update,
                      problem_step_seconds(pipe->p, pipe->device[s], split_begin(split, s), split->end[s]));
    }
    return (pipe->micro_batches - 1) * period + once + update;
}

/* Settles a split whose ends are given. Returns false when it does not fit. */
static bool split_settle(const struct pipe *pipe, struct split *split)
{
    struct split eager = *split;
    pipe->list->evaluations++;
    windows_choose(pipe, split, false);
    windows_choose(pipe, &eager, true);
    bool plain_fits = memory_settle(pipe, split), eager_fits = memory_settle(pipe, &eager);
    split->estimate_s = plain_fits ? split_estimate(pipe, split) : INFINITY;
    eager.estimate_s = eager_fits ? split_estimate(pipe, &eager) : INFINITY;
    if (eager.estimate_s < split->estimate_s)
        *split = eager;
    return plain_fits || eager_fits;
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
    struct place_choice choice = {.placement = PLACE_PIPELINE,
                                  .micro_batch_rows = pipe->rows,
                                  .stage_count = pipe->stages,
                                  .member_count = pipe->stages,
                                  .stages = stages,
                                  .members = members,
                                  .estimate_s = split->estimate_s};
    return choice_list_add(pipe->list, &choice, err);
}

static int splits_enumerate(const struct pipe *pipe, struct split *split, uint32_t s, struct err *err)
{
    int32_t begin = split_begin(split, s), last = pipe->p->block_count;
    if (s + 1 == pipe->stages) {
        split->end[s] = last;
        struct split settled = *split;
        return split_settle(pipe, &settled) ? split_add(pipe, &settled, err) : 0;
    }
    int32_t left = (int32_t)(pipe->stages - s - 1);
    for (int32_t end = begin + 1; end <= last - left; end++) {
        split->end[s] = end;
        if (splits_enumerate(pipe, split, s + 1, err) < 0)
            return -1;
    }
    return 0;
}

/* Most blocks from `begin` on that stage s does within `period` and its memory at a window of 1, and that
 * leave at least one to each later stage. */
static int32_t fill_stage(const struct pipe *pipe, struct split *split, uint32_t s, double period)
{
    int32_t begin = split_begin(split, s), last = pipe->p->block_count - (int32_t)(pipe->stages - s - 1);
    int32_t end = begin + 1;
    for (int32_t next = begin + 1; next <= last; next++) {
        struct memory_need need;
        split->end[s] = next;
        split->window[s] = pipe->stages - s < pipe->micro_batches ? pipe->stages - s : pipe->micro_batches;
        bool fits = false;
        double back = 0;
        for (int recompute = 0; recompute < 2 && !fits; recompute++) {
            split->recompute[s] = recompute;
            back = micro_backward(pipe->p, &pipe->cost[s], begin, next, recompute);
            fits = micro_recompute_allowed(pipe->p, recompute) &&
                   stage_memory(pipe, split, s, &need) <= stage_limit(pipe, s);
        }
        if (next > begin + 1 &&
            (!fits || micro_forward(pipe->p, &pipe->cost[s], begin, next) + back > period))
            break;
        end = next;
    }
    return end;
}

/* Bisection over the period: the least at which filling from the front covers all blocks. */
static void split_balance(const struct pipe *pipe, struct split *split)
{
    double low = 0, high = 0;
    for (uint32_t s = 0; s < pipe->stages; s++)
        high = fmax(high, micro_forward(pipe->p, &pipe->cost[s], 0, pipe->p->block_count) +
                              micro_backward(pipe->p, &pipe->cost[s], 0, pipe->p->block_count, true));
    struct split found = *split;
    for (uint32_t s = 0; s < pipe->stages; s++)
        found.window[s] = 1;
    struct split trial = found;
    for (int turn = 0; turn < 40; turn++) {
        double middle = turn ? (low + high) / 2 : high;
        for (uint32_t s = 0; s < pipe->stages; s++)
            trial.end[s] = fill_stage(pipe, &trial, s, middle);
        bool covers = trial.end[pipe->stages - 1] == pipe->p->block_count;
        if (covers || turn == 0)
            found = trial;
        if (covers)
            high = middle;
        else
            low = middle;
    }
    found.end[pipe->stages - 1] = pipe->p->block_count;
    *split = found;
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

int pipeline_try(const struct problem *p, const uint32_t *devices, uint32_t count, uint32_t micro_batch_rows,
                 bool enumerate, struct choice_list *list, struct err *err)
{
    struct pipe pipe = {.p = p, .list = list, .rows = micro_batch_rows, .stages = count};
    struct split split = {.estimate_s = INFINITY};
    if (count > PIPELINE_STAGES_MAX || (int32_t)count > p->block_count)
        return 0;
    pipe.micro_batches = micro_count(p, micro_batch_rows);
    for (uint32_t s = 0; s < count; s++) {
        pipe.device[s] = devices[s];
        micro_cost_init(&pipe.cost[s], p, devices[s], micro_batch_rows);
    }
    pipe_links(&pipe);
    if (enumerate && count <= STAGES_ENUMERATED)
        return splits_enumerate(&pipe, &split, 0, err);
    split_balance(&pipe, &split);
    split_refine(&pipe, &split);
    return split.estimate_s < INFINITY ? split_add(&pipe, &split, err) : 0;
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

static int orders_walk(struct orders *o, struct err *err)
{
    uint32_t stages = o->p->workload->stages;
    if (o->count >= 2 && (stages == 0 || stages == o->count)) {
        for (uint32_t i = 0; i < o->size_count; i++) {
            if (pipeline_try(o->p, o->chosen, o->count, o->sizes[i], true, o->list, err) < 0)
                return -1;
        }
    }
    if (stages && o->count == stages)
        return 0;
    for (uint32_t d = 0; d < o->device_count; d++) {
        if (o->taken[d])
            continue;
        o->taken[d] = true;
        o->chosen[o->count++] = o->device[d];
        if (orders_walk(o, err) < 0)
            return -1;
        o->count--;
        o->taken[d] = false;
    }
    return 0;
}

static bool pipeline_supports(const struct problem *problem, struct err *err)
{
    uint32_t usable = 0;
    for (uint32_t d = 0; d < problem->device_count; d++)
        usable += problem->usable[d];
    if (usable >= 2 && problem->workload->stages != 1)
        return true;
    err_set(err, ERR_UNSUPPORTED, "a pipeline needs two devices; %u can be used", usable);
    return false;
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
    if (usable <= PIPELINE_EXHAUSTIVE)
        return orders_walk(&o, err);
    return pipeline_propose_many(problem, list, err);
}

const struct placement place_pipeline = {
    .kind = PLACE_PIPELINE, .supports = pipeline_supports, .propose = pipeline_propose, .emit = chain_emit};
