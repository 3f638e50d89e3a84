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

#define REACH_SLACK 1e-3 /* layers by which what devices reach is rounded */
#define WAY_TURNS 3      /* members that recompute leave more micro-batches to the others */
#define PERIOD_WITHIN 1.001
#define PERIOD_WITHIN_HUGE 1.01 /* of more than so many devices, */
#define HUGE_UNITS 2048u        /* whose orders take a second each to cover */
#define PERIOD_MOST 64.0        /* times the least one thinkable */
#define COARSE_PLACES 1024u     /* of vast numbers of devices stages begin and end at so many places alone, */
#define COARSE_GROUP 8u         /* if their members are this many times as many as stand between two */

struct group { /* kinds of members while they are looked at */
    double rate[MANY_GROUP_MAX];
    bool way[MANY_GROUP_MAX];
    double rates; /* of all members */
};

double many_stage_link(const struct many_cover *c, struct many_stage *stage)
{
    const struct many_tail *next = stage->next;
    const uint32_t *who = &c->order[stage->begin], *there = &c->order[next->begin];
    if (stage->link_s >= 0)
        return stage->link_s;
    stage->link_s = 0;
    if (next->size == 0)
        return 0;
    if (!c->in_turn)
        return stage->link_s = many_link(c->m, who[stage->size - 1], there[0]);
    for (uint32_t i = 0; i < stage->size; i++) { /* the longest way: turns wait for each other */
        double first = many_link(c->m, who[i], there[0]),
               last = many_link(c->m, who[i], there[next->size - 1]);
        double longer = first > last ? first : last;
        stage->link_s = longer > stage->link_s ? longer : stage->link_s;
    }
    return stage->link_s;
}

void many_stage_before(const struct many_cover *c, double period, struct many_stage *stage,
                       const struct many_tail *next)
{
    stage->next = next;
    stage->own = many_own_period(c, period, next);
    stage->link_s = -1;
    stage->wait_most = INFINITY;
}

/* Of a member when the stage as a whole has `window` in flight for each unit of rate. */
static uint32_t member_holds(const struct many *m, uint32_t size, double window, double rate)
{
    return many_held(window * rate - 1e-9, size > 1, m->micro_batches);
}

/* One turn over the members: whoever does not hold its part plainly recomputes. Returns how many kinds
 * changed, −1 when one does not fit either way, or all together are then too slow. */
static int members_settle(const struct many *m, const struct many_stage *stage, enum many_role role,
                          int32_t layers, double window, struct group *g)
{
    int changed = 0;
    double rates = 0, left = g->rates;
    for (uint32_t k = 0; k < stage->kinds; k++) {
        const struct many_unit *unit = stage->of[k].unit;
        double held = member_holds(m, stage->size, window, g->rate[k]);
        while (many_bytes(m, stage->size, role, g->way[k], layers, held) > unit->memory) {
            if (g->way[k] || !m->allowed[1])
                return -1;
            double slower = 1 / many_seconds(unit, role, 1, layers);
            left -= stage->of[k].count * (g->rate[k] - slower);
            if (left * stage->own < 1 - 2e-9)
                return -1;
            g->way[k] = true;
            g->rate[k] = slower;
            changed++;
        }
        rates += stage->of[k].count * g->rate[k];
    }
    g->rates = rates;
    return changed;
}

static void members_tell(const struct many_cover *c, const struct many_stage *stage, const struct group *g,
                         double window, struct many_member *members)
{
    for (uint32_t k = 0, i = 0; k < stage->kinds; k++) {
        for (uint32_t n = 0; n < stage->of[k].count; n++)
            members[i++] = (struct many_member){
                .way = g->way[k], .window = member_holds(c->m, stage->size, window, g->rate[k])};
    }
}

bool many_group_holds(const struct many_cover *c, double period, struct many_stage *stage,
                      enum many_role role, int32_t layers, struct many_member *members,
                      struct many_tail *as_tail)
{
    const struct many *m = c->m;
    const struct many_tail *next = stage->next;
    struct group g;
    double fastest = 0, wait = 0, window = 0;
    bool way = !m->allowed[0];
    if (c->in_turn)
        return many_turns_hold(c, period, stage, role, layers, members, as_tail);
    g.rates = 0;
    for (uint32_t k = 0; k < stage->kinds; k++) {
        double rate = 1 / many_seconds(stage->of[k].unit, role, way, layers);
        g.way[k] = way;
        g.rate[k] = rate;
        g.rates += stage->of[k].count * rate;
        fastest = rate > fastest ? rate : fastest;
    }
    double moved_s = many_moved(c, stage, role, layers);
    if (g.rates * stage->own < 1 - 1e-9 || moved_s > c->moved_most)
        return false;
    double away = 2 * many_stage_link(c, stage) + next->wait;
    for (int turn = 0, changed = 1; turn < WAY_TURNS && changed; turn++) {
        wait = stage->size / g.rates + away;
        if (wait >= stage->wait_most)
            return false;
        window = c->slack * wait / period / g.rates;
        if (turn == 0 && many_bytes(m, stage->size, role, way, layers,
                                    member_holds(m, stage->size, window, fastest)) <= stage->memory_least)
            break; /* nobody holds more, nor has less room */
        changed = members_settle(m, stage, role, layers, window, &g);
        if (changed < 0 || g.rates * stage->own < 1 - 1e-9)
            return false;
    }
    fastest = 0;
    for (uint32_t k = 0; k < stage->kinds; k++)
        fastest = g.rate[k] > fastest ? g.rate[k] : fastest;
    if (members)
        members_tell(c, stage, &g, c->slack * wait / period / g.rates, members);
    *as_tail = (struct many_tail){.layers = next->layers + layers,
                                  .own = layers,
                                  .begin = stage->begin,
                                  .size = stage->size,
                                  .stages = next->stages + 1,
                                  .wait = wait,
                                  .fill = 1 / fastest + 2 * stage->link_s + next->fill,
                                  .moved_s = moved_s > next->moved_s ? moved_s : next->moved_s};
    return true;
}

/* Most layers of a stage, `most` at best; 0 when it does not hold `least`. With no more than that, only if a
 * micro-batch stays less than `wait`. */
static int32_t group_most(const struct many_cover *c, double period, struct many_stage *stage,
                          enum many_role role, int32_t least, int32_t most, double wait,
                          struct many_tail *as_tail)
{
    struct many_tail trial;
    int32_t low = 0, high = most;
    if (most < 1 || most < least)
        return 0;
    if (most == least) {
        stage->wait_most = wait;
        return many_group_holds(c, period, stage, role, most, NULL, as_tail) ? most : 0;
    }
    if (least > 1) { /* first: who has too little room for that is most of them */
        if (!many_group_holds(c, period, stage, role, least, NULL, as_tail))
            return 0;
        low = least;
    }
    if (many_group_holds(c, period, stage, role, most, NULL, as_tail))
        return most;
    for (high = most - 1; low < high;) {
        int32_t middle = (low + high + 1) / 2;
        if (many_group_holds(c, period, stage, role, middle, NULL, &trial)) {
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
    double most = period * rate_layers - extra_layers + 1e-9;
    return most < 1 ? 0 : most > 65535 ? 65535 : (int32_t)most;
}

/* Devices between two places where stages may begin. */
static uint32_t places_apart(const struct many_cover *c)
{
    uint32_t apart = (c->count + COARSE_PLACES - 1) / COARSE_PLACES;
    return c->m->count > MANY_VAST && c->m->group_max >= COARSE_GROUP * apart ? apart : 1;
}

/* All groups that begin at place i and end `apart` places from each other. Returns true when one of them
 * completes the model. */
static bool place_look(struct many_cover *c, double period, uint32_t i, uint32_t apart)
{
    const struct many *m = c->m;
    struct many_tail trial, *best = &c->tails[i];
    struct many_stage stage;
    int way = m->allowed[0] ? 0 : 1;
    double rate = 0, extra = INFINITY;
    uint32_t over = (c->count - i) % apart, least = over ? over : apart; /* places count from the tail */
    int32_t before = 0;
    bool whole = false;
    many_stage_begin(&stage, i);
    *best = c->tails[i + least]; /* skipped */
    for (uint32_t size = 1; size <= m->group_max && i + size <= c->count; size++) {
        const struct many_unit *unit = &m->units[c->order[i + size - 1]];
        const struct many_tail *next = &c->tails[i + size];
        enum many_role role = next->size ? MANY_INNER : MANY_LAST;
        many_stage_grow(c, &stage);
        many_stage_before(c, period, &stage, next);
        rate += unit->rate;
        if (role == MANY_LAST || apart > 1) {
            double own = unit->extra_s[MANY_LAST][way] / unit->layer_s[way];
            extra = own < extra ? own : extra;
        }
        if (size < least || (size - least) % apart)
            continue;
        int32_t most = layers_in(rate, stage.own, role == MANY_LAST ? extra : 0),
                left = m->layers - next->layers;
        if (next->size && left >= 1 && left <= most &&
            many_group_holds(c, period, &stage, MANY_FIRST, left, NULL, &trial) &&
            (!whole || trial.fill < c->whole.fill)) {
            c->whole = trial;
            c->start = i;
            whole = true;
        }
        most = most < left - 1 ? most : left - 1; /* the first stage is still to come, with a layer */
        if (most <= before && role == MANY_INNER && size > least && !m->shards)
            continue; /* no more layers than with fewer members */
        before = most;
        if (group_most(c, period, &stage, role, best->layers - next->layers, most, best->wait, &trial) > 0 &&
            tail_better(&trial, best))
            *best = trial;
    }
    return whole;
}

bool many_covers(struct many_cover *c, double period, uint32_t changed)
{
    uint32_t apart = places_apart(c), behind = 0;
    uint32_t i = changed < c->count ? c->count - (c->count - changed) / apart * apart : c->count;
    double before = 0; /* layers that all devices before a place do in a period, if memory did not matter */
    bool bounded = c->least_layers > 0 && !(c->lean > 0);
    for (uint32_t k = 0; k < i && bounded; k++)
        before += c->m->units[c->order[k]].rate * period;
    c->tails[c->count] = (struct many_tail){.begin = c->count};
    while (i > 0) {
        uint32_t end = i;
        i = i > apart ? i - apart : 0;
        if (place_look(c, period, i, apart))
            return true;
        for (uint32_t k = i; k < end && bounded; k++)
            before -= c->m->units[c->order[k]].rate * period;
        behind =
            bounded && c->tails[i].layers + before < c->least_layers - REACH_SLACK ? behind + end - i : 0;
        if (behind >= c->m->group_max) { /* no group reaches beyond them */
            c->tails[0] = (struct many_tail){.begin = c->count};
            return false;
        }
    }
    return false;
}

double many_period(struct many_cover *c, double least, double most)
{
    double low = least, high = most,
           within = fmax(c->within, c->count > HUGE_UNITS ? PERIOD_WITHIN_HUGE : PERIOD_WITHIN);
    bool at_high = true; /* the tails are those of `high` */
    c->least_layers = c->m->layers;
    if (!isfinite(most)) {
        if (!many_covers(c, least * PERIOD_MOST, c->count)) /* it is memory that is missing */
            return INFINITY;
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
        at_high = many_covers(c, middle, c->count);
        if (at_high)
            high = middle;
        else
            low = middle;
    }
    if (!at_high)
        many_covers(c, high, c->count);
    return high;
}

/* Boundaries between members of two stages, each way once a micro-batch, in proportion to their speeds. */
static void boundary_load(const struct many *m, const uint32_t *here, uint32_t here_count,
                          const uint32_t *there, uint32_t there_count, double *wires)
{
    double ours = 0, theirs = 0;
    for (uint32_t i = 0; i < here_count; i++)
        ours += 1 / m->units[here[i]].layer_s[!m->allowed[0]];
    for (uint32_t j = 0; j < there_count; j++)
        theirs += 1 / m->units[there[j]].layer_s[!m->allowed[0]];
    for (uint32_t i = 0; i < here_count; i++) {
        for (uint32_t j = 0; j < there_count; j++) {
            const struct many_unit *a = &m->units[here[i]], *b = &m->units[there[j]];
            double share = 1 / (a->layer_s[!m->allowed[0]] * ours * b->layer_s[!m->allowed[0]] * theirs);
            double seconds = share * many_link(m, here[i], there[j]);
            many_wire_add(m, a->node, b->node, seconds, wires);
            many_wire_add(m, b->node, a->node, seconds, wires);
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
