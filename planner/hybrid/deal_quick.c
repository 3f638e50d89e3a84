/* By quick looks alone: every way of a stage that has few, one change at a time where there are many. */
#include "planner/hybrid/deal_quick.h"

#include <math.h>
#include <string.h>

#include "planner/hybrid/deal_moves.h"
#include "planner/search/moves.h"

#define DEAL_WAYS 256u    /* a stage is dealt in every way where there are no more */
#define DEAL_CUT_WAYS 32u /* likewise, with every move of a cut */
#define BETTER 0.999999   /* a change must be worth this much */

struct dealer {
    struct polish *polish;
    const struct problem *problem;
    struct err *err;
};

/* A stage's micro-batches dealt in every way. */
static bool deal_every(const struct dealer *d, struct place_choice *c, uint32_t stage, uint32_t ways,
                       double *quick)
{
    uint32_t count = c->dealt_count / c->stage_count;
    uint8_t *at = &c->dealt[(size_t)stage * count], best[DEALT_CELLS];
    bool any = false;
    memcpy(best, at, count);
    for (uint32_t way = 0; way < ways && !polish_spent(d->polish); way++) {
        double now = deal_way(c, stage, way) ? polish_quick_below(d->polish, c, *quick * BETTER) : -1;
        if (now <= 0 || now >= *quick * BETTER || !polish_fits(d->polish, c))
            continue;
        memcpy(best, at, count);
        *quick = now;
        any = true;
    }
    memcpy(at, best, count);
    return any;
}

/* One pass over who takes which micro-batch, by quick looks alone. */
static bool deal_pass(const struct dealer *d, struct place_choice *c, double *quick)
{
    uint32_t a_count, b_count, count = c->dealt_count / c->stage_count;
    uint8_t row[DEALT_CELLS];
    bool any = false;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        if (c->stages[s].member_count > 1 && deal_ways(c, s) <= DEAL_WAYS)
            any = deal_every(d, c, s, deal_ways(c, s), quick) || any;
    }
    move_range(d->problem, c, MOVE_DEAL, &a_count, &b_count);
    for (uint32_t n = 0; n < a_count * b_count && !polish_spent(d->polish); n++) {
        if (deal_ways(c, n / b_count / count) <= DEAL_WAYS)
            continue;
        uint8_t *at = &c->dealt[n / b_count / count * count];
        memcpy(row, at, count);
        if (!deal_move(c, n / b_count, n % b_count))
            continue;
        double now = polish_quick_below(d->polish, c, *quick * BETTER);
        if (now > 0 && now < *quick * BETTER && polish_fits(d->polish, c)) {
            *quick = now;
            any = true;
        } else {
            memcpy(at, row, count);
        }
    }
    return any;
}

static bool rows_whole(const struct place_choice *c)
{
    uint32_t count = c->dealt_count / c->stage_count;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        for (uint32_t m = 0; m < c->stages[s].member_count; m++) {
            if (!memchr(&c->dealt[(size_t)s * count], (int)m, count))
                return false;
        }
    }
    return true;
}

/* Keeps what is dealt when a quick look likes it better than `before`. */
static bool deal_keep(const struct dealer *d, struct place_choice *c, const uint8_t *before, double *quick)
{
    double now = rows_whole(c) ? polish_quick_below(d->polish, c, *quick * BETTER) : -1;
    if (now > 0 && now < *quick * BETTER && polish_fits(d->polish, c)) {
        *quick = now;
        return true;
    }
    memcpy(c->dealt, before, c->dealt_count);
    return false;
}

/* Two stages at once: what takes the same way through both is seldom left by one of them alone. A micro-batch
 * to other members of two stages in a row; two micro-batches' ways through all stages exchanged. */
static bool deal_ways_pass(const struct dealer *d, struct place_choice *c, double *quick)
{
    uint32_t count = c->dealt_count / c->stage_count;
    uint8_t before[DEALT_CELLS];
    bool any = false;
    memcpy(before, c->dealt, c->dealt_count);
    for (uint32_t n = 0; n < (c->stage_count - 1) * count && !polish_spent(d->polish); n++) {
        uint32_t first = c->stages[n / count].member_count, second = c->stages[n / count + 1].member_count;
        for (uint32_t way = 0; way < first * second && first > 1 && second > 1; way++) {
            if (before[n] == way / second || before[n + count] == way % second)
                continue;
            c->dealt[n] = (uint8_t)(way / second);
            c->dealt[n + count] = (uint8_t)(way % second);
            any = deal_keep(d, c, before, quick) || any;
            memcpy(before, c->dealt, c->dealt_count);
        }
    }
    for (uint32_t n = 0; n < count * count && !polish_spent(d->polish); n++) {
        uint32_t a = n / count, b = n % count;
        for (uint32_t s = 0; s < c->stage_count && a < b; s++) {
            c->dealt[s * count + a] = before[s * count + b];
            c->dealt[s * count + b] = before[s * count + a];
        }
        if (memcmp(before, c->dealt, c->dealt_count) == 0)
            continue;
        any = deal_keep(d, c, before, quick) || any;
        memcpy(before, c->dealt, c->dealt_count);
    }
    return any;
}

/* A cut and who takes which micro-batch at once, where dealing in every way is quick. */
static bool deal_cut_pass(const struct dealer *d, struct place_choice *c, double *quick)
{
    uint32_t a_count, b_count;
    bool any = false;
    move_range(d->problem, c, MOVE_CUT, &a_count, &b_count);
    for (uint32_t n = 0; n < a_count * b_count && !polish_spent(d->polish); n++) {
        struct place_choice trial;
        bool better = false;
        if (choice_copy(&trial, c, d->err) < 0)
            return any;
        if (move_apply(d->problem, &trial, MOVE_CUT, n / b_count, n % b_count, d->err) > 0) {
            for (uint32_t s = 0; s < trial.stage_count; s++) {
                if (trial.stages[s].member_count > 1 && deal_ways(&trial, s) <= DEAL_CUT_WAYS)
                    better = deal_every(d, &trial, s, deal_ways(&trial, s), quick) || better;
            }
        }
        if (better) {
            choice_fini(c);
            *c = trial;
            any = true;
        } else {
            choice_fini(&trial);
        }
    }
    return any;
}

void deal_quick(struct polish *polish, const struct problem *problem, struct place_choice *c, double *quick,
                struct err *err)
{
    const struct dealer d = {.polish = polish, .problem = problem, .err = err};
    if (deal_fix(problem, c, err) <= 0)
        return;
    if (c->order) { /* of how many micro-batches */
        deal_order_drop(c);
        *quick = polish_quick(polish, c);
    }
    for (bool any = true; any && !polish_spent(polish);) {
        double before = *quick;
        any = deal_pass(&d, c, quick);
        any = deal_ways_pass(&d, c, quick) || any;
        polish_quick_settle(polish, c, quick, INFINITY);
        any = deal_cut_pass(&d, c, quick) || any || *quick < before;
    }
}
