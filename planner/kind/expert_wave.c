#include "planner/kind/expert_wave.h"

#include <math.h>

#include "planner/cost/expert_price.h"

/* Layers that are simulated; each further one is taken to last as long as the last but one of these. */
#define LAYERS_SEEN 5u

double expert_times_closed(const struct expert_times *t, uint32_t wave)
{
    double seconds = 0, dense = 0;
    for (int back = 0; back < 2; back++) {
        struct zebra z = {.dispatch_s = t->exchange_s,
                          .combine_s = t->exchange_s,
                          .wire_s = t->one_way ? 2 * t->exchange_s : 0};
        for (uint32_t i = 0; i < t->devices; i++) {
            z.attention_s = fmax(z.attention_s, t->attend[i][back]);
            z.experts_s = fmax(z.experts_s, t->expert[i][back]);
            z.shared_s = fmax(z.shared_s, t->attend[i][back] + t->expert[i][back]);
            dense = fmax(dense, t->dense[i]);
        }
        seconds += t->micro_batches / wave * zebra_seconds(&z, t->layers, wave) +
                   zebra_seconds(&z, t->layers, t->micro_batches % wave);
    }
    return seconds + t->micro_batches * dense;
}

struct wave_run {
    const struct expert_times *t;
    double free_s[SHARDS_MEMBERS_MAX]; /* when each device has finished its work so far (s) */
    uint32_t count, lag;
    bool drains;
    double *waits, waits_s; /* the transfer from experts back to attention that has not started: where its
                               arrival time will be written, and when its data were ready; NULL: none */
    double to_s, from_s;    /* times at which the transfers to the experts, and those back, have ended */
    /* [count]: times at which each micro-batch arrives at its experts, and back at attention */
    double *there_s, *here_s;
};

/* All devices compute their part of a micro-batch's attention or experts in one layer, from the time `ready`
 * on; returns the time at which the last one ends. */
static double ranks_run(struct wave_run *v, bool experts, bool back, double ready)
{
    double end = ready;
    for (uint32_t i = 0; i < v->t->devices; i++) {
        double seconds = experts ? v->t->expert[i][back] : v->t->attend[i][back];
        if (seconds <= 0)
            continue;
        v->free_s[i] = fmax(v->free_s[i], ready) + seconds;
        end = fmax(end, v->free_s[i]);
    }
    return end;
}

/* Starts the waiting transfer from experts to attention. If transfers in both directions share a wire, they
 * are sent in the order in which their data are ready. */
static void exchange_back_start(struct wave_run *v)
{
    double *queue = v->t->one_way ? &v->to_s : &v->from_s;
    if (v->waits)
        *v->waits = *queue = fmax(*queue, v->waits_s) + v->t->exchange_s;
    v->waits = NULL;
}

static double go_there(struct wave_run *v, double ready)
{
    if (v->waits_s <= ready)
        exchange_back_start(v);
    return v->to_s = fmax(v->to_s, ready) + v->t->exchange_s;
}

static void wait_back(struct wave_run *v, double ready, double *arrival)
{
    exchange_back_start(v);
    v->waits = arrival;
    v->waits_s = ready;
}

/* Returns the time at which a micro-batch arrives. If its transfer has not started yet, starts it. */
static double expert_wave_arrived(struct wave_run *v, double *arrival)
{
    if (v->waits == arrival)
        exchange_back_start(v);
    return *arrival;
}

/* Computes micro-batch k's first half of a layer (forward: attention, backward: experts) and sends the result
 * to the devices of the other half. position_second computes that half, `lag` micro-batches later in the
 * order. */
static void position_first(struct wave_run *v, uint32_t k, bool back)
{
    double here = expert_wave_arrived(v, &v->here_s[k]);
    if (back)
        wait_back(v, ranks_run(v, true, true, go_there(v, here)), &v->there_s[k]);
    else
        v->there_s[k] = go_there(v, ranks_run(v, false, false, here));
}

static void position_second(struct wave_run *v, uint32_t k, bool back)
{
    double end = ranks_run(v, !back, back, expert_wave_arrived(v, &v->there_s[k]));
    if (back)
        v->here_s[k] = end;
    else
        wait_back(v, end, &v->here_s[k]);
}

/* Simulates the first layers of the wave's forward or backward pass and extrapolates to all layers. */
static void wave_pass(struct wave_run *v, bool back)
{
    uint32_t all = v->t->layers, layers = all < LAYERS_SEEN ? all : LAYERS_SEEN;
    uint32_t places = layers * v->count, span = v->drains ? v->count : places;
    double through[3] = {0}; /* times at which the last three layers ended */
    for (uint32_t from = 0; from < places; from += span) {
        for (uint32_t p = from; p < from + span + v->lag; p++) {
            if (p < from + span)
                position_first(v, p % v->count, back);
            if (p < from + v->lag)
                continue;
            position_second(v, (p - v->lag) % v->count, back);
            if ((p - v->lag + 1) % v->count == 0) { /* a layer has ended */
                through[0] = through[1];
                through[1] = through[2];
                through[2] = expert_wave_arrived(v, &v->here_s[v->count - 1]);
            }
        }
    }
    exchange_back_start(v);
    double more = all > layers ? (all - layers) * (through[1] - through[0]) : 0;
    v->to_s += more;
    v->from_s += more;
    for (uint32_t i = 0; i < v->t->devices; i++)
        v->free_s[i] += more;
    for (uint32_t k = 0; k < v->count; k++)
        v->here_s[k] += more;
}

/* Returns the seconds of a wave of `count` micro-batches: forward through all layers with experts, the other
 * blocks, and backward. */
static double wave_seconds(const struct expert_times *t, uint32_t count, uint32_t delay, double *scratch)
{
    struct wave_run v = {
        .t = t, .count = count, .drains = delay == 0, .there_s = scratch, .here_s = scratch + count};
    double end = 0;
    v.lag = delay ? delay : 1;
    v.lag = v.lag < count ? v.lag : count - 1;
    for (uint32_t k = 0; k < count; k++)
        v.here_s[k] = 0;
    if (count == 0)
        return 0;
    wave_pass(&v, false);
    for (uint32_t k = 0; k < count; k++) {
        double ready = v.here_s[k];
        for (uint32_t i = 0; i < t->devices; i++) {
            if (!t->attends[i])
                continue;
            v.free_s[i] = fmax(v.free_s[i], ready) + t->dense[i];
            v.here_s[k] = fmax(v.here_s[k], v.free_s[i]);
        }
    }
    wave_pass(&v, true);
    for (uint32_t k = 0; k < count; k++)
        end = fmax(end, v.here_s[k]);
    return end;
}

double expert_times_simulated(const struct expert_times *t, uint32_t wave, uint32_t delay, double *scratch)
{
    wave = wave < t->micro_batches ? wave : t->micro_batches; /* the search may set a member's window to more
                                                                 than the step's micro-batches */
    return t->micro_batches / wave * wave_seconds(t, wave, delay, scratch) +
           wave_seconds(t, t->micro_batches % wave, delay, scratch);
}
