/* The least period at which an order of devices covers the model.
 *
 * Worked from the tail: how long a micro-batch stays away from a stage is what the later stages take, so
 * windows, and with them memory, are known when a group is added before them. For each place in the order the
 * tail that covers most layers is kept (of equal ones that with the shortest stay); devices may be skipped.
 * Only groups that are just large enough for their layers are looked at. */
#include "planner/many/many.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define WAY_TURNS 3 /* members that recompute leave more micro-batches to the others */
#define PERIOD_WITHIN 1.001
#define PERIOD_WITHIN_HUGE 1.01 /* of more than so many devices, */
#define HUGE_UNITS 2048u        /* whose orders take a second each to cover */
#define PERIOD_MOST 64.0        /* times the least one thinkable */

struct group { /* members while they are looked at */
    double rate[MANY_GROUP_MAX];
    bool way[MANY_GROUP_MAX];
    double rates, fastest;
};

/* Micro-batches that a member holds when the stage as a whole has `window` in flight. */
static double member_holds(const struct many *m, double window, double share, uint32_t size)
{
    double held = ceil(window * share - 1e-9) + (size > 1);
    return held < 1 ? 1 : held > m->micro_batches ? m->micro_batches : held;
}

/* One turn over the members: whoever does not hold its part plainly recomputes. Returns how many changed, −1
 * when one does not fit either way. */
static int members_settle(const struct many *m, const uint32_t *who, uint32_t size, enum many_role role,
                          int32_t layers, double window, struct group *g)
{
    int changed = 0;
    double rates = 0;
    for (uint32_t i = 0; i < size; i++) {
        const struct many_unit *unit = &m->units[who[i]];
        double held = member_holds(m, window, g->rate[i] / g->rates, size);
        while (many_bytes(m, role, g->way[i], layers, held) > unit->memory) {
            if (g->way[i] || !m->allowed[1])
                return -1;
            g->way[i] = true;
            g->rate[i] = 1 / many_seconds(unit, role, 1, layers);
            changed++;
        }
        rates += g->rate[i];
    }
    g->rates = rates;
    return changed;
}

bool many_group_holds(const struct many_cover *c, double period, uint32_t begin, uint32_t size,
                      enum many_role role, int32_t layers, const struct many_tail *next,
                      struct many_member *members, struct many_tail *as_tail)
{
    const struct many *m = c->m;
    double own = many_own_period(c, period, next);
    const uint32_t *who = &c->order[begin];
    struct group g;
    if (c->in_turn)
        return many_turns_hold(c, period, begin, size, role, layers, next, members, as_tail);
    g.rates = g.fastest = 0;
    for (uint32_t i = 0; i < size; i++) {
        g.way[i] = !m->allowed[0];
        g.rate[i] = 1 / many_seconds(&m->units[who[i]], role, g.way[i], layers);
        g.rates += g.rate[i];
    }
    if (g.rates * own < 1 - 1e-9)
        return false;
    double link = next->size ? many_link(m, who[size - 1], c->order[next->begin]) : 0, wait = 0, window = 0;
    for (int turn = 0, changed = 1; turn < WAY_TURNS && changed; turn++) {
        wait = size / g.rates + 2 * link + next->wait;
        window = c->slack * wait / period;
        changed = members_settle(m, who, size, role, layers, window, &g);
        if (changed < 0 || g.rates * own < 1 - 1e-9)
            return false;
    }
    for (uint32_t i = 0; i < size; i++) {
        g.fastest = fmax(g.fastest, g.rate[i]);
        if (members)
            members[i] = (struct many_member){
                g.way[i], (uint32_t)member_holds(m, window, g.rate[i] / g.rates, size), 0};
    }
    *as_tail = (struct many_tail){.layers = next->layers + layers,
                                  .own = layers,
                                  .begin = begin,
                                  .size = size,
                                  .stages = next->stages + 1,
                                  .wait = wait,
                                  .fill = 1 / g.fastest + 2 * link + next->fill};
    return true;
}

/* Most layers of a group, `most` at best; 0 when it does not hold `least`. */
static int32_t group_most(const struct many_cover *c, double period, uint32_t begin, uint32_t size,
                          enum many_role role, int32_t least, int32_t most, const struct many_tail *next,
                          struct many_tail *as_tail)
{
    struct many_tail trial;
    int32_t low = 0, high = most;
    if (most < 1 || most < least)
        return 0;
    if (many_group_holds(c, period, begin, size, role, most, next, NULL, as_tail))
        return most;
    if (least > 1 && least < most) {
        if (!many_group_holds(c, period, begin, size, role, least, next, NULL, as_tail))
            return 0;
        low = least;
    }
    for (high = most - 1; low < high;) {
        int32_t middle = (low + high + 1) / 2;
        if (many_group_holds(c, period, begin, size, role, middle, next, NULL, &trial)) {
            low = middle;
            *as_tail = trial;
        } else {
            high = middle - 1;
        }
    }
    return low;
}

static bool tail_better(const struct many_tail *a, const struct many_tail *b)
{
    return a->layers > b->layers || (a->layers == b->layers && a->size && a->wait < b->wait);
}

/* Layers that members together do in a period, plainly, if memory did not matter. */
static int32_t layers_in(double rate_layers, double period, double extra_layers)
{
    double most = floor(period * rate_layers - extra_layers + 1e-9);
    return most < 1 ? 0 : most > 65535 ? 65535 : (int32_t)most;
}

/* All groups that begin at place i. Returns true when one of them completes the model. */
static bool place_look(struct many_cover *c, double period, uint32_t i)
{
    const struct many *m = c->m;
    int way = m->allowed[0] ? 0 : 1;
    double rate = 0, extra = INFINITY;
    int32_t before = 0;
    bool whole = false;
    struct many_tail trial;
    c->tails[i] = c->tails[i + 1]; /* skipped */
    for (uint32_t size = 1; size <= m->group_max && i + size <= c->count; size++) {
        const struct many_unit *unit = &m->units[c->order[i + size - 1]];
        const struct many_tail *next = &c->tails[i + size];
        enum many_role role = next->size ? MANY_INNER : MANY_LAST;
        rate += 1 / unit->layer_s[way];
        extra = fmin(extra, unit->extra_s[MANY_LAST][way] / unit->layer_s[way]);
        int32_t most = layers_in(rate, many_own_period(c, period, next), role == MANY_LAST ? extra : 0),
                left = m->layers - next->layers;
        if (next->size && left >= 1 && left <= most &&
            many_group_holds(c, period, i, size, MANY_FIRST, left, next, NULL, &trial) &&
            (!whole || trial.fill < c->whole.fill)) {
            c->whole = trial;
            c->start = i;
            whole = true;
        }
        most = most < left ? most : left;
        if (most <= before && role == MANY_INNER && size > 1)
            continue; /* no more layers than with fewer members */
        before = most;
        if (group_most(c, period, i, size, role, c->tails[i].layers - next->layers, most, next, &trial) > 0 &&
            tail_better(&trial, &c->tails[i]))
            c->tails[i] = trial;
    }
    return whole;
}

bool many_covers(struct many_cover *c, double period, uint32_t changed)
{
    c->tails[c->count] = (struct many_tail){.begin = c->count};
    for (uint32_t i = changed < c->count ? changed : c->count; i-- > 0;) {
        if (place_look(c, period, i))
            return true;
    }
    return false;
}

double many_period(struct many_cover *c, double least, double most)
{
    double low = least, high = most,
           within = fmax(c->within, c->count > HUGE_UNITS ? PERIOD_WITHIN_HUGE : PERIOD_WITHIN);
    if (!isfinite(most)) {
        for (high = least * 1.04; !many_covers(c, high, c->count); high *= 1.1) {
            if (high > least * PERIOD_MOST)
                return INFINITY;
            low = high;
        }
    } else if (!many_covers(c, high, c->count)) {
        return INFINITY;
    }
    while (high > low * within) {
        double middle = (low + high) / 2;
        if (many_covers(c, middle, c->count))
            high = middle;
        else
            low = middle;
    }
    many_covers(c, high, c->count);
    return high;
}

/* Boundaries between members of two stages, each way once a micro-batch, in proportion to their speeds. */
static void boundary_load(const struct many *m, const uint32_t *here, uint32_t here_count,
                          const uint32_t *there, uint32_t there_count, double *wires)
{
    const struct cluster *cluster = m->p->cluster;
    double ours = 0, theirs = 0;
    for (uint32_t i = 0; i < here_count; i++)
        ours += 1 / m->units[here[i]].layer_s[!m->allowed[0]];
    for (uint32_t j = 0; j < there_count; j++)
        theirs += 1 / m->units[there[j]].layer_s[!m->allowed[0]];
    for (uint32_t i = 0; i < here_count; i++) {
        for (uint32_t j = 0; j < there_count; j++) {
            const struct many_unit *a = &m->units[here[i]], *b = &m->units[there[j]];
            double share = 1 / (a->layer_s[!m->allowed[0]] * ours * b->layer_s[!m->allowed[0]] * theirs);
            bool card_a = cluster->nodes[a->node].nic_bytes_per_s > 0;
            bool card_b = cluster->nodes[b->node].nic_bytes_per_s > 0;
            double seconds = share * many_link(m, here[i], there[j]);
            if (a->node == b->node)
                continue;
            wires[(size_t)a->node * cluster->node_count + (card_a ? a->node : b->node)] += seconds;
            wires[(size_t)b->node * cluster->node_count + (card_b ? b->node : a->node)] += seconds;
        }
    }
}

double many_load(const struct many_cover *c, double *wires)
{
    size_t count = (size_t)c->m->p->cluster->node_count * c->m->p->cluster->node_count;
    double most = 0;
    memset(wires, 0, count * sizeof(*wires));
    for (const struct many_tail *tail = &c->whole; tail->size;) {
        const struct many_tail *next = &c->tails[tail->begin + tail->size];
        if (next->size)
            boundary_load(c->m, &c->order[tail->begin], tail->size, &c->order[next->begin], next->size,
                          wires);
        tail = next;
    }
    for (size_t i = 0; i < count; i++)
        most = fmax(most, wires[i]);
    return most;
}
