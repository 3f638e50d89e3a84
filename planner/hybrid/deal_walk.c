/* A micro-batch in other hands is worth something only once others work in another order, and the other way
 * round: descents change one of the two and stop. A walk that also takes what is slower, the less the later,
 * gets past that. */
#include "planner/hybrid/deal_walk.h"

#include <math.h>
#include <string.h>

#include "common/rand.h"
#include "planner/hybrid/deal_moves.h"
#include "planner/search/moves.h"

#define WALK_MEMBERS 16u   /* quick looks know no more devices */
#define WALK_WARM 0.01     /* of the seconds: what is so much slower is taken once in e times, at first */
#define WALK_COLD 0.0003   /* and at last */
#define WALK_SHORTEST 100u /* looks: fewer lead nowhere */
#define WALK_REACH 3u      /* places by which an event is moved, and one */

/* What a step of the walk may change. */
struct spot {
    uint8_t dealt[DEALT_CELLS], order[2 * DEALT_CELLS];
    int32_t ends[WALK_MEMBERS];
    struct place_member members[WALK_MEMBERS];
};

struct walk {
    struct polish *polish;
    const struct problem *problem;
    struct place_choice at, best;
    struct spot before;
    struct rand_stream random;
    double quick, seconds, fastest; /* of `at`, by looks and simulated; the best's */
    struct err *err;
};

static void spot_keep(struct spot *spot, const struct place_choice *c)
{
    memcpy(spot->dealt, c->dealt, c->dealt_count);
    memcpy(spot->order, c->order, 2 * c->dealt_count);
    memcpy(spot->members, c->members, c->member_count * sizeof(*c->members));
    for (uint32_t s = 0; s < c->stage_count; s++)
        spot->ends[s] = c->stages[s].block_end;
}

static void spot_restore(const struct spot *spot, struct place_choice *c)
{
    memcpy(c->dealt, spot->dealt, c->dealt_count);
    memcpy(c->order, spot->order, 2 * c->dealt_count);
    memcpy(c->members, spot->members, c->member_count * sizeof(*c->members));
    for (uint32_t s = 0; s < c->stage_count; s++) {
        c->stages[s].block_end = spot->ends[s];
        if (s + 1 < c->stage_count)
            c->stages[s + 1].block_begin = spot->ends[s];
    }
}

static uint32_t below(struct walk *w, uint32_t bound)
{
    return rand_stream_below(&w->random, bound);
}

/* Any but that one. */
static uint32_t other_below(struct walk *w, uint32_t bound, uint32_t that)
{
    return (that + 1 + below(w, bound - 1)) % bound;
}

/* Two micro-batches of different members of a stage in each other's hands. */
static bool hands_change(struct walk *w, uint8_t *row, uint32_t count, uint32_t k)
{
    uint32_t other = below(w, count);
    uint8_t held = row[k];
    for (uint32_t n = 0; n < count && row[other] == held; n++)
        other = (other + 1) % count;
    row[k] = row[other];
    row[other] = held;
    return row[k] != held;
}

/* A forward and a backward of the rank that has a micro-batch change places, where its order first turns from
 * one to the other from somewhere on; no backward comes before its forward. */
static bool turns_change(struct walk *w, uint32_t stage, uint32_t k)
{
    const struct place_choice *c = &w->at;
    uint32_t count = c->dealt_count / c->stage_count, ahead = 0, at = 0;
    uint32_t own = deal_order_find(c, stage, c->dealt[stage * count + k]);
    uint8_t *order = &c->order[own];
    uint32_t length = 2 * deal_taken(c, stage, c->dealt[stage * count + k]);
    uint32_t from = below(w, length - 1), reach = 1 + below(w, WALK_REACH + 1) / 2;
    for (; at < from || order[at] == order[at + 1] || (order[at + 1] && ahead == 0); at++) {
        if (at + 2 >= length)
            return false;
        ahead += order[at] ? -1u : 1;
    }
    uint32_t other = at + reach < length ? at + reach : length - 1;
    while (order[other] == order[at])
        other--;
    order[at] = !order[at];
    order[other] = !order[other];
    return true;
}

static bool cut_change(struct walk *w)
{
    uint32_t cuts, ways;
    move_range(w->problem, &w->at, MOVE_CUT, &cuts, &ways);
    return move_apply(w->problem, &w->at, MOVE_CUT, below(w, cuts), below(w, ways), w->err) > 0;
}

/* Which changes how often was tried on twenty-three clusters, and on as many others. */
static bool any_change(struct walk *w)
{
    struct place_choice *c = &w->at;
    uint32_t count = c->dealt_count / c->stage_count, kind = below(w, 32);
    uint32_t s = below(w, c->stage_count), k = below(w, count);
    if (kind < 2)
        return cut_change(w);
    if (kind < 15)
        return turns_change(w, s, k);
    while (c->stages[s].member_count < 2)
        s = (s + 1) % c->stage_count;
    uint8_t *row = &c->dealt[(size_t)s * count];
    uint32_t members = c->stages[s].member_count, other = other_below(w, members, row[k]);
    if (kind < 16)
        deal_trade(c, s, row[k], other);
    else if (kind < 24)
        return hands_change(w, row, count, k);
    else
        return deal_hand_over(c, s, k, other, rand_stream_u32(&w->random));
    return true;
}

/* A look says what is not worth simulating. */
static void step(struct walk *w, double slower)
{
    double may = w->seconds - slower * log(1 - rand_stream_unit(&w->random));
    double quick = any_change(w) ? polish_quick(w->polish, &w->at) : -1, now = -1;
    struct place_choice copy;
    if (quick > 0 && quick * w->seconds < may * w->quick * QUICK_SLACK)
        now = polish_seconds(w->polish, &w->at);
    if (now <= 0 || now >= may) {
        spot_restore(&w->before, &w->at);
        return;
    }
    w->quick = quick;
    w->seconds = now;
    if (now < w->fastest && choice_copy(&copy, &w->at, w->err) == 0) {
        choice_fini(&w->best);
        w->best = copy;
        w->fastest = now;
    }
}

static void walk_on(struct walk *w, uint32_t looks)
{
    double slower = WALK_WARM * w->seconds, cools = exp(log(WALK_COLD / WALK_WARM) / looks);
    for (uint32_t n = 0; n < looks && !polish_spent(w->polish); n++, slower *= cools) {
        spot_keep(&w->before, &w->at);
        step(w, slower);
    }
}

void deal_walk(struct polish *polish, const struct problem *problem, uint64_t number, uint32_t looks,
               struct place_choice *choice, double *seconds, struct err *err)
{
    struct walk w = {.polish = polish, .problem = problem, .fastest = *seconds, .err = err};
    if (choice->placement != PLACE_HYBRID || choice->member_count > WALK_MEMBERS ||
        choice->member_count == choice->stage_count || choice_copy(&w.at, choice, err) < 0)
        return;
    uint64_t left = polish_looks(polish, choice);
    looks = left < looks ? (uint32_t)left : looks;
    bool said = looks >= WALK_SHORTEST && deal_fix(problem, &w.at, err) > 0 &&
                deal_order_fix(problem, &w.at, err) > 0;
    w.quick = said ? polish_quick(polish, &w.at) : -1;
    w.seconds = w.quick > 0 ? polish_seconds(polish, &w.at) : -1;
    if (w.seconds > 0 && choice_copy(&w.best, choice, err) == 0) {
        rand_stream_init(&w.random, polish_hash(choice), number);
        walk_on(&w, looks);
        if (w.fastest < *seconds) {
            struct place_choice held = *choice;
            *choice = w.best;
            w.best = held;
            *seconds = w.fastest;
        }
        choice_fini(&w.best);
    }
    choice_fini(&w.at);
}
