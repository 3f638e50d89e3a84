/* Orders of pipelines, and a step in such an order by recurrence. */
#include "planner/pipeline/pipe_order.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Groups in which micro-batches go round: as many ranks as there are or more each, the first `larger` of them
 * one more than `each`. */
struct rounds {
    uint32_t groups, each, larger;
};

/* One rank's list while it is made. */
struct maker {
    struct pipe_order *order;
    struct rounds rounds;
    uint32_t rank, laps, at;
};

static void put(struct maker *m, enum order_kind kind, uint32_t stage, uint32_t micro_batch)
{
    m->order->events[m->at++] = (struct order_event){stage, micro_batch, kind};
}

static struct rounds rounds_of(uint32_t ranks, uint32_t laps, uint32_t micro_batches)
{
    struct rounds r = {.groups = laps == 1 || micro_batches < ranks ? 1 : micro_batches / ranks};
    r.each = micro_batches / r.groups;
    r.larger = micro_batches % r.groups;
    return r;
}

uint32_t pipe_order_window(uint32_t ranks, uint32_t laps, uint32_t micro_batches, uint32_t rank)
{
    struct rounds r = rounds_of(ranks, laps, micro_batches);
    return (laps - 1) * (r.each + (r.larger > 0)) + 2 * (ranks - 1 - rank) + 1;
}

/* A group passes lap after lap, then the next one. */
static void turn_of(struct rounds r, uint32_t laps, uint32_t n, uint32_t *lap, uint32_t *micro_batch)
{
    uint32_t large = r.larger * (r.each + 1) * laps; /* turns of the larger groups */
    uint32_t size = n < large ? r.each + 1 : r.each;
    uint32_t group = n < large ? n / (size * laps) : r.larger + (n - large) / (size * laps);
    uint32_t first = group * r.each + (group < r.larger ? group : r.larger), inside = n - first * laps;
    *lap = inside / size;
    *micro_batch = first + inside % size;
}

void pipe_order_turn(uint32_t ranks, uint32_t laps, uint32_t micro_batches, uint32_t n, uint32_t *lap,
                     uint32_t *micro_batch)
{
    turn_of(rounds_of(ranks, laps, micro_batches), laps, n, lap, micro_batch);
}

/* The n-th forward (or backward) of a rank. */
static void put_turn(struct maker *m, bool backward, uint32_t n)
{
    uint32_t lap, micro_batch;
    turn_of(m->rounds, m->laps, n, &lap, &micro_batch);
    if (backward)
        lap = m->laps - 1 - lap;
    put(m, backward ? ORDER_BACKWARD : ORDER_FORWARD, lap * m->order->ranks + m->rank, micro_batch);
}

static void rank_split(struct maker *m, uint32_t window, uint32_t delay)
{
    uint32_t count = m->order->micro_batches, s = m->rank;
    for (uint32_t k = 0; k < window; k++)
        put(m, ORDER_FORWARD, s, k);
    for (uint32_t k = 0; k < count; k++) {
        put(m, ORDER_INPUT, s, k);
        if (k + window < count)
            put(m, ORDER_FORWARD, s, k + window);
        if (k >= delay)
            put(m, ORDER_WEIGHT, s, k - delay);
    }
    for (uint32_t k = count > delay ? count - delay : 0; k < count; k++)
        put(m, ORDER_WEIGHT, s, k);
}

static void rank_turns(struct maker *m, uint32_t window)
{
    uint32_t count = m->order->micro_batches * m->laps;
    for (uint32_t n = 0; n < window; n++)
        put_turn(m, false, n);
    for (uint32_t n = 0; n < count; n++) {
        put_turn(m, true, n);
        if (n + window < count)
            put_turn(m, false, n + window);
    }
}

int pipe_order_init(struct pipe_order *order, enum plan_schedule schedule, uint32_t ranks, uint32_t stages,
                    uint32_t micro_batches, const uint32_t *windows, const uint32_t *delays,
                    bool forwards_only, struct err *err)
{
    size_t each = forwards_only ? 1 : schedule == SCHEDULE_SPLIT ? 3 : 2;
    *order = (struct pipe_order){
        .schedule = schedule, .ranks = ranks, .stages = stages, .micro_batches = micro_batches};
    order->first = calloc((size_t)ranks + 1, sizeof(*order->first));
    order->events = calloc(each * stages * micro_batches + 1, sizeof(*order->events));
    if (!order->first || !order->events) {
        pipe_order_fini(order);
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    struct maker m = {.order = order, .laps = stages / ranks};
    m.rounds = rounds_of(ranks, m.laps, micro_batches);
    uint32_t count = micro_batches * m.laps;
    for (m.rank = 0; m.rank < ranks; m.rank++) {
        uint32_t window = windows[m.rank] ? windows[m.rank] : 1;
        if (m.laps > 1 && window < pipe_order_window(ranks, m.laps, micro_batches, m.rank))
            window = pipe_order_window(ranks, m.laps, micro_batches, m.rank);
        window = window < count ? window : count;
        if (forwards_only) {
            for (uint32_t n = 0; n < count; n++)
                put_turn(&m, false, n);
        } else if (schedule == SCHEDULE_SPLIT) {
            rank_split(&m, window, delays ? delays[m.rank] : 0);
        } else {
            rank_turns(&m, window);
        }
        order->first[m.rank + 1] = m.at;
    }
    return 0;
}

void pipe_order_fini(struct pipe_order *order)
{
    free(order->first);
    free(order->events);
    *order = (struct pipe_order){0};
}

uint32_t pipe_order_live(const struct pipe_order *order, uint32_t stage)
{
    uint32_t rank = stage % order->ranks, live = 0, most = 1;
    for (uint32_t i = order->first[rank]; i < order->first[rank + 1]; i++) {
        const struct order_event *e = &order->events[i];
        if (e->stage != stage || e->kind == ORDER_INPUT)
            continue;
        live += e->kind == ORDER_FORWARD ? 1 : -1u;
        most = live > most ? live : most;
    }
    return most;
}

struct clocks {
    const struct pipe_order *order;
    const struct pipe_order_costs *costs;
    struct pipe_order_times times;
    double *forward_came, *backward_came; /* at the stage itself; negative: not yet */
    double *free, *wire;                  /* [ranks], [ranks · 2]: to the next rank, to the one before */
    uint32_t *cursor;                     /* [ranks] */
    double end;
};

/* Sends what stage `stage` made over the link `link`; returns when it arrives. */
static double send(struct clocks *c, uint32_t rank, bool onward, uint32_t link, double ready, double *sent)
{
    /* two ranks have one wire each way, whatever direction the blocks go */
    double *wire = &c->wire[2 * rank + (onward && c->order->ranks > 2)];
    double start = *wire > ready ? *wire : ready;
    *wire = start + c->costs->occupied_s[link];
    *sent = start;
    return *wire + c->costs->latency_s[link];
}

/* Does the rank's next event if what it needs is there. */
static bool clocks_step(struct clocks *c, uint32_t rank)
{
    const struct pipe_order *o = c->order;
    uint32_t at = c->cursor[rank];
    if (at == o->first[rank + 1])
        return false;
    const struct order_event *e = &o->events[at];
    size_t row = (size_t)e->stage * o->micro_batches, cell = row + e->micro_batch;
    double came = 0;
    if (e->kind == ORDER_FORWARD && e->stage > 0)
        came = c->forward_came[cell];
    else if ((e->kind == ORDER_BACKWARD || e->kind == ORDER_INPUT) && e->stage + 1 < o->stages)
        came = c->backward_came[cell];
    if (came < 0)
        return false;
    const double *seconds = e->kind == ORDER_FORWARD  ? c->costs->forward
                            : e->kind == ORDER_WEIGHT ? c->costs->weight
                                                      : c->costs->backward;
    double end = (came > c->free[rank] ? came : c->free[rank]) + seconds[cell];
    c->free[rank] = end;
    c->end = end > c->end ? end : c->end;
    c->cursor[rank]++;
    if (e->kind == ORDER_FORWARD) {
        c->times.forward_end[cell] = end;
        if (e->stage + 1 < o->stages)
            c->forward_came[cell + o->micro_batches] =
                send(c, rank, true, e->stage, end, &c->times.forward_sent[cell]);
    } else if (e->kind != ORDER_WEIGHT) {
        c->times.backward_end[cell] = end;
        if (e->stage > 0)
            c->backward_came[cell - o->micro_batches] =
                send(c, rank, false, e->stage - 1, end, &c->times.backward_sent[cell]);
    }
    return true;
}

static double clocks_run(struct clocks *c)
{
    const struct pipe_order *o = c->order;
    size_t cells = (size_t)o->stages * o->micro_batches;
    for (size_t i = 0; i < cells; i++)
        c->forward_came[i] = c->backward_came[i] = -1;
    memset(c->free, 0, 3 * (size_t)o->ranks * sizeof(double));
    for (uint32_t r = 0; r < o->ranks; r++)
        c->cursor[r] = o->first[r];
    for (uint32_t left = o->first[o->ranks]; left > 0;) {
        uint32_t before = left;
        for (uint32_t r = 0; r < o->ranks; r++) {
            while (clocks_step(c, r))
                left--;
        }
        if (left == before)
            return INFINITY;
    }
    return c->end;
}

double pipe_order_seconds(const struct pipe_order *order, const struct pipe_order_costs *costs,
                          struct pipe_order_times *times, struct err *err)
{
    size_t cells = (size_t)order->stages * order->micro_batches;
    double *memory = malloc((6 * cells + 3 * (size_t)order->ranks) * sizeof(*memory));
    uint32_t *cursor = calloc(order->ranks, sizeof(*cursor));
    double seconds = -1;
    if (memory && cursor) {
        struct clocks c = {
            .order = order,
            .costs = costs,
            .forward_came = memory,
            .backward_came = memory + cells,
            .free = memory + 6 * cells,
            .wire = memory + 6 * cells + order->ranks,
            .cursor = cursor,
            .times = {memory + 2 * cells, memory + 3 * cells, memory + 4 * cells, memory + 5 * cells}};
        if (times)
            c.times = *times;
        seconds = clocks_run(&c);
    } else {
        err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    free(memory);
    free(cursor);
    return seconds;
}
