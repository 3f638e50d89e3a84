/* Wherever a device can stand in a choice: moves that add it (moves.h), to shapes that can take it.
 *
 * A single device becomes a replica or a stage of a pipeline, a pipeline one of groups. A slow card is worth
 * one micro-batch of thirty, or one block: the mean of those that stand there, which a move begins with,
 * would be settled too late. */
#include "planner/search/join.h"

#include <math.h>
#include <string.h>

#include "planner/hybrid/deal_moves.h"
#include "planner/search/moves.h"
#include "planner/search/recut.h"

#define JOIN_KEPT 3u /* of each shape, that are settled and simulated */

struct join {
    const struct problem *p;
    struct polish *polish;
    uint32_t device;
    struct place_choice *best;
    double best_s; /* 0: none yet */
    struct place_choice kept[JOIN_KEPT];
    double look[JOIN_KEPT]; /* of a quick look, or simulated where that cannot say; rising */
    uint32_t count;
    struct err *err;
};

/* Takes *trial (moved or freed) among the best looks. */
static void keep(struct join *j, struct place_choice *trial)
{
    double look = polish_quick(j->polish, trial);
    if (look <= 0 || !polish_fits(j->polish, trial)) {
        double seconds = polish_fit(j->polish, trial);
        look = seconds > 0 && look > 0 ? polish_quick(j->polish, trial) : seconds;
    }
    uint32_t at = j->count;
    while (at > 0 && look < j->look[at - 1])
        at--;
    if (look <= 0 || at == JOIN_KEPT) {
        choice_fini(trial);
        return;
    }
    if (j->count == JOIN_KEPT)
        choice_fini(&j->kept[--j->count]);
    memmove(&j->kept[at + 1], &j->kept[at], (j->count - at) * sizeof(*j->kept));
    memmove(&j->look[at + 1], &j->look[at], (j->count - at) * sizeof(*j->look));
    j->kept[at] = *trial;
    j->look[at] = look;
    j->count++;
}

/* Of a stage that the device alone is, all blocks but one go to the neighbour that holds more. Returns
 * whether it had any to give. */
static bool shrink(const struct join *j, struct place_choice *c)
{
    for (uint32_t s = 0; s < c->stage_count && c->stage_count > 1; s++) {
        struct place_stage *own = &c->stages[s];
        if (own->member_count != 1 || c->members[own->member_first].device != j->device)
            continue;
        struct place_stage *left = s > 0 ? own - 1 : NULL, *right = s + 1 < c->stage_count ? own + 1 : NULL;
        if (own->block_end - own->block_begin < 2)
            return false;
        bool to_left =
            left && (!right || left->block_end - left->block_begin >= right->block_end - right->block_begin);
        if (to_left)
            left->block_end = own->block_begin = own->block_end - 1;
        else
            right->block_begin = own->block_end = own->block_begin + 1;
        return true;
    }
    return false;
}

enum shape { AS_FOUND, CUT_ANEW, ONE_BLOCK, SHAPES };

static void place_try(struct join *j, const struct place_choice *from, uint32_t place, enum shape shape)
{
    struct place_choice trial;
    if (choice_copy(&trial, from, j->err) < 0)
        return;
    if (shape == CUT_ANEW)
        deal_drop(&trial);
    if (move_apply(j->p, &trial, MOVE_ADD, j->device, place, j->err) > 0 &&
        (shape != CUT_ANEW || choice_recut(j->p, &trial, j->err) > 0) &&
        (shape != ONE_BLOCK || shrink(j, &trial)))
        keep(j, &trial);
    else
        choice_fini(&trial);
}

/* The best looks are settled. */
static void kept_run(struct join *j)
{
    for (uint32_t i = 0; i < j->count; i++) {
        struct place_choice *c = &j->kept[i];
        double quick = polish_quick(j->polish, c);
        if (quick > 0 && move_knows(c))
            polish_quick_settle(j->polish, c, &quick, INFINITY);
        double now = polish_fit(j->polish, c);
        polish_settle(j->polish, c, &now);
        if (now > 0 && (j->best_s <= 0 || now < j->best_s)) {
            choice_fini(j->best);
            *j->best = *c;
            j->best_s = now;
        } else {
            choice_fini(c);
        }
    }
    j->count = 0;
}

static void places_try(struct join *j, const struct place_choice *from)
{
    uint32_t devices, places;
    move_range(j->p, from, MOVE_ADD, &devices, &places);
    for (uint32_t place = 0; place < places && !polish_spent(j->polish); place++) {
        for (int shape = 0; shape < SHAPES; shape++)
            place_try(j, from, place, (enum shape)shape);
    }
    kept_run(j);
}

/* As groups of one or more, where it is said who takes what: who joins takes one micro-batch. */
static void groups_try(struct join *j, const struct place_choice *from)
{
    int wanted = j->p->workload->place;
    struct place_choice groups;
    if ((from->placement != PLACE_PIPELINE && from->placement != PLACE_HYBRID) ||
        from->schedule == SCHEDULE_INTERLEAVED || (wanted >= 0 && wanted != PLACE_HYBRID) ||
        choice_copy(&groups, from, j->err) < 0)
        return;
    groups.placement = PLACE_HYBRID;
    groups.schedule = SCHEDULE_1F1B;
    for (uint32_t m = 0; m < groups.member_count; m++)
        groups.members[m].delay = 0;
    if (from->placement == PLACE_PIPELINE)
        places_try(j, &groups);
    if (!groups.dealt && deal_fix(j->p, &groups, j->err) > 0)
        places_try(j, &groups);
    choice_fini(&groups);
}

/* One device alone, as the replica that others join, or as a pipeline's only stage. */
static void single_try(struct join *j, const struct place_choice *from)
{
    int wanted = j->p->workload->place;
    struct place_choice alone;
    if (choice_copy(&alone, from, j->err) < 0)
        return;
    if ((wanted < 0 || wanted == PLACE_DATA) && j->p->workload->method == METHOD_LORA) {
        alone.placement = PLACE_DATA;
        places_try(j, &alone);
    }
    if ((wanted < 0 || wanted == PLACE_PIPELINE) && alone.stage_count == 1) {
        alone.placement = PLACE_PIPELINE;
        alone.members[0].window = 1;
        places_try(j, &alone);
    }
    choice_fini(&alone);
}

int choice_join(const struct problem *p, struct polish *polish, const struct place_choice *from,
                uint32_t device, struct place_choice *choice, double *seconds, struct err *err)
{
    struct join j = {.p = p, .polish = polish, .device = device, .best = choice, .err = err};
    *choice = (struct place_choice){0};
    if (from->placement == PLACE_SINGLE)
        single_try(&j, from);
    else
        places_try(&j, from);
    groups_try(&j, from);
    *seconds = j.best_s;
    if (err->code == ERR_NOMEM) {
        choice_fini(choice);
        return -1;
    }
    return j.best_s > 0;
}
