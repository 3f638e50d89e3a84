/* A lower bound on the step time of any pipeline of groups, for bench_planner_search only. It is tighter than
 * the planner's lower bound, which ignores memory, whole layers, one micro-batch size for all devices, and
 * how a pipeline fills.
 *
 * Take one micro-batch size and a step of T seconds with M micro-batches; then P = T/M is the period. A
 * device that takes a share of the micro-batches through n whole layers covers q = n · share layers, and all
 * devices together must cover all layers. Two things bound the share. Time: share · n · t ≤ P, where t is the
 * seconds of a layer, recomputed or not. Memory: on average the device holds share · U micro-batches (Little
 * 1961), where U is the number of devices that are busy between the stage's head-side end and the tail,
 * because a micro-batch is held for as long as all of these need for it (waiting and links are not counted).
 * This assumes, without proof, that micro-batches of all members of a stage stay equally long.
 *
 * Devices may stand anywhere: the line of busy devices has one slot for each, and slots can be shared. The
 * most that can be covered is then a linear program. Any prices of slots bound it from above (its dual), and
 * subgradients find good prices (Polyak 1969). In addition, a device at layer a is idle while the first
 * micro-batches come to it and the last ones go back, at best at the speed of the fastest devices. The least
 * bound over all micro-batch sizes is the limit. Not covered: replicas of the whole model, whose micro-batch
 * size may differ between devices, tensor groups, and interleaved pipelines. */
#ifndef MOTLEY_BENCH_PLANNER_LIMIT_H
#define MOTLEY_BENCH_PLANNER_LIMIT_H

#include <math.h>
#include <stdlib.h>

#include "planner/cost/memory.h"
#include "planner/cost/micro.h"

#define LIMIT_TURNS 400u /* iterations of the search for prices */
#define LIMIT_WITHIN 1.002
#define LIMIT_MOST 16.0 /* the limit is searched up to this many times the planner's bound */

struct limit {
    const struct problem *p;
    uint32_t count; /* number of devices, and of slots */
    int32_t layers;
    uint32_t micro_batches;
    double *layer_s;      /* [count · 2]: seconds of a layer, saving and recomputing */
    double *memory;       /* [count] bytes */
    double *fixed, *each; /* [2 · (layers + 1)]: bytes of a stage, and of each micro-batch that it holds */
    double
        *covers; /* [count · count · 2]: most layers covered by a device at a slot, saving or recomputing */
    double *price, *used; /* [count]: price and use of each slot */
};

static inline void limit_fini(struct limit *l)
{
    free(l->layer_s);
    free(l->memory);
    free(l->fixed);
    free(l->each);
    free(l->covers);
    free(l->price);
    free(l->used);
}

static inline bool limit_init(struct limit *l, const struct problem *p, uint32_t rows)
{
    int32_t layers = p->block_count - 2;
    size_t count = p->device_count;
    *l = (struct limit){
        .p = p, .count = p->device_count, .layers = layers, .micro_batches = micro_count(p, rows)};
    l->layer_s = calloc(count * 2, sizeof(double));
    l->memory = calloc(count, sizeof(double));
    l->fixed = calloc(2 * ((size_t)layers + 1), sizeof(double));
    l->each = calloc(2 * ((size_t)layers + 1), sizeof(double));
    l->covers = calloc(count * count * 2, sizeof(double));
    l->price = calloc(count, sizeof(double));
    l->used = calloc(count, sizeof(double));
    if (!l->layer_s || !l->memory || !l->fixed || !l->each || !l->covers || !l->price || !l->used)
        return false;
    for (uint32_t d = 0; d < l->count; d++) {
        struct micro_cost cost;
        micro_cost_init(&cost, p, d, rows);
        for (int way = 0; way < 2; way++)
            l->layer_s[2 * d + way] = micro_forward(p, &cost, 1, 2) + micro_backward(p, &cost, 1, 2, way);
        l->memory[d] = (double)p->cluster->devices[d].memory_limit_bytes;
    }
    for (int way = 0; way < 2; way++) {
        for (int32_t n = 1; n <= layers; n++) {
            struct memory_need need;
            struct memory_stage stage = {.block_begin = 1,
                                         .block_end = 1 + n,
                                         .window = 1,
                                         .micro_batch_rows = rows,
                                         .recompute = way};
            memory_stage_need(p, &stage, &need);
            l->each[way * (layers + 1) + n] = (double)need.saved_bytes;
            l->fixed[way * (layers + 1) + n] = (double)(need.total - need.saved_bytes);
        }
    }
    return true;
}

/* Returns the most layers that a device covers at a slot, with `slot` other devices busy behind it. */
static inline double limit_covers(const struct limit *l, uint32_t d, uint32_t slot, int way, double period)
{
    double most = 0, in_time = period / l->layer_s[2 * d + way];
    for (int32_t n = 1; n <= l->layers && most < in_time; n++) {
        size_t at = (size_t)way * ((size_t)l->layers + 1) + (size_t)n;
        double room = floor((l->memory[d] - l->fixed[at]) / l->each[at]);
        if (room < 1)
            break;
        double share = slot > room ? room / slot : 1;
        most = fmax(most, fmin(in_time, n * share));
    }
    return most;
}

/* Returns an upper bound of the layers covered at the present prices. Also adds up how much each slot is
 * used. */
static inline double limit_dual(struct limit *l, double period)
{
    double sum = 0;
    for (uint32_t j = 0; j < l->count; j++) {
        sum += l->price[j];
        l->used[j] = 0;
    }
    for (uint32_t d = 0; d < l->count; d++) {
        double best = 0, takes = 0;
        uint32_t where = 0;
        for (uint32_t j = 0; j < l->count; j++) {
            for (int way = 0; way < 2; way++) {
                double covers = l->covers[((size_t)d * l->count + j) * 2 + (size_t)way],
                       busy = covers * l->layer_s[2 * d + way] / period, worth = covers - l->price[j] * busy;
                if (worth > best) {
                    best = worth;
                    takes = busy;
                    where = j;
                }
            }
        }
        sum += best;
        l->used[where] += takes;
    }
    return sum;
}

/* Whether some weights of the constraints (a solution of the dual problem) prove that no plan has this
 * period. */
static inline bool limit_refutes(struct limit *l, double period)
{
    for (uint32_t d = 0; d < l->count; d++) {
        for (uint32_t j = 0; j < l->count; j++)
            for (int way = 0; way < 2; way++)
                l->covers[((size_t)d * l->count + j) * 2 + (size_t)way] =
                    micro_recompute_allowed(l->p, way) ? limit_covers(l, d, j, way, period) : 0;
    }
    for (uint32_t j = 0; j < l->count; j++)
        l->price[j] = 0;
    for (uint32_t turn = 0; turn < LIMIT_TURNS; turn++) {
        double most = limit_dual(l, period), square = 0;
        if (most < l->layers)
            return true;
        for (uint32_t j = 0; j < l->count; j++)
            square += (1 - l->used[j]) * (1 - l->used[j]);
        if (square < 1e-12)
            return false;
        double step = (most - l->layers * 0.999) / square;
        for (uint32_t j = 0; j < l->count; j++)
            l->price[j] = fmax(0, l->price[j] - step * (1 - l->used[j]));
    }
    return false;
}

/* Returns the least T with T · R ≥ M · L + M τ (L − n)² / 2T, where R is the layers per second of all devices
 * together, n the most layers that a device holds, and τ the time of a layer on the fastest device. */
static inline double limit_filling(const struct limit *l)
{
    double rate = 0, fastest = INFINITY, low, high;
    int32_t most = 0;
    for (uint32_t d = 0; d < l->count; d++) {
        rate += 1 / l->layer_s[2 * d];
        fastest = fmin(fastest, l->layer_s[2 * d]);
        for (int way = 0; way < 2; way++) {
            for (int32_t n = most + 1; n <= l->layers; n++) {
                size_t at = (size_t)way * ((size_t)l->layers + 1) + (size_t)n;
                if (l->fixed[at] + l->each[at] > l->memory[d])
                    break;
                most = n;
            }
        }
    }
    double m = l->micro_batches, before = l->layers - most;
    low = m * l->layers / rate;
    high = 2 * low;
    for (int turn = 0; turn < 40; turn++) {
        double middle = (low + high) / 2;
        if (middle * rate < m * l->layers + m * fastest * before * before / (2 * middle))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Returns the limit in seconds for one micro-batch size. */
static inline double limit_at(struct limit *l, double known)
{
    double low = limit_filling(l), high = known;
    if (low >= known || limit_refutes(l, known / l->micro_batches))
        return INFINITY;
    while (high > low * LIMIT_WITHIN) {
        double middle = (low + high) / 2;
        if (limit_refutes(l, middle / l->micro_batches))
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Returns the limit: no pipeline of groups has a step of fewer seconds. `bound` is the planner's lower bound.
 */
static inline double limit_seconds(const struct problem *p, double bound)
{
    uint32_t sizes[MICRO_SIZES_MAX], count = micro_sizes(p, sizes);
    double best = LIMIT_MOST * bound;
    for (uint32_t i = 0; i < count; i++) {
        struct limit l;
        if (limit_init(&l, p, sizes[i]))
            best = fmin(best, limit_at(&l, best));
        limit_fini(&l);
    }
    return best;
}

#endif
