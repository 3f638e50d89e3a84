/* Orders of devices first, then ranges from the head, then windows from the first rank on.
 *
 * A rank computes nothing before a first micro-batch has passed the ranks before it, and nothing after its
 * last backward but what passes them again: C_r + W_r + D_r, whatever the windows, and the step takes as long
 * as the largest of these. Of ranges not cut yet, that is at least their mean by any weights λ (Σ λ = 1),
 * each block taken to be where λ_r times its seconds is least; λ_r is in proportion to the rank's speed.
 *
 * Ranges known, a step is followed event by event. A rank whose window is not set yet passes forwards on as
 * if it computed nothing else, and does its n-th backward after as many forwards and backwards as any window
 * asks for: that bounds all windows it may get (README.md). */
#include "planner/pipeline/lap_exact.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/pipeline/chain_private.h"
#include "planner/pipeline/pipe_exact_private.h"

#define RANKS PIPE_EXACT_DEVICES
#define RANGES PIPE_EXACT_BLOCKS
#define NO_WINDOW UINT32_MAX

struct lap_turn {
    uint32_t lap, micro_batch;
};

/* What the wires between neighbouring ranks take; way 0: to the next rank, 1: to the one before. */
struct lap_link {
    double latency[2], rate[2];
};

/* Times of one step's micro-batches through the ranges in hand; [ranges][micro-batches] each, seconds. */
struct lap_times {
    double *takes[2], *again; /* forwards, backwards; what recomputation adds to these */
    double *wire[2];          /* [ranks][micro-batches]: on the link onward; on the link back */
};

struct laps {
    struct exact x; /* device: of each rank */
    uint32_t ranks, laps, ranges;
    uint32_t step_turns; /* forwards of a rank in a step */
    bool priced;         /* the two below are there */
    /* bytes of a range at its least but for what a rank's ranges share, and that */
    uint64_t held[RANGES][RANGES + 1], shared[RANGES][RANGES + 1];
    /* the order in hand */
    double weight[RANKS], least[COST_CLASSES]; /* λ; the least λ · seconds of a block */
    struct lap_link link[RANKS];
    uint32_t narrow[RANKS]; /* least windows */
    struct lap_turn *turn;  /* [step_turns] */
    /* the ranges in hand */
    int32_t end[RANGES];
    double comes[RANKS + 1], leaves[RANKS + 1], work[RANKS]; /* C, D, W above: means in seconds */
    uint64_t bytes[RANKS], most_shared[RANKS];
    uint32_t whole_most[RANKS], most[RANKS]; /* widest windows that fit without recomputation; with it, too */
    uint32_t window[RANKS];                  /* NO_WINDOW: not set yet */
    bool recompute[RANKS];
    struct lap_times *times; /* [steps] */
    double *came[2], *done;  /* [ranges][micro-batches]; [ranks][step_turns]: ends of forwards */
    double *memory;
};

static int32_t begin_of(const struct laps *w, uint32_t j)
{
    return j ? w->end[j - 1] : 0;
}

static bool too_slow(const struct laps *w, double seconds)
{
    return seconds >= w->x.best * (1 - PIPE_EXACT_SAME);
}

static void spend(struct laps *w, uint64_t amount)
{
    w->x.left -= w->x.left < amount ? w->x.left : amount;
    w->x.cut_off = w->x.cut_off || w->x.left == 0;
}

/* --- one size of micro-batches --- */

static struct memory_stage range_of(const struct laps *w, int32_t begin, int32_t end, uint32_t live,
                                    bool recompute)
{
    uint32_t ring = 1 + chain_ring_out(w->x.micro_batches); /* received into, one at least; and sent from */
    return (struct memory_stage){.block_begin = begin,
                                 .block_end = end,
                                 .window = live,
                                 .micro_batch_rows = w->x.rows,
                                 .recompute = recompute,
                                 .boundary_buffers = ((begin > 0) + (end < w->x.blocks)) * ring,
                                 .state_share = 1,
                                 .tensor_share = 1};
}

static void held_fill(struct laps *w)
{
    for (int32_t b = 0; b < w->x.blocks; b++) {
        for (int32_t e = b + 1; e <= w->x.blocks; e++) {
            w->held[b][e] = w->shared[b][e] = UINT64_MAX;
            for (int recompute = 0; recompute < 2; recompute++) {
                const struct memory_stage range = range_of(w, b, e, 1, recompute);
                struct memory_need need = {0};
                uint64_t shared = 0, saved;
                if (!micro_recompute_allowed(w->x.p, recompute))
                    continue;
                chain_range_need(w->x.p, &range, &shared, &need, &saved);
                uint64_t held = need.total - shared;
                w->held[b][e] = held < w->held[b][e] ? held : w->held[b][e];
                w->shared[b][e] = shared < w->shared[b][e] ? shared : w->shared[b][e];
            }
        }
    }
}

static int memory_init(struct laps *w)
{
    struct exact *x = &w->x;
    size_t cells = (size_t)x->blocks * x->micro_batches, wires = (size_t)RANKS * x->micro_batches;
    size_t each = 3 * cells + 2 * wires;
    w->times = calloc(x->steps, sizeof(*w->times));
    w->turn = calloc(cells, sizeof(*w->turn));
    w->memory = malloc((each * x->steps + 3 * cells) * sizeof(*w->memory));
    if (!w->times || !w->turn || !w->memory)
        return err_set(x->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t t = 0; t < x->steps; t++) {
        double *at = w->memory + t * each;
        w->times[t] = (struct lap_times){.takes = {at, at + cells},
                                         .again = at + 2 * cells,
                                         .wire = {at + 3 * cells, at + 3 * cells + wires}};
    }
    double *at = w->memory + x->steps * each;
    w->came[0] = at;
    w->came[1] = at + cells;
    w->done = at + 2 * cells;
    return 0;
}

static void memory_fini(struct laps *w)
{
    free(w->times);
    free(w->turn);
    free(w->memory);
    w->times = NULL;
    w->turn = NULL;
    w->memory = NULL;
}

/* --- one run --- */

struct lap_run {
    const struct laps *w;
    const struct lap_times *times;
    const double *bytes;                     /* [micro-batches]; negative: an empty one */
    uint32_t done[2][RANKS], counted[RANKS]; /* forwards, backwards; forwards in `volume` */
    double busy[2][RANKS];                   /* of a rank with a window, [0] is both */
    double began[RANKS], volume[RANKS], wire[2][RANKS];
};

/* The range of a rank's n-th forward or backward, and its cell. */
static uint32_t range_at(const struct laps *w, uint32_t r, int way, uint32_t n, size_t *cell)
{
    const struct lap_turn *turn = &w->turn[n];
    uint32_t j = (way ? w->laps - 1 - turn->lap : turn->lap) * w->ranks + r;
    *cell = (size_t)j * w->x.micro_batches + turn->micro_batch;
    return j;
}

static double takes(const struct lap_run *run, uint32_t r, int way, size_t cell)
{
    return run->times->takes[way][cell] + (way && run->w->recompute[r] ? run->times->again[cell] : 0);
}

/* The earliest that a backward of a rank without a window begins, by what any window puts before it;
 * negative: not known yet. */
static double backward_begins(struct lap_run *run, uint32_t r, uint32_t n)
{
    const struct laps *w = run->w;
    uint32_t before = n + w->narrow[r] < w->step_turns ? n + w->narrow[r] : w->step_turns;
    if (run->done[0][r] < before)
        return -1;
    for (; run->counted[r] < before; run->counted[r]++) {
        size_t cell;
        range_at(w, r, 0, run->counted[r], &cell);
        run->volume[r] += takes(run, r, 0, cell);
    }
    return fmax(fmax(run->busy[1][r], w->done[(size_t)r * w->step_turns + before - 1]),
                run->began[r] + run->volume[r]);
}

/* A forward or backward that begins at `start`, and the transfer of what comes of it. */
static void event_do(struct lap_run *run, uint32_t r, int way, uint32_t j, size_t cell, double start)
{
    const struct laps *w = run->w;
    bool open = w->window[r] == NO_WINDOW, goes = way ? j > 0 : j + 1 < w->ranges;
    uint32_t k = (uint32_t)(cell - (size_t)j * w->x.micro_batches);
    double seconds = takes(run, r, way, cell), end = start + seconds;
    if (run->done[0][r] == 0)
        run->began[r] = start;
    if (way)
        run->volume[r] += seconds;
    else
        w->done[(size_t)r * w->step_turns + run->done[0][r]] = end;
    run->busy[open ? way : 0][r] = end;
    run->done[way][r]++;
    if (!goes)
        return;
    /* two ranks have one wire each way, whatever direction the blocks go */
    double *wire = &run->wire[w->ranks == 2 && !open ? 0 : way][r];
    *wire = fmax(*wire, end) + run->times->wire[way][(size_t)r * w->x.micro_batches + k];
    size_t to = way ? cell - w->x.micro_batches : cell + w->x.micro_batches;
    w->came[way][to] = *wire + (run->bytes[k] < 0 ? 0 : w->link[r].latency[way]);
}

/* Does the next forward or backward of a rank, if it is known when it begins. */
static bool event_try(struct lap_run *run, uint32_t r, int way)
{
    const struct laps *w = run->w;
    bool open = w->window[r] == NO_WINDOW;
    uint32_t n = run->done[way][r];
    size_t cell;
    if (n == w->step_turns)
        return false;
    uint32_t j = range_at(w, r, way, n, &cell);
    double came = (way ? j + 1 < w->ranges : j > 0) ? w->came[way][cell] : 0;
    double free = way && open ? backward_begins(run, r, n) : run->busy[0][r];
    if (came < 0 || free < 0)
        return false;
    event_do(run, r, way, j, cell, fmax(came, free));
    return true;
}

static bool rank_step(struct lap_run *run, uint32_t r)
{
    const struct laps *w = run->w;
    uint32_t forwards = run->done[0][r], window = w->window[r];
    if (window == NO_WINDOW)
        return event_try(run, r, 0) || event_try(run, r, 1);
    return event_try(run, r, !(forwards < w->step_turns && forwards < run->done[1][r] + window));
}

/* Seconds of step t; a bound where windows are not set. */
static double run_seconds(struct laps *w, uint32_t t)
{
    struct lap_run run = {
        .w = w, .times = &w->times[t], .bytes = &w->x.bytes[(size_t)t * w->x.micro_batches]};
    uint32_t left = 2 * w->ranks * w->step_turns;
    size_t cells = (size_t)w->ranges * w->x.micro_batches;
    double end = 0;
    for (size_t i = 0; i < cells; i++)
        w->came[0][i] = w->came[1][i] = -1;
    spend(w, left);
    while (left > 0) {
        uint32_t before = left;
        for (uint32_t r = 0; r < w->ranks; r++) {
            while (rank_step(&run, r))
                left--;
        }
        if (left == before)
            return INFINITY;
    }
    for (uint32_t r = 0; r < w->ranks; r++)
        end = fmax(end, fmax(run.busy[0][r], run.busy[1][r]));
    return end;
}

/* Is the mean of all steps no less than the best? */
static bool run_slow(struct laps *w)
{
    double sum = 0;
    for (uint32_t t = 0; t < w->x.steps; t++) {
        sum += run_seconds(w, t);
        if (too_slow(w, sum / w->x.steps + w->x.after))
            return true;
    }
    return false;
}

/* --- windows --- */

/* Does a rank hold its ranges with the window, rings as short as can be? */
static bool rank_fits(const struct laps *w, uint32_t r, uint32_t window, bool recompute)
{
    uint32_t live[RANGES] = {0}, most[RANGES] = {0};
    uint64_t shared = 0, saved;
    struct memory_need need = {0};
    for (uint32_t forwards = 0, backwards = 0; backwards < w->step_turns; backwards++) {
        for (; forwards < w->step_turns && forwards < backwards + window; forwards++) {
            uint32_t lap = w->turn[forwards].lap, now = ++live[lap];
            most[lap] = now > most[lap] ? now : most[lap];
        }
        live[w->laps - 1 - w->turn[backwards].lap]--;
    }
    for (uint32_t lap = 0; lap < w->laps; lap++) {
        uint32_t j = lap * w->ranks + r;
        const struct memory_stage range = range_of(w, begin_of(w, j), w->end[j], most[lap], recompute);
        chain_range_need(w->x.p, &range, &shared, &need, &saved);
    }
    return need.total <= w->x.p->cluster->devices[w->x.device[r]].memory_limit_bytes;
}

/* The widest window that fits; 0: none. */
static uint32_t widest(const struct laps *w, uint32_t r, bool recompute)
{
    uint32_t fits = w->narrow[r], beyond = w->step_turns;
    if (!micro_recompute_allowed(w->x.p, recompute))
        return 0;
    if (rank_fits(w, r, beyond, recompute))
        return beyond;
    if (!rank_fits(w, r, fits, recompute))
        return 0;
    while (fits + 1 < beyond) {
        uint32_t middle = fits + (beyond - fits) / 2;
        if (rank_fits(w, r, middle, recompute))
            fits = middle;
        else
            beyond = middle;
    }
    return fits;
}

/* Windows of all ranks are set: simulated. Rings may be longer than was thought: then one more recomputes. */
static void windows_whole(struct laps *w)
{
    struct place_stage stages[RANGES];
    struct place_member members[RANKS];
    struct exact *x = &w->x;
    for (uint32_t j = 0; j < w->ranges; j++)
        stages[j] = (struct place_stage){.block_begin = begin_of(w, j),
                                         .block_end = w->end[j],
                                         .member_first = j % w->ranks,
                                         .member_count = 1};
    for (uint32_t r = 0; r < w->ranks; r++)
        members[r] = (struct place_member){.device = x->device[r],
                                           .micro_rows = x->rows,
                                           .micro_count = x->micro_batches,
                                           .state_share = 1,
                                           .window = w->window[r],
                                           .recompute = w->recompute[r]};
    const struct place_choice choice = {.placement = PLACE_PIPELINE,
                                        .schedule = SCHEDULE_INTERLEAVED,
                                        .micro_batch_rows = x->rows,
                                        .stage_count = w->ranges,
                                        .member_count = w->ranks,
                                        .stages = stages,
                                        .members = members};
    if (exact_take(x, &choice) || !micro_recompute_allowed(x->p, true))
        return;
    for (uint32_t r = 0; r < w->ranks; r++) {
        if (members[r].recompute)
            continue;
        w->recompute[r] = members[r].recompute = true;
        if (!run_slow(w))
            exact_take(x, &choice);
        w->recompute[r] = members[r].recompute = false;
    }
}

static void windows_walk(struct laps *w, uint32_t r)
{
    bool recompute = w->recompute[r];
    for (uint32_t window = w->narrow[r]; window <= w->most[r] && w->x.left > 0 && !w->x.failed; window++) {
        w->window[r] = window;
        w->recompute[r] = window > w->whole_most[r];
        if (run_slow(w))
            continue;
        if (r + 1 == w->ranks)
            windows_whole(w);
        else
            windows_walk(w, r + 1);
    }
    w->window[r] = NO_WINDOW;
    w->recompute[r] = recompute;
}

static void takes_fill(struct laps *w, uint32_t t)
{
    const struct exact *x = &w->x;
    struct lap_times *times = &w->times[t];
    for (uint32_t j = 0; j < w->ranges; j++) {
        uint32_t d = x->device[j % w->ranks];
        const struct micro_cost *cost = &x->cost[((size_t)t * x->p->device_count + d) * x->micro_batches];
        for (uint32_t k = 0; k < x->micro_batches; k++) {
            size_t cell = (size_t)j * x->micro_batches + k;
            times->takes[0][cell] = micro_forward(x->p, &cost[k], begin_of(w, j), w->end[j]);
            times->takes[1][cell] = micro_backward(x->p, &cost[k], begin_of(w, j), w->end[j], false);
            times->again[cell] =
                micro_backward(x->p, &cost[k], begin_of(w, j), w->end[j], true) - times->takes[1][cell];
        }
    }
}

/* All ranges are known. */
static void windows_look(struct laps *w)
{
    struct exact *x = &w->x;
    double most = 0, first = 0;
    for (uint32_t r = 0; r < w->ranks; r++) {
        double step = 0;
        for (uint32_t j = r; j < w->ranges; j += w->ranks)
            step += problem_step_seconds(x->p, x->device[r], begin_of(w, j), w->end[j]);
        first = r ? first : step;
        most = fmax(most, step);
        w->most[r] = w->whole_most[r] = widest(w, r, false);
        if (w->whole_most[r] < w->step_turns)
            w->most[r] = widest(w, r, true);
        w->most[r] = w->most[r] > w->whole_most[r] ? w->most[r] : w->whole_most[r];
        if (w->most[r] == 0)
            return;
        w->window[r] = NO_WINDOW;
        w->recompute[r] = w->whole_most[r] == 0;
    }
    x->after = exact_after(x, most, first, x->device[w->ranks - 1]);
    for (uint32_t t = 0; t < x->steps; t++)
        takes_fill(w, t);
    spend(w, (uint64_t)x->steps * w->ranges * x->micro_batches);
    if (!run_slow(w))
        windows_walk(w, 0);
}

/* --- ranges --- */

/* A step at least, when ranges 0..j − 1 hold blocks up to b: the mean of all ranks' bounds by weight. */
static double weighted(const struct laps *w, uint32_t j, int32_t b)
{
    const struct problem *p = w->x.p;
    uint32_t known = j < w->ranks ? j : w->ranks - 1;
    double sum = 0;
    for (uint32_t r = 0; r < w->ranks; r++) {
        uint32_t s = r < known ? r : known; /* those after the last that is known begin no earlier */
        sum += w->weight[r] * (w->comes[s] + w->work[r] + w->leaves[s]);
    }
    for (int cls = 0; cls < COST_CLASSES; cls++)
        sum += w->least[cls] * (p->prefix[p->block_count][cls] - p->prefix[b][cls]);
    return sum;
}

/* What is before the rank after range j, one of the first, and after it. */
static void passes_set(struct laps *w, uint32_t j)
{
    const struct exact *x = &w->x;
    uint32_t from = x->device[j], to = x->device[j + 1], n = x->p->device_count;
    w->comes[j + 1] = w->comes[j] + micro_forward(x->p, &x->first[from], begin_of(w, j), w->end[j]) +
                      x->hop_first[from * n + to];
    w->leaves[j + 1] = w->leaves[j] + micro_backward(x->p, &x->last[from], begin_of(w, j), w->end[j], false) +
                       x->hop_last[to * n + from];
}

static void ranges_walk(struct laps *w, uint32_t j)
{
    const struct exact *x = &w->x;
    uint32_t r = j % w->ranks, d = x->device[r];
    int32_t begin = begin_of(w, j), last = x->blocks - (int32_t)(w->ranges - j - 1);
    uint64_t bytes = w->bytes[r], shared = w->most_shared[r],
             limit = x->p->cluster->devices[d].memory_limit_bytes;
    double work = w->work[r];
    for (int32_t end = j + 1 == w->ranges ? last : begin + 1; end <= last && x->left > 0 && !x->failed;
         end++) {
        uint64_t own = w->shared[begin][end];
        spend(w, 1);
        w->end[j] = end;
        w->work[r] = work + micro_forward(x->p, &x->all[d], begin, end) +
                     micro_backward(x->p, &x->all[d], begin, end, false);
        w->bytes[r] = bytes + w->held[begin][end];
        w->most_shared[r] = own > shared ? own : shared;
        if (too_slow(w, w->comes[r] + w->work[r] + w->leaves[r]))
            break;
        if (j + 1 < w->ranks)
            passes_set(w, j);
        if (w->bytes[r] + w->most_shared[r] > limit || too_slow(w, weighted(w, j + 1, end)))
            continue;
        if (j + 1 == w->ranges)
            windows_look(w);
        else
            ranges_walk(w, j + 1);
    }
    w->work[r] = work;
    w->bytes[r] = bytes;
    w->most_shared[r] = shared;
}

/* --- orders --- */

static void order_init(struct laps *w)
{
    const struct exact *x = &w->x;
    double rate = 0, each[RANKS][COST_CLASSES];
    for (int cls = 0; cls < COST_CLASSES; cls++)
        w->least[cls] = INFINITY;
    for (uint32_t r = 0; r < w->ranks; r++) {
        uint32_t next = (r + 1) % w->ranks, before = (r + w->ranks - 1) % w->ranks;
        const struct micro_cost *all = &x->all[x->device[r]];
        struct lap_link *link = &w->link[r];
        bool emulated;
        cluster_link(x->p->cluster, x->device[r], x->device[next], &link->latency[0], &link->rate[0],
                     &emulated);
        cluster_link(x->p->cluster, x->device[r], x->device[before], &link->latency[1], &link->rate[1],
                     &emulated);
        for (int cls = 0; cls < COST_CLASSES; cls++)
            each[r][cls] = all->seconds[cls][COST_FORWARD] + all->seconds[cls][COST_BACKWARD];
        double whole =
            micro_forward(x->p, all, 0, x->blocks) + micro_backward(x->p, all, 0, x->blocks, false);
        w->weight[r] = whole > 0 ? 1 / whole : 1;
        rate += w->weight[r];
        w->work[r] = 0;
        w->bytes[r] = w->most_shared[r] = 0;
    }
    for (uint32_t r = 0; r < w->ranks; r++) {
        w->weight[r] /= rate;
        for (int cls = 0; cls < COST_CLASSES; cls++)
            w->least[cls] = fmin(w->least[cls], w->weight[r] * each[r][cls]);
    }
    w->comes[0] = w->leaves[0] = 0;
}

static void wires_fill(struct laps *w)
{
    const struct exact *x = &w->x;
    for (uint32_t i = 0; i < x->steps * w->ranks * x->micro_batches; i++) {
        uint32_t t = i / (w->ranks * x->micro_batches), at = i % (w->ranks * x->micro_batches);
        double bytes = x->bytes[(size_t)t * x->micro_batches + at % x->micro_batches];
        for (int way = 0; way < 2; way++)
            w->times[t].wire[way][at] = bytes > 0 ? bytes / w->link[at / x->micro_batches].rate[way] : 0;
    }
}

/* The devices in that order, as often around as there are blocks for. */
static void order_look(struct laps *w)
{
    struct exact *x = &w->x;
    order_init(w);
    if (too_slow(w, weighted(w, 0, 0)))
        return;
    if (!w->priced)
        held_fill(w);
    w->priced = true;
    wires_fill(w);
    for (w->laps = 2; (int32_t)(w->laps * w->ranks) <= x->blocks; w->laps++) {
        w->ranges = w->laps * w->ranks;
        w->step_turns = w->laps * x->micro_batches;
        for (uint32_t n = 0; n < w->step_turns; n++)
            pipe_order_turn(w->ranks, w->laps, x->micro_batches, n, &w->turn[n].lap, &w->turn[n].micro_batch);
        for (uint32_t r = 0; r < w->ranks; r++) {
            uint32_t least = pipe_order_window(w->ranks, w->laps, x->micro_batches, r);
            w->narrow[r] = least < w->step_turns ? least : w->step_turns;
        }
        ranges_walk(w, 0);
    }
}

static void orders_walk(struct laps *w, uint32_t at, uint32_t taken)
{
    struct exact *x = &w->x;
    if (at == w->ranks) {
        order_look(w);
        return;
    }
    for (uint32_t i = 0; i < x->count && x->left > 0 && !x->failed; i++) {
        x->device[at] = x->usable[i];
        if (!(taken >> i & 1))
            orders_walk(w, at + 1, taken | 1u << i);
    }
}

static int size_look(struct laps *w)
{
    struct exact *x = &w->x;
    uint32_t asked = x->p->workload->stages;
    if (exact_size_init(x) < 0 || memory_init(w) < 0)
        return -1;
    w->priced = false;
    for (w->ranks = x->count; w->ranks >= 2; w->ranks--) {
        if (asked == 0 || asked == w->ranks)
            orders_walk(w, 0, 0);
    }
    return x->failed ? -1 : 0;
}

int lap_exact(const struct problem *p, double beat_s, uint32_t steps_max, uint64_t budget,
              struct place_choice *choice, double *seconds, bool *whole, struct err *err)
{
    uint32_t sizes[MICRO_SIZES_MAX], size_count;
    struct laps *w = calloc(1, sizeof(*w));
    int result = 0;
    *choice = (struct place_choice){0};
    if (whole)
        *whole = false;
    if (!w)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    size_count = exact_init(&w->x, p, beat_s, steps_max, budget, err) ? exact_sizes(p, sizes) : 0;
    for (uint32_t i = 0; i < size_count && result == 0 && !p->runnable_only; i++) {
        w->x.rows = sizes[i];
        w->x.micro_batches = micro_count(p, sizes[i]);
        w->x.cut_off = w->x.cut_off || w->x.micro_batches > PIPE_EXACT_MICRO;
        if (w->x.micro_batches < 2 || w->x.micro_batches > PIPE_EXACT_MICRO)
            continue;
        result = size_look(w);
        exact_size_fini(&w->x);
        memory_fini(w);
    }
    if (whole)
        *whole = result == 0 && size_count > 0 && !w->x.cut_off && w->x.left > 0 && !p->runnable_only;
    result = exact_end(&w->x, result, choice, seconds);
    free(w);
    return result;
}
