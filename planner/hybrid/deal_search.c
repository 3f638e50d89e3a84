/* Who takes which micro-batch has many local optima, and windows go with it: starts are many. */
#include "planner/hybrid/deal_search.h"

#include "common/rand.h"
#include "planner/hybrid/deal_moves.h"
#include "planner/hybrid/deal_order.h"
#include "planner/hybrid/deal_walk.h"
#include "planner/search/moves.h"

#define DEAL_MOVES 4u        /* of a kick */
#define DEAL_KICKS 32u       /* in vain */
#define DEAL_RUN_WAYS 64u    /* to deal a stage, up to which all are simulated where quick looks cannot say */
#define DEAL_WALKS 4u        /* in vain, */
#define DEAL_LOOKS 4000u     /* so long */
#define DEAL_BETTER 0.999999 /* a change must be worth this much */

struct deal_search {
    struct polish *polish;
    const struct problem *problem;
    struct rand_stream random;
    uint64_t seed;
    struct err *err;
};

/* Some micro-batches in other hands, and now and then other windows. */
static bool deal_kick(struct deal_search *d, struct place_choice *c)
{
    uint32_t wanted = 1 + rand_stream_below(&d->random, DEAL_MOVES), done = 0;
    for (uint32_t turn = 0; turn < 40 && done < wanted; turn++) {
        enum move_kind kind = rand_stream_below(&d->random, 8) ? MOVE_DEAL : MOVE_WINDOW;
        uint32_t a_count, b_count;
        move_range(d->problem, c, kind, &a_count, &b_count);
        if (a_count == 0 || b_count == 0)
            return false;
        uint32_t a = rand_stream_below(&d->random, a_count), b = rand_stream_below(&d->random, b_count);
        done += move_apply(d->problem, c, kind, a, b, d->err) > 0; /* neither spoils what it is not for */
    }
    return done > 0;
}

/* Deals on from a start (spent here); *choice becomes it when it is faster then. */
static bool deal_try(struct deal_search *d, struct place_choice *choice, double *seconds,
                     struct place_choice *start)
{
    double own = polish_quick(d->polish, choice), scale = own > 0 ? *seconds / own : 0, now = -1;
    bool fresh = deal_fix(d->problem, start, d->err) > 0 && !polish_again(d->polish, start);
    double quick = fresh && scale > 0 && polish_fits(d->polish, start) ? polish_quick(d->polish, start) : -1;
    if (quick > 0)
        polish_quick_deal(d->polish, start, &quick);
    if (quick > 0 && quick * scale < *seconds * QUICK_SLACK)
        now = polish_seconds(d->polish, start);
    if (now > 0 && now < *seconds * QUICK_SLACK)
        polish_settle(d->polish, start, &now);
    bool better = now > 0 && now < *seconds * DEAL_BETTER;
    if (better) {
        choice_fini(choice);
        *choice = *start;
        *seconds = now;
    } else {
        choice_fini(start);
    }
    return better;
}

/* From every window of every stage, dealt as it is and by shares. */
static void deal_windows(struct deal_search *d, struct place_choice *choice, double *seconds)
{
    uint32_t a_count, b_count;
    move_range(d->problem, choice, MOVE_WINDOW, &a_count, &b_count);
    for (uint32_t n = 0; n < 2 * (choice->stage_count - 1) * b_count && !polish_spent(d->polish); n++) {
        struct place_choice start;
        if (n / 2 % b_count < 2) /* one up, one down: the others are all there is */
            continue;
        if (choice_copy(&start, choice, d->err) < 0)
            return;
        if (move_apply(d->problem, &start, MOVE_WINDOW, n / 2 / b_count, n / 2 % b_count, d->err) <= 0) {
            choice_fini(&start);
            continue;
        }
        if (n % 2)
            deal_drop(&start);
        deal_try(d, choice, seconds, &start);
    }
}

/* Where quick looks cannot say (a state in shards): stages of few micro-batches dealt in every way, by
 * simulation. */
static void deal_run(struct deal_search *d, struct place_choice *choice, double *seconds)
{
    struct place_choice trial;
    double now = *seconds;
    if (choice->placement != PLACE_HYBRID || choice_copy(&trial, choice, d->err) < 0)
        return;
    bool dealt = deal_fix(d->problem, &trial, d->err) > 0 && polish_quick(d->polish, &trial) <= 0;
    for (uint32_t s = 0; s < trial.stage_count && dealt; s++) {
        uint32_t ways = trial.stages[s].member_count > 1 ? deal_ways(&trial, s) : 0;
        for (uint32_t way = 0; way < ways && ways <= DEAL_RUN_WAYS; way++) {
            struct place_choice other;
            if (choice_copy(&other, &trial, d->err) < 0)
                break;
            double own = deal_way(&other, s, way) ? polish_seconds(d->polish, &other) : -1;
            if (own > 0 && own < now * DEAL_BETTER) {
                choice_fini(&trial);
                trial = other;
                now = own;
            } else {
                choice_fini(&other);
            }
        }
    }
    if (dealt)
        polish_settle(d->polish, &trial, &now);
    if (dealt && now < *seconds * DEAL_BETTER) {
        choice_fini(choice);
        *choice = trial;
        *seconds = now;
    } else {
        choice_fini(&trial);
    }
}

/* Kicked about until enough in a row found nothing. */
static void deal_kicks(struct deal_search *d, struct place_choice *choice, double *seconds)
{
    for (uint32_t idle = 0; idle < DEAL_KICKS && !polish_spent(d->polish); idle++) {
        struct place_choice trial;
        if (choice_copy(&trial, choice, d->err) < 0)
            return;
        rand_stream_init(&d->random, d->seed ^ polish_hash(choice), idle);
        if (!deal_kick(d, &trial))
            choice_fini(&trial);
        else if (deal_try(d, choice, seconds, &trial))
            idle = 0;
    }
}

/* Walks of the best until enough in a row found nothing. */
static void deal_walks(struct deal_search *d, struct place_choice *choice, double *seconds)
{
    for (uint32_t idle = 0, number = 0; idle < DEAL_WALKS && !polish_spent(d->polish); idle++, number++) {
        double before = *seconds;
        deal_walk(d->polish, d->problem, d->seed + number, DEAL_LOOKS, choice, seconds, d->err);
        if (*seconds >= before * DEAL_BETTER)
            continue;
        polish_settle(d->polish, choice, seconds);
        idle = 0;
    }
}

void deal_search(struct polish *polish, const struct problem *problem, uint64_t seed,
                 struct place_choice *choice, double *seconds, struct err *err)
{
    struct deal_search d = {.polish = polish, .problem = problem, .seed = seed, .err = err};
    if (!choice->dealt)
        deal_run(&d, choice, seconds);
    if (choice->dealt) {
        deal_windows(&d, choice, seconds);
        deal_kicks(&d, choice, seconds);
    }
    deal_order(polish, problem, choice, seconds, err);
    deal_walks(&d, choice, seconds);
}
