/* The best of every placement kicked about, the fastest placement first; hybrids of few devices from what is
 * nearly as fast, too: which of two is faster in the end, descents alone do not say. */
#include "planner/search/search_private.h"

#include <math.h>
#include <string.h>

#include "planner/hybrid/deal_search.h"
#include "planner/hybrid/deal_walk.h"
#include "planner/pipeline/pipeline.h"
#include "planner/search/polish.h"

#define KICKED_FEW 2u       /* hybrids of few devices that are kicked about beside the best */
#define KICKED_NEAR 1.015   /* of the best before it was kicked about: those above are let be */
#define KICKED_WITHIN 1.01  /* of the fastest of all, now that the best was kicked about */
#define KICKS_OTHERS 8u     /* theirs, in vain */
#define KICKS_ASKED 200u    /* the same of a placement asked for alone */
#define WALK_CELLS 100u     /* ranks · micro-batches up to which programs are short, */
#define WALK_BUDGET 6u      /* dealing and walks then have so many times what kicks have, */
#define WALK_BUDGET_LONG 2u /* and else so many */
#define WALK_WITHIN 1.15    /* of the best: hybrids from which walks are tried, */
#define WALK_SHORT 1000u    /* so many looks long, */
#define WALKED 4u           /* and from so many of them */
#define WALK_LONG 10000u    /* then so many */
#define WALKED_WITHIN 1.05  /* of the fastest of all: hybrids that are slower are let be */
#define KICK_WITHIN 1.15    /* of the fastest placement: kicks gain 3 % and less mostly, 16 % once */

static uint64_t walk_budget(const struct finalists *f)
{
    return f->few_budget * (f->cells <= WALK_CELLS ? WALK_BUDGET : WALK_BUDGET_LONG);
}

/* Who takes which micro-batch of a hybrid of few devices, with a budget of its own. */
static int deal_again(struct search *s, uint64_t budget, uint64_t cells, struct place_choice *choice,
                      double *seconds)
{
    struct polish *polish =
        polish_create(s->problem, finalist_steps(s->problem, cells), budget, s->options->seed, s->err);
    if (!polish)
        return -1;
    do
        deal_search(polish, s->problem, s->options->seed, choice, seconds, s->err);
    while (polish_descend(polish, choice, seconds)); /* others may do what, now that it is dealt otherwise */
    polish_destroy(polish);
    return 0;
}

/* What is faster than the best of the placement and of all others, where all of it can be looked at. */
static int placement_end(struct search *s, enum plan_placement kind, struct finalists *f,
                         struct place_choice *choice)
{
    const struct placement *placement = placement_find(kind);
    struct place_choice found;
    if (!placement->exact)
        return 0;
    int result = placement->exact(s->problem, fmin(f->known_s, s->fastest_s),
                                  finalist_steps(s->problem, f->cells), &found, &f->known_s, s->err);
    if (result <= 0)
        return result;
    choice_fini(choice);
    *choice = found;
    polish_descend(f->polish, choice, &f->known_s); /* other schedules from there */
    return 0;
}

/* The least of `count` seconds above 0; UINT32_MAX: none. */
static uint32_t least_pick(const double *seconds, uint32_t count)
{
    uint32_t pick = UINT32_MAX;
    for (uint32_t i = 0; i < count; i++) {
        if (seconds[i] > 0 && (pick == UINT32_MAX || seconds[i] < seconds[pick]))
            pick = i;
    }
    return pick;
}

/* The best of what was descended to, takes `most` seconds at most, and groups devices otherwise; UINT32_MAX:
 * none.
 */
static uint32_t other_pick(struct finalists *f, const struct choice_list *list, double most)
{
    const struct place_choice *known = &list->choices[f->known];
    for (uint32_t i = 0; i < list->count; i++) {
        if (f->descended_s[i] > 0 && list->choices[i].micro_batch_rows == known->micro_batch_rows &&
            choice_same_groups(&list->choices[i], known))
            f->descended_s[i] = 0;
    }
    uint32_t pick = least_pick(f->descended_s, list->count);
    return pick != UINT32_MAX && f->descended_s[pick] <= most ? pick : UINT32_MAX;
}

/* The rest of the finalists polished, with a budget of their own: the best one's kicks lose nothing by them.
 */
static int others_descend(struct search *s, struct finalists *f)
{
    struct choice_list *list = &s->lists[PLACE_HYBRID];
    struct polish *polish = polish_create(s->problem, finalist_steps(s->problem, f->cells), f->few_budget,
                                          s->options->seed, s->err);
    if (!polish)
        return -1;
    for (uint32_t turn = POLISHED_FEW; turn < POLISHED; turn++) {
        uint32_t pick = least_pick(f->simulated_s, list->count);
        if (pick == UINT32_MAX || f->simulated_s[pick] > f->known_s * POLISH_WITHIN)
            break;
        double now = f->simulated_s[pick];
        polish_descend(polish, &list->choices[pick], &now);
        f->simulated_s[pick] = 0;
        f->descended_s[pick] = now;
    }
    polish_destroy(polish);
    return 0;
}

/* Hybrids of few devices: what is grouped otherwise and was nearly as fast before kicks is kicked about, too:
 * they are worth more to one than to another. */
static int others_kick(struct search *s, struct finalists *f)
{
    struct choice_list *list = &s->lists[PLACE_HYBRID];
    double most = f->descended_s[f->known] * KICKED_NEAR;
    f->descended_s[f->known] = 0;
    if (others_descend(s, f) < 0)
        return -1;
    for (uint32_t turn = 0; turn < KICKED_FEW; turn++) {
        uint32_t pick = other_pick(f, list, most);
        if (pick == UINT32_MAX)
            return 0;
        double now = f->descended_s[pick];
        struct polish *polish = polish_create(s->problem, finalist_steps(s->problem, f->cells), f->few_budget,
                                              s->options->seed, s->err);
        if (!polish)
            return -1;
        f->descended_s[pick] = 0;
        polish_search(polish, &list->choices[pick], &now, KICKS_OTHERS);
        polish_destroy(polish);
        if (deal_again(s, walk_budget(f), f->cells, &list->choices[pick], &now) < 0)
            return -1;
        if (now < f->known_s) {
            f->known = pick;
            f->known_s = now;
        }
    }
    return 0;
}

/* Who takes which micro-batch, in which order, of all hybrids of few devices that are near: what is slower as
 * it comes may be the fastest once that is said. */
static int others_walk(struct search *s, struct finalists *f)
{
    struct choice_list *list = &s->lists[PLACE_HYBRID];
    double seconds[CHOICES_MAX];
    struct polish *polish = polish_create(s->problem, finalist_steps(s->problem, f->cells), walk_budget(f),
                                          s->options->seed, s->err);
    if (!polish)
        return -1;
    for (uint32_t i = 0; i < list->count; i++) {
        seconds[i] = i == f->known           ? f->known_s
                     : f->descended_s[i] > 0 ? f->descended_s[i]
                                             : f->simulated_s[i];
        if (seconds[i] > f->known_s * WALK_WITHIN)
            seconds[i] = 0;
        if (seconds[i] > 0)
            deal_walk(polish, s->problem, s->options->seed, WALK_SHORT, &list->choices[i], &seconds[i],
                      s->err);
    }
    for (uint32_t turn = 0; turn < WALKED; turn++) {
        uint32_t pick = least_pick(seconds, list->count);
        if (pick == UINT32_MAX)
            break;
        deal_walk(polish, s->problem, s->options->seed, WALK_LONG, &list->choices[pick], &seconds[pick],
                  s->err);
        polish_settle(polish, &list->choices[pick], &seconds[pick]);
        if (seconds[pick] < f->known_s) {
            f->known = pick;
            f->known_s = seconds[pick];
        }
        seconds[pick] = 0;
    }
    polish_destroy(polish);
    return 0;
}

/* Few devices' tensor groups, and hybrids in full fine-tuning: kicks gain more. */
static bool kicks_gain(const struct search *s, enum plan_placement kind)
{
    return s->problem->device_count <= TENSOR_FEW &&
           (kind == PLACE_TENSOR || (kind == PLACE_HYBRID && s->problem->workload->method == METHOD_FULL));
}

/* In vain, until it is let be. */
static uint32_t kicks_of(const struct search *s, enum plan_placement kind, double seconds)
{
    if (kind == PLACE_PIPELINE && pipeline_exhausts(s->problem))
        return 0;
    bool brief = s->problem->device_count <= TENSOR_FEW && (kind == PLACE_SERVER || kind == PLACE_DATA);
    bool first = (kicks_gain(s, kind) || brief) && seconds <= s->fastest_s;
    return s->problem->workload->place == (int)kind || first ? KICKS_ASKED : KICKS;
}

/* Kicks the best of one placement about, if that may make it the fastest of all. */
static int placement_kick(struct search *s, enum plan_placement kind, struct finalists *f)
{
    bool more = kicks_gain(s, kind);
    if (!f->polish || f->known == UINT32_MAX)
        return 0;
    struct place_choice *choice = &s->lists[kind].choices[f->known];
    if (placement_end(s, kind, f, choice) < 0)
        return -1;
    bool near = f->known_s <= s->fastest_s * (more ? POLISH_WITHIN : KICK_WITHIN);
    if (near)
        polish_search(f->polish, choice, &f->known_s, kicks_of(s, kind, f->known_s));
    if (near && f->few && deal_again(s, walk_budget(f), f->cells, choice, &f->known_s) < 0)
        return -1;
    if (near && f->few && f->known_s <= s->fastest_s * KICKED_WITHIN && others_kick(s, f) < 0)
        return -1;
    if (near && f->few && f->known_s <= s->fastest_s * WALKED_WITHIN && others_walk(s, f) < 0)
        return -1;
    if (f->known_s < f->seconds || f->known == f->best) {
        f->best = f->known;
        f->seconds = f->known_s;
    }
    s->fastest_s = fmin(s->fastest_s, f->seconds);
    return 0;
}

int search_kick(struct search *s, struct finalists all[PLACE_COUNT])
{
    bool done[PLACE_COUNT] = {0};
    for (;;) {
        int next = -1;
        for (int kind = 0; kind < PLACE_COUNT; kind++) {
            bool can = all[kind].polish && all[kind].known != UINT32_MAX && !done[kind];
            if (can && (next < 0 || all[kind].known_s < all[next].known_s))
                next = kind;
        }
        if (next < 0)
            return 0;
        done[next] = true;
        if (placement_kick(s, (enum plan_placement)next, &all[next]) < 0)
            return -1;
    }
}
