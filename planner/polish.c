/* Rows differ in length, so a period of means flatters tight windows: what is found by estimate is tried in
 * earnest, with one thing changed at a time. */
#include "planner/polish.h"

#include <stdlib.h>
#include <string.h>

#include "planner/micro.h"

#define BETTER 0.9995 /* a change must be worth this much */

double choice_simulate(const struct problem *problem, const struct place_choice *choice, uint32_t steps_max,
                       struct err *err)
{
    double seconds = 0;
    struct err why = {0};
    if (problem->runnable_only && !choice_runnable(problem, choice))
        return -1;
    struct plan *plan = placement_find(choice->placement)->emit(problem, choice, true, &why);
    if (!plan) {
        if (why.code == ERR_NOMEM)
            *err = why;
        return -1;
    }
    if (price_plan(problem, plan, steps_max, &seconds, &why) < 0) {
        *err = why;
        seconds = -1;
    }
    plan_destroy(plan);
    return seconds;
}

struct polish {
    const struct problem *problem;
    struct place_choice *choice;
    double *seconds;
    uint32_t left, spent, steps_max;
    struct err *err;
};

/* Keeps what stands in the choice if it is faster; the caller undoes it otherwise. */
static bool faster(struct polish *p)
{
    if (p->left == 0)
        return false;
    p->left--;
    p->spent++;
    double seconds = choice_simulate(p->problem, p->choice, p->steps_max, p->err);
    if (seconds <= 0 || seconds >= *p->seconds * BETTER)
        return false;
    *p->seconds = seconds;
    return true;
}

static uint32_t *window_at(struct polish *p, uint32_t stage)
{
    return &p->choice->members[p->choice->stages[stage].member_first].window;
}

/* Windows fall towards the tail: raising one raises the earlier ones that would be below. */
static bool windows_move(struct polish *p, uint32_t stage, int step)
{
    uint32_t count = p->choice->stage_count;
    uint32_t *old = calloc(count, sizeof(*old));
    if (!old)
        return false;
    for (uint32_t s = 0; s < count; s++)
        old[s] = *window_at(p, s);
    bool valid = step > 0 || (old[stage] > 1 && (stage + 1 == count || old[stage] > old[stage + 1]));
    *window_at(p, stage) += (uint32_t)step;
    for (uint32_t s = stage; s-- > 0;) {
        if (*window_at(p, s) < *window_at(p, s + 1))
            *window_at(p, s) = *window_at(p, s + 1);
    }
    bool better = valid && faster(p);
    for (uint32_t s = 0; s < count && !better; s++)
        *window_at(p, s) = old[s];
    free(old);
    return better;
}

static bool blocks_move(struct polish *p, uint32_t stage, int step)
{
    struct place_stage *a = &p->choice->stages[stage], *b = a + 1;
    int32_t old = a->block_end;
    if (old + step <= a->block_begin || old + step >= b->block_end)
        return false;
    a->block_end = b->block_begin = old + step;
    if (faster(p))
        return true;
    a->block_end = b->block_begin = old;
    return false;
}

static bool recompute_flip(struct polish *p, uint32_t stage)
{
    const struct place_stage *s = &p->choice->stages[stage];
    struct place_member *members = &p->choice->members[s->member_first];
    if (!micro_recompute_allowed(p->problem, !members[0].recompute))
        return false;
    for (uint32_t m = 0; m < s->member_count; m++)
        members[m].recompute = !members[m].recompute;
    if (faster(p))
        return true;
    for (uint32_t m = 0; m < s->member_count; m++)
        members[m].recompute = !members[m].recompute;
    return false;
}

static bool devices_swap(struct polish *p, uint32_t a, uint32_t b)
{
    struct place_member *members = p->choice->members;
    uint32_t old = members[a].device;
    if (old == members[b].device)
        return false;
    members[a].device = members[b].device;
    members[b].device = old;
    if (faster(p))
        return true;
    members[b].device = members[a].device;
    members[a].device = old;
    return false;
}

/* One micro-batch of a stage's from one member to another. */
static bool shares_move(struct polish *p, uint32_t stage)
{
    const struct place_stage *s = &p->choice->stages[stage];
    struct place_member *members = &p->choice->members[s->member_first];
    uint32_t total = 0, unit;
    bool any = false;
    for (uint32_t m = 0; m < s->member_count; m++)
        total += members[m].micro_count;
    unit = total / micro_count(p->problem, p->choice->micro_batch_rows);
    for (uint32_t a = 0; a < s->member_count && s->member_count <= 4; a++) {
        for (uint32_t b = 0; b < s->member_count; b++) {
            if (a == b || unit == 0 || members[a].micro_count <= unit)
                continue;
            members[a].micro_count -= unit;
            members[b].micro_count += unit;
            if (faster(p)) {
                any = true;
                continue;
            }
            members[a].micro_count += unit;
            members[b].micro_count -= unit;
        }
    }
    return any;
}

static bool round_move(struct polish *p)
{
    uint32_t count = p->choice->stage_count;
    bool any = false;
    for (uint32_t s = count; s-- > 0;)
        any |= windows_move(p, s, 1);
    for (uint32_t s = 0; s + 1 < count; s++)
        any |= blocks_move(p, s, 1) || blocks_move(p, s, -1);
    for (uint32_t s = 0; s < count; s++)
        any |= shares_move(p, s);
    for (uint32_t s = 0; s < count; s++)
        any |= recompute_flip(p, s);
    for (uint32_t s = 0; s + 1 < count && p->choice->member_count <= 8; s++)
        any |= devices_swap(p, p->choice->stages[s].member_first, p->choice->stages[s + 1].member_first);
    return any;
}

uint32_t choice_polish(const struct problem *problem, struct place_choice *choice, double *seconds,
                       uint32_t simulations, uint32_t steps_max, struct err *err)
{
    struct polish p = {.problem = problem,
                       .choice = choice,
                       .seconds = seconds,
                       .left = simulations,
                       .steps_max = steps_max,
                       .err = err};
    if (choice->stage_count < 2)
        return 0;
    while (p.left > 0 && round_move(&p))
        ;
    return p.spent;
}
