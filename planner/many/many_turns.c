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

struct turns {                   /* of each kind of members */
    double each[MANY_GROUP_MAX]; /* seconds of a micro-batch */
    bool way[MANY_GROUP_MAX];
    uint32_t turns[MANY_GROUP_MAX], held[MANY_GROUP_MAX], round;
    double slowest, fastest;
    double rates; /* of all members: micro-batches a second */
};

/* The shortest round in which everybody has as many turns as it has time for, where a turn each is too much
 * for the slowest. */
static bool round_find(struct turns *t, const struct many_stage *stage, double own)
{
    double part[ROUND_MOST];
    uint32_t size = stage->size;
    for (uint32_t k = 0; k < stage->kinds; k++)
        t->turns[k] = 1;
    t->round = size;
    if (t->slowest <= size * own)
        return true;
    uint32_t least = (uint32_t)(t->slowest / own) + 1; /* the slowest has a turn */
    if (size > ROUND_MOST || least > ROUND_MOST)
        return false;
    for (uint32_t k = 0; k < stage->kinds; k++)
        part[k] = own / t->each[k];
    for (uint32_t round = least > size ? least : size; round <= ROUND_MOST; round++) {
        uint32_t sum = 0;
        for (uint32_t k = 0; k < stage->kinds; k++) {
            t->turns[k] = (uint32_t)(round * part[k]);
            sum += stage->of[k].count * t->turns[k];
        }
        if (sum < round)
            continue;
        t->round = sum; /* more than it needs: everybody has time to spare */
        return true;
    }
    return false;
}

/* Windows that a stay asks for. Returns the longest stay that they make, or −1 where one does not fit either
 * way, or all together are then too slow; *changed: somebody came to recompute. */
static double windows_fill(const struct many_cover *c, double period, const struct many_stage *stage,
                           enum many_role role, int32_t layers, double stay, struct turns *t, bool *changed)
{
    const struct many *m = c->m;
    bool uneven = t->round > stage->size;
    double all = t->round * period, longest = stay;
    for (uint32_t k = 0; k < stage->kinds; k++) {
        const struct many_unit *unit = stage->of[k].unit;
        double round = t->turns[k] == 1 ? all : all / t->turns[k];
        t->held[k] = many_held(c->slack * stay / round - 1e-6, 0, m->micro_batches);
        while (many_bytes(m, stage->size, role, t->way[k], layers, t->held[k]) > unit->memory) {
            if (t->way[k] || !m->allowed[1])
                return -1;
            double slower = many_seconds(unit, role, 1, layers);
            t->rates -= stage->of[k].count * (1 / t->each[k] - 1 / slower);
            if (t->rates * stage->own < 1 - 1e-9) /* then no round is long enough */
                return -1;
            t->way[k] = true;
            t->each[k] = slower;
            *changed = true;
        }
        double own = (t->held[k] - 1.0) * round + t->each[k] + (uneven ? period : 0);
        longest = own > longest ? own : longest;
    }
    return longest;
}

static void members_tell(const struct many_stage *stage, const struct turns *t, struct many_member *members)
{
    for (uint32_t k = 0, i = 0; k < stage->kinds; k++) {
        for (uint32_t n = 0; n < stage->of[k].count; n++)
            members[i++] = (struct many_member){t->way[k], t->held[k], t->turns[k]};
    }
}

static void ends_find(struct turns *t, const struct many_stage *stage)
{
    t->slowest = 0;
    t->fastest = INFINITY;
    for (uint32_t k = 0; k < stage->kinds; k++) {
        t->slowest = t->each[k] > t->slowest ? t->each[k] : t->slowest;
        t->fastest = t->each[k] < t->fastest ? t->each[k] : t->fastest;
    }
}

/* Members that do not do as first thought: rounds of several turns, recomputation. Returns the stay, or −1
 * where they do not hold the layers. */
static double turns_settle(const struct many_cover *c, double period, const struct many_stage *stage,
                           enum many_role role, int32_t layers, double away, struct turns *t)
{
    double stay = 0;
    bool changed = true;
    for (int turn = 0; turn < TURNS_WAYS && changed; turn++) {
        ends_find(t, stage);
        if (!round_find(t, stage, stage->own * (1 + 1e-9)))
            return -1;
        changed = false;
        stay = t->slowest + away + (t->round > stage->size ? 2 * period : 0);
        if (stay >= stage->wait_most)
            return -1;
        stay = windows_fill(c, period, stage, role, layers, stay, t, &changed);
        if (stay < 0)
            return -1;
    }
    return stay;
}

bool many_turns_hold(const struct many_cover *c, double period, struct many_stage *stage, enum many_role role,
                     int32_t layers, struct many_member *members, struct many_tail *as_tail)
{
    const struct many *m = c->m;
    const struct many_tail *next = stage->next;
    double own = stage->own * (1 + 1e-9), rates = 0, slowest = 0, fastest = INFINITY;
    bool way = !m->allowed[0];
    struct turns t;
    for (uint32_t k = 0; k < stage->kinds; k++) {
        double each = many_seconds(stage->of[k].unit, role, way, layers);
        t.way[k] = way;
        t.each[k] = each;
        rates += stage->of[k].count / each;
        slowest = each > slowest ? each : slowest;
        fastest = each < fastest ? each : fastest;
    }
    double moved_s = many_moved(c, stage, role, layers);
    if (rates * own < 1 || moved_s > c->moved_most)
        return false;
    double away = 2 * many_stage_link(c, stage) + next->wait, stay = slowest + away;
    if (stay >= stage->wait_most)
        return false;
    /* a turn each, as most of the time: then all windows are equal */
    double round = stage->size * period;
    uint32_t held = many_held(c->slack * stay / round - 1e-6, 0, m->micro_batches);
    bool plain = slowest <= stage->size * own &&
                 many_bytes(m, stage->size, role, way, layers, held) <= stage->memory_least;
    t.fastest = fastest;
    t.rates = rates;
    if (plain && !members) {
        double longest = (held - 1.0) * round + slowest;
        stay = longest > stay ? longest : stay;
    } else {
        stay = turns_settle(c, period, stage, role, layers, away, &t);
        if (stay < 0)
            return false;
    }
    if (members)
        members_tell(stage, &t, members);
    *as_tail = (struct many_tail){.layers = next->layers + layers,
                                  .own = layers,
                                  .begin = stage->begin,
                                  .size = stage->size,
                                  .stages = next->stages + 1,
                                  .wait = stay,
                                  .fill = t.fastest + 2 * stage->link_s + next->fill,
                                  .moved_s = moved_s > next->moved_s ? moved_s : next->moved_s};
    return true;
}
