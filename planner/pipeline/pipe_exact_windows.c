/* Windows and recomputation of a pipeline whose devices and cuts are known, from the tail: what a stage and
 * all later ones do is followed event by event (docs/PROGRAM.md: rings of buffers, links in order), while the
 * earlier ones are taken never to hold a forward up and to pass the last gradient on at once. That is a lower
 * bound of whatever windows they get, and with all windows set the step itself but for wires that several
 * pairs share. A stage recomputes only where it does not fit otherwise: recomputing makes nothing earlier. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/pipeline/chain_private.h"
#include "planner/pipeline/pipe_exact_private.h"

#define TIMES 6u      /* arrays of struct exact_times */
#define RUN_ARRAYS 4u /* of struct run */

/* A run of stages [first, stages) over one step. */
struct run {
    const struct exact *x;
    const struct exact_times *times;
    uint32_t first, count;
    uint32_t ring[PIPE_EXACT_DEVICES];     /* between stage s and s + 1 */
    double latency[2][PIPE_EXACT_DEVICES]; /* of the link behind s: onward, and back over it */
    double *end[2], *off[2]; /* [stages][micro-batches]: forwards', backwards' end; when their send is done */
    uint32_t done[2][PIPE_EXACT_DEVICES], sent[2][PIPE_EXACT_DEVICES];
    double busy[PIPE_EXACT_DEVICES], wire[2][PIPE_EXACT_DEVICES];
};

int exact_times_init(struct exact *x)
{
    size_t cells = (size_t)PIPE_EXACT_DEVICES * x->micro_batches, each = TIMES * cells;
    x->times = calloc(x->steps, sizeof(*x->times));
    x->memory = malloc((each * x->steps + RUN_ARRAYS * cells) * sizeof(*x->memory));
    if (!x->times || !x->memory)
        return err_set(x->err, ERR_NOMEM, "planner: out of memory");
    for (uint32_t t = 0; t < x->steps; t++) {
        double *at = x->memory + t * each;
        x->times[t] = (struct exact_times){.forward = at,
                                           .backward = at + cells,
                                           .again = at + 2 * cells,
                                           .onward = at + 3 * cells,
                                           .back = at + 4 * cells,
                                           .comes = at + 5 * cells};
    }
    return 0;
}

void exact_times_fini(struct exact *x)
{
    free(x->times);
    free(x->memory);
    x->times = NULL;
    x->memory = NULL;
}

static int32_t begin_of(const struct exact *x, uint32_t s)
{
    return s ? x->end[s - 1] : 0;
}

static void link_of(const struct exact *x, uint32_t from, uint32_t to, double *latency, double *rate)
{
    bool emulated;
    cluster_link(x->p->cluster, x->device[from], x->device[to], latency, rate, &emulated);
}

/* Seconds of a link for a micro-batch: it is occupied for the first of them. */
static double occupied(const struct exact *x, uint32_t t, uint32_t k, double rate)
{
    double bytes = x->bytes[(size_t)t * x->micro_batches + k];
    return bytes > 0 ? bytes / rate : 0;
}

static void times_fill(struct exact *x, uint32_t t)
{
    struct exact_times *times = &x->times[t];
    uint32_t count = x->micro_batches;
    double tail = 0;
    for (uint32_t s = 0; s < x->stages; s++) {
        const struct micro_cost *cost = &x->cost[((size_t)t * x->p->device_count + x->device[s]) * count];
        double latency = 0, rate = INFINITY, back_latency = 0, back_rate = INFINITY, free = 0;
        if (s > 0) {
            link_of(x, s - 1, s, &latency, &rate);
            link_of(x, s, s - 1, &back_latency, &back_rate);
        }
        for (uint32_t k = 0; k < count; k++) {
            size_t at = (size_t)s * count + k;
            times->forward[at] = micro_forward(x->p, &cost[k], begin_of(x, s), x->end[s]);
            times->backward[at] = micro_backward(x->p, &cost[k], begin_of(x, s), x->end[s], false);
            times->again[at] =
                micro_backward(x->p, &cost[k], begin_of(x, s), x->end[s], true) - times->backward[at];
            times->back[at] = occupied(x, t, k, back_rate);
            times->comes[at] = 0;
            if (s > 0) { /* forwards one after the other, as if there were room for all */
                size_t before = at - count;
                times->onward[before] = occupied(x, t, k, rate);
                free = fmax(free, times->comes[before] + times->forward[before]) + times->onward[before];
                times->comes[at] = free + (x->bytes[(size_t)t * count + k] < 0 ? 0 : latency);
            }
            if (k > 0)
                times->comes[at] = fmax(times->comes[at], times->comes[at - 1] + times->forward[at - 1]);
        }
        double last = x->bytes[(size_t)t * count + count - 1];
        if (s > 0)
            tail += times->backward[(size_t)(s - 1) * count + count - 1] +
                    (last < 0 ? 0 : back_latency + occupied(x, t, count - 1, back_rate));
        times->tail[s] = tail;
    }
}

/* --- one run --- */

/* Sends of stage s, in order, as far as what they need is known. way 0: forwards to s + 1, 1: backwards to
 * s − 1. */
static void send_on(struct run *r, int way, uint32_t s)
{
    uint32_t to = way ? s - 1 : s + 1, ring = r->ring[way ? s - 1 : s], count = r->count;
    const double *takes = way ? r->times->back : r->times->onward;
    while (r->sent[way][s] < r->done[way][s]) {
        uint32_t k = r->sent[way][s];
        size_t at = (size_t)s * count + k;
        double start = fmax(r->end[way][at], r->wire[way][s]);
        if (k >= ring) {
            if (r->done[way][to] <= k - ring)
                return;
            start = fmax(start, r->end[way][(size_t)to * count + k - ring]);
        }
        r->off[way][at] = r->wire[way][s] = start + takes[at];
        r->sent[way][s]++;
    }
}

/* When the next forward or backward of stage s may begin; negative: not known yet. */
static double next_begins(struct run *r, int way, uint32_t s)
{
    uint32_t k = r->done[way][s], out = chain_ring_out(r->count), count = r->count;
    bool comes = way ? s + 1 < r->x->stages : s > r->first, goes = way ? s > r->first : s + 1 < r->x->stages;
    double start = way || s > r->first ? r->busy[s] : fmax(r->busy[s], r->times->comes[s * count + k]);
    if (comes) {
        uint32_t from = way ? s + 1 : s - 1;
        send_on(r, way, from);
        if (r->sent[way][from] <= k)
            return -1;
        double latency = r->latency[way][way ? s : s - 1];
        start = fmax(start, r->off[way][(size_t)from * count + k] + latency);
    }
    if (goes && k >= out) {
        send_on(r, way, s);
        if (r->sent[way][s] <= k - out)
            return -1;
        start = fmax(start, r->off[way][(size_t)s * count + k - out]);
    }
    return start;
}

static bool run_step(struct run *r, uint32_t s)
{
    uint32_t forwards = r->done[0][s], backwards = r->done[1][s];
    if (backwards == r->count)
        return false;
    int way = !(forwards < r->count && forwards < backwards + r->x->window[s]);
    if (way && backwards == forwards)
        return false;
    double start = next_begins(r, way, s);
    if (start < 0)
        return false;
    size_t at = (size_t)s * r->count + (way ? backwards : forwards);
    double takes =
        way ? r->times->backward[at] + (r->x->recompute[s] ? r->times->again[at] : 0) : r->times->forward[at];
    r->end[way][at] = r->busy[s] = start + takes;
    r->done[way][s]++;
    return true;
}

/* Seconds of step t when stages from `first` on have windows and rings as given. */
static double run_seconds(struct exact *x, uint32_t t, uint32_t first, const uint32_t *ring)
{
    size_t cells = (size_t)PIPE_EXACT_DEVICES * x->micro_batches;
    double *memory = x->memory + (size_t)TIMES * cells * x->steps, rate;
    struct run r = {.x = x,
                    .times = &x->times[t],
                    .first = first,
                    .count = x->micro_batches,
                    .end = {memory, memory + cells},
                    .off = {memory + 2 * cells, memory + 3 * cells}};
    uint32_t left = 2 * (x->stages - first) * x->micro_batches;
    memcpy(r.ring, ring, x->stages * sizeof(*ring));
    for (uint32_t s = first; s + 1 < x->stages; s++) {
        link_of(x, s, s + 1, &r.latency[0][s], &rate);
        link_of(x, s + 1, s, &r.latency[1][s], &rate);
    }
    x->left -= x->left < left ? x->left : left;
    while (left > 0) {
        uint32_t before = left;
        for (uint32_t s = first; s < x->stages; s++) {
            while (run_step(&r, s))
                left--;
        }
        if (left == before)
            return INFINITY;
    }
    return r.end[1][(size_t)first * r.count + r.count - 1] + r.times->tail[first];
}

/* The mean of all steps; given up where the steps so far alone are more than the best. */
static double run_mean(struct exact *x, uint32_t first, const uint32_t *ring)
{
    double sum = 0, most = (x->best * (1 - PIPE_EXACT_SAME) - x->after) * x->steps;
    for (uint32_t t = 0; t < x->steps && sum < most; t++)
        sum += run_seconds(x, t, first, ring);
    return sum / x->steps + x->after;
}

/* --- windows --- */

/* Could the stage keep its window with rings of that depth before and behind it? Says whether it recomputes.
 */
static bool stage_fits(struct exact *x, uint32_t s, uint32_t before, uint32_t behind)
{
    uint32_t out = chain_ring_out(x->micro_batches);
    uint32_t buffers = (s > 0 ? before + out : 0) + (s + 1 < x->stages ? behind + out : 0);
    uint32_t window = x->window[s] < x->micro_batches ? x->window[s] : x->micro_batches;
    for (int recompute = 0; recompute < 2; recompute++) {
        x->recompute[s] = recompute;
        if (micro_recompute_allowed(x->p, recompute) &&
            exact_need(x, begin_of(x, s), x->end[s], window, recompute, buffers) <=
                x->p->cluster->devices[x->device[s]].memory_limit_bytes)
            return true;
    }
    return false;
}

/* Windows of all stages are set: memory, the run, and where that is faster than all else, the simulation. */
static void leaf(struct exact *x)
{
    struct place_stage stages[PIPE_EXACT_DEVICES];
    struct place_member members[PIPE_EXACT_DEVICES];
    uint32_t ring[PIPE_EXACT_DEVICES + 1] = {0}, count = x->micro_batches;
    for (uint32_t s = 0; s + 1 < x->stages; s++)
        ring[s + 1] = chain_ring(x->window[s], x->window[s + 1], count);
    for (uint32_t s = 0; s < x->stages; s++) {
        if (!stage_fits(x, s, ring[s], ring[s + 1]))
            return;
    }
    if (run_mean(x, 0, &ring[1]) >= x->best * (1 - PIPE_EXACT_SAME))
        return;
    for (uint32_t s = 0; s < x->stages; s++) {
        stages[s] = (struct place_stage){
            .block_begin = begin_of(x, s), .block_end = x->end[s], .member_first = s, .member_count = 1};
        members[s] = (struct place_member){.device = x->device[s],
                                           .micro_rows = x->rows,
                                           .micro_count = count,
                                           .state_share = 1,
                                           .window = x->window[s],
                                           .recompute = x->recompute[s]};
    }
    bool all = x->window[x->stages - 1] >= count && count > 1;
    struct place_choice choice = {.placement = PLACE_PIPELINE,
                                  .schedule = all ? SCHEDULE_GPIPE : SCHEDULE_1F1B,
                                  .micro_batch_rows = x->rows,
                                  .stage_count = x->stages,
                                  .member_count = x->stages,
                                  .stages = stages,
                                  .members = members};
    exact_take(x, &choice);
}

/* Windows of the first stages that keep all micro-batches may say more, which deepens the rings between them
 * (chain.c). */
static void leaf_rings(struct exact *x)
{
    uint32_t all = 0, count = x->micro_batches;
    while (all < x->stages && x->window[all] == count)
        all++;
    leaf(x);
    for (uint32_t more = 1; more < count && all > 0; more++) {
        for (uint32_t s = 0; s < all; s++)
            x->window[s] = count + more * (all < x->stages ? all - s : all - s - 1);
        leaf(x);
    }
    for (uint32_t s = 0; s < all; s++)
        x->window[s] = count;
}

static void windows_walk(struct exact *x, uint32_t s)
{
    uint32_t count = x->micro_batches, least = s + 1 < x->stages ? x->window[s + 1] : 1;
    uint32_t ring[PIPE_EXACT_DEVICES] = {0};
    for (uint32_t k = s; k + 1 < x->stages; k++)
        ring[k] =
            k > s ? (x->window[k] < count ? chain_ring(x->window[k], x->window[k + 1], count) : count) : 0;
    for (uint32_t window = least; window <= count && x->left > 0 && !x->failed; window++) {
        uint32_t behind = s + 1 < x->stages ? chain_ring(window, x->window[s + 1], count) : 0;
        uint32_t beyond = s + 2 < x->stages ? chain_ring(x->window[s + 1], x->window[s + 2], count) : 0;
        x->window[s] = window;
        if (!stage_fits(x, s, chain_ring(window, window, count), behind) ||
            (s + 1 < x->stages && !stage_fits(x, s + 1, behind, beyond)))
            break; /* wider ones take more */
        ring[s] = window < count ? behind : count;
        if (run_mean(x, s, ring) >= x->best * (1 - PIPE_EXACT_SAME))
            continue;
        if (s == 0)
            leaf_rings(x);
        else
            windows_walk(x, s - 1);
    }
    x->cut_off = x->cut_off || x->left == 0;
}

void exact_windows(struct exact *x)
{
    for (uint32_t t = 0; t < x->steps; t++)
        times_fill(x, t);
    x->left -=
        x->left < x->steps * x->stages * x->micro_batches ? x->left : x->steps * x->stages * x->micro_batches;
    windows_walk(x, x->stages - 1);
}
