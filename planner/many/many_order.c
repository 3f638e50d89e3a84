/* Orders of devices changed while what their covers promise gets better.
 *
 * By climbing, for a few hundred changes: each is seen by the places behind it alone. And where somebody
 * gives a search more time by simulated annealing (Kirkpatrick, Gelatt, Vecchi 1983): tight memory makes
 * covers rugged, and where climbing stops, orders 5 to 10 % better are a few thousand changes away. */
#include "planner/many/many.h"

#include <math.h>
#include <string.h>

#include "common/rand.h"

#define LOAD_MOST 0.95     /* of a period that a wire may be busy */
#define IMPROVE_STEP 0.997 /* a change of order must make the period so much shorter */
#define ANNEAL_HOT 0.002   /* of a step, by which it may get longer at first; less and less */
#define ANNEAL_COLD 1e-6
#define ANNEAL_WITHIN 1.0003 /* a period is found so nearly */
#define ANNEAL_TWICE 3u      /* one time in so many two changes at once */
#define LEAN_LEAST 0.75      /* of the least period, that leaning may come to */

double many_period_least(const struct many *m)
{
    double rate = 0;
    int way = m->allowed[0] ? 0 : 1;
    for (uint32_t u = 0; u < m->count; u++)
        rate += 1 / (m->layers * m->units[u].layer_s[way]);
    return rate > 0 ? 1 / rate : INFINITY;
}

double many_period_most(const struct many *m, double seconds)
{
    double least = INFINITY;
    for (uint32_t u = 0; u < m->count; u++)
        least = fmin(least, m->layers * m->units[u].layer_s[m->allowed[0] ? 0 : 1]);
    return (seconds - least) / (m->micro_batches - 0.999);
}

static double load(const struct many_room *room, const struct many_cover *cover)
{
    return room->wires ? many_load(cover, room->wires) / LOAD_MOST : 0;
}

double many_promise(const struct many_room *room, const struct many_cover *cover, double period)
{
    return (cover->m->micro_batches - 1) * fmax(period, load(room, cover)) +
           (cover->in_turn ? cover->whole.fill : cover->whole.wait) + cover->whole.moved_s;
}

/* Swaps two devices of the order being tried, or moves one; returns the last place that changed. */
static uint32_t order_change(struct rand_stream *random, uint32_t *trial, uint32_t count)
{
    uint32_t a = rand_stream_below(random, count), b = rand_stream_below(random, count), unit = trial[a];
    if (rand_stream_below(random, 2)) {
        trial[a] = trial[b];
        trial[b] = unit;
    } else {
        memmove(&trial[a < b ? a : b + 1], &trial[a < b ? a + 1 : b],
                (a < b ? b - a : a - b) * sizeof(*trial));
        trial[b] = unit;
    }
    return a > b ? a : b;
}

/* Covers less, or the same with a longer stay. */
static bool tail_behind(const struct many_tail *a, const struct many_tail *b)
{
    return a->layers < b->layers || (a->layers == b->layers && a->wait > b->wait);
}

void many_order_improve(const struct many_room *room, struct many_cover *c, uint32_t *order, double *period,
                        uint32_t changes)
{
    struct rand_stream random;
    uint32_t count = c->count;
    size_t bytes = ((size_t)count + 1) * sizeof(*room->kept);
    rand_stream_init(&random, 1, count);
    c->order = room->trial;
    memcpy(room->trial, order, count * sizeof(*order));
    memcpy(room->walk, order, count * sizeof(*order));
    double target = *period * IMPROVE_STEP;
    bool whole = many_covers(c, target, count) && load(room, c) <= target;
    memcpy(room->kept, c->tails, bytes);
    for (uint32_t i = 0; i < changes; i++) {
        c->least_layers = room->kept[0].layers; /* with less, a change is of no use */
        if (!whole)
            whole = many_covers(c, target, order_change(&random, room->trial, count) + 1);
        c->least_layers = 0;
        if (whole && load(room, c) <= target) { /* further down, until this order covers no more */
            memcpy(order, room->trial, count * sizeof(*order));
            while (whole) {
                *period = target;
                target *= IMPROVE_STEP;
                whole = many_covers(c, target, count) && load(room, c) <= target;
            }
        } else if (whole || tail_behind(&c->tails[0], &room->kept[0])) {
            memcpy(room->trial, room->walk, count * sizeof(*order));
            memcpy(c->tails, room->kept, bytes);
            whole = false;
            continue;
        }
        memcpy(room->walk, room->trial, count * sizeof(*order));
        memcpy(room->kept, c->tails, bytes);
        whole = false;
    }
    c->order = order;
}

void many_order_anneal(const struct many_room *room, struct many_cover *c, uint32_t *order, double *period,
                       uint64_t steps)
{
    struct rand_stream random;
    uint32_t count = c->count;
    size_t bytes = count * sizeof(*order);
    double least = many_period_least(c->m) * (c->lean > 0 ? LEAN_LEAST : 1), within = c->within, now, best;
    rand_stream_init(&random, 2, count);
    c->order = order;
    if (!many_covers(c, *period, count))
        return;
    now = best = many_promise(room, c, *period);
    c->within = ANNEAL_WITHIN;
    c->order = room->trial;
    memcpy(room->walk, order, bytes);
    for (uint64_t i = 0; i < steps; i++) {
        double warm = now * (ANNEAL_HOT * (1 - (double)i / (double)steps) + ANNEAL_COLD);
        double limit = now - warm * log(1 - rand_stream_unit(&random));
        memcpy(room->trial, room->walk, bytes);
        order_change(&random, room->trial, count);
        if (rand_stream_below(&random, ANNEAL_TWICE) == 0)
            order_change(&random, room->trial, count);
        double found = many_period(c, least, many_period_most(c->m, limit)), seconds = INFINITY;
        if (isfinite(found))
            seconds = many_promise(room, c, found);
        if (!(seconds <= limit))
            continue;
        now = seconds;
        memcpy(room->walk, room->trial, bytes);
        if (now < best) {
            best = now;
            *period = found;
            memcpy(order, room->trial, bytes);
        }
    }
    c->least_layers = 0;
    c->within = within;
    c->order = order;
}
