/* What a pipeline of groups cannot beat: tighter than the planner's lower bound, which knows nothing of
 * memory, whole layers, one size of micro-batches for all, or of how a pipeline fills. For
 * bench_planner_search alone.
 *
 * One micro-batch size, a step of T seconds and M micro-batches, P = T/M. A device that takes a share of the
 * micro-batches through n whole layers covers q = n · share of them; all together must cover all layers. Its
 * share is bounded by its time (share · n · t ≤ P, with t a layer's seconds, recomputed or not), and by
 * memory: it holds share · U micro-batches at the mean (Little 1961), where U, at the end of a stage that is
 * nearer to the head, is how many devices are busy from there to the tail: a micro-batch is held as long as
 * all of them need for it, waiting and links not counted. (Taken, not shown: members of a stage get
 * micro-batches that stay as long as the others' do.) Where devices stand is free: a slot of the line of busy
 * devices for each, shared as may be. The most that can be covered is a linear program; any prices of slots
 * bound it from above (its dual), and good ones are looked for by subgradients (Polyak 1969). Apart from
 * that, a device at layer a stands idle while micro-batches come there and go back, on the fastest devices
 * there are. The least over all sizes is the limit. Not bounded: replicas of the whole model, whose
 * micro-batches may be of another size on each device, tensor groups and interleaved pipelines. */
#ifndef MOTLEY_BENCH_PLANNER_LIMIT_H
#define MOTLEY_BENCH_PLANNER_LIMIT_H

#include <math.h>
#include <stdlib.h>

#include "planner/cost/memory.h"
#include "planner/cost/micro.h"

#define LIMIT_TURNS 400u /* of looking for prices */
#define LIMIT_WITHIN 1.002
#define LIMIT_MOST 16.0 /* times the bound at which it is looked for */

struct limit {
    const struct problem *p;
    uint32_t count; /* of devices, and of slots */
    int32_t layers;
    uint32_t micro_batches;
    double *layer_s;      /* [count · 2]: plain, recomputing */
    double *memory;       /* [count] */
    double *fixed, *each; /* [2 · (layers + 1)]: bytes of a stage, and of each micro-batch it holds */
    double *covers;       /* [count · count · 2]: layers at a slot, in one way */
    double *price, *used; /* [count] slots */
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
                                         .recompute = way,
                                         .state_share = 1,
                                         .tensor_share = 1};
            memory_stage_need(p, &stage, &need);
            l->each[way * (layers + 1) + n] = (double)need.saved_bytes;
            l->fixed[way * (layers + 1) + n] = (double)(need.total - need.saved_bytes);
        }
    }
    return true;
}

/* Most layers that a device covers at a slot, when `slot` others are busy behind it. */
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

/* An upper bound of what can be covered at these prices; adds up what slots are used. */
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

/* Is it shown that no plan takes that period? */
static inline bool limit_refutes(struct limit *l, double period)
{
    for (uint32_t d = 0; d < l->count; d++) {
        for (uint32_t j = 0; j < l->count; j++) {
            for (int way = 0; way < 2; way++)
                l->covers[((size_t)d * l->count + j) * 2 + (size_t)way] =
                    micro_recompute_allowed(l->p, way) ? limit_covers(l, d, j, way, period) : 0;
        }
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

/* T · R ≥ M · L + M τ (L − n)² / 2T: R layers a second of all together, n the most that a device holds, τ the
 * fastest device's layer. */
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

/* Seconds at one micro-batch size. */
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

/* Seconds of a step that no pipeline of groups takes, `bound` being the planner's. */
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
