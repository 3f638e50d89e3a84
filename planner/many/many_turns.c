/* Groups whose members take micro-batches in turn (planner/hybrid/deal_turns.c): how many turns of a round
 * each has, and how long a micro-batch then stays.
 *
 * With equal members every micro-batch is treated alike, one period after the one before: a member begins its
 * next one a round later, and its backward falls between two of its forwards, so that a stay is a whole
 * number of rounds but for what the member is idle in one. That number is its window. Unlike members have
 * unlike numbers of turns, which are not spaced evenly: forward and backward may each be a period late, and
 * those before see another one. */
#include <math.h>

#include "planner/many/many.h"

#define ROUND_MOST 12u /* turns of a round, where members are unlike */
#define TURNS_WAYS 3   /* times that windows are looked at while members come to recompute */

struct turns {
    double each[MANY_GROUP_MAX]; /* seconds of a micro-batch */
    bool way[MANY_GROUP_MAX];
    uint32_t turns[MANY_GROUP_MAX], round;
    double slowest, fastest;
};

/* A turn each, or the shortest round in which everybody has as many as it has time for. */
static bool round_find(struct turns *t, uint32_t size, double own)
{
    double slowest = 0, fastest = INFINITY, part[ROUND_MOST];
    for (uint32_t i = 0; i < size; i++) {
        slowest = t->each[i] > slowest ? t->each[i] : slowest;
        fastest = t->each[i] < fastest ? t->each[i] : fastest;
        t->turns[i] = 1;
    }
    t->slowest = slowest;
    t->fastest = fastest;
    t->round = size;
    if (slowest <= size * own)
        return true;
    uint32_t least = (uint32_t)(slowest / own) + 1; /* the slowest has a turn */
    if (size > ROUND_MOST || least > ROUND_MOST)
        return false;
    for (uint32_t i = 0; i < size; i++)
        part[i] = own / t->each[i];
    for (uint32_t round = least > size ? least : size; round <= ROUND_MOST; round++) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < size; i++)
            sum += t->turns[i] = (uint32_t)(round * part[i]);
        if (sum < round)
            continue;
        t->round = sum; /* more than it needs: everybody has time to spare */
        return true;
    }
    return false;
}

bool many_turns_hold(const struct many_cover *c, double period, uint32_t begin, uint32_t size,
                     enum many_role role, int32_t layers, const struct many_tail *next,
                     struct many_member *members, struct many_tail *as_tail)
{
    const struct many *m = c->m;
    const uint32_t *who = &c->order[begin];
    double own = many_own_period(c, period, next) * (1 + 1e-9), rates = 0, stay = 0;
    double link = 0;
    uint32_t held[MANY_GROUP_MAX];
    struct turns t;
    for (uint32_t i = 0; i < size; i++) {
        t.way[i] = !m->allowed[0];
        t.each[i] = many_seconds(&m->units[who[i]], role, t.way[i], layers);
        rates += 1 / t.each[i];
    }
    if (rates * own < 1)
        return false;
    for (uint32_t i = 0; i < size && next->size; i++) { /* the longest way: turns wait for each other */
        double first = many_link(m, who[i], c->order[next->begin]),
               last = many_link(m, who[i], c->order[next->begin + next->size - 1]);
        link = first > link ? first : link;
        link = last > link ? last : link;
    }
    for (int turn = 0, changed = 1; turn < TURNS_WAYS && changed; turn++) {
        if (!round_find(&t, size, own))
            return false;
        changed = 0;
        stay = t.slowest + 2 * link + next->wait + (t.round > size ? 2 * period : 0);
        double longest = stay;
        for (uint32_t i = 0; i < size; i++) {
            const struct many_unit *unit = &m->units[who[i]];
            double round = t.round * period / t.turns[i];
            double most = ceil(c->slack * stay / round - 1e-6);
            held[i] = most < 1 ? 1 : most > m->micro_batches ? m->micro_batches : (uint32_t)most;
            while (many_bytes(m, role, t.way[i], layers, held[i]) > unit->memory) {
                if (t.way[i] || !m->allowed[1])
                    return false;
                t.way[i] = true;
                t.each[i] = many_seconds(unit, role, 1, layers);
                changed = 1;
            }
            longest = fmax(longest, (held[i] - 1.0) * round + t.each[i] + (t.round > size ? period : 0));
        }
        stay = longest;
    }
    for (uint32_t i = 0; i < size && members; i++)
        members[i] = (struct many_member){t.way[i], held[i], t.turns[i]};
    *as_tail = (struct many_tail){.layers = next->layers + layers,
                                  .own = layers,
                                  .begin = begin,
                                  .size = size,
                                  .stages = next->stages + 1,
                                  .wait = stay,
                                  .fill = t.fastest + 2 * link + next->fill};
    return true;
}
