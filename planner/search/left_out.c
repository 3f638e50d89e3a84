/* Devices left out: what each would have brought. */
#include "planner/search/left_out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/search/join.h"
#include "planner/search/polish.h"

#define TRIED_OF_EACH 4u    /* choices of a placement that are simulated, by estimate */
#define POLISHED_WITH 96u   /* simulations to polish the best of them */
#define POLISHED_WITHIN 1.1 /* of the better of what was put in and what was proposed: both are polished */
#define JOINED_WITH 48u     /* simulations to put the device into one of what was found without */
#define JOINED_MANY 8u      /* likewise, of many devices */
#define JOIN_WITHIN 1.25    /* of the best: what was found of other placements that it joins, too */
#define SAME 1e-9           /* relative: as fast with it as without */
#define ANY_WITHIN 1.02     /* of what was found with it: placements slower than that without are not asked */

/* So few devices that there is time to ask placements for each of them. */
static bool few(const struct problem *p)
{
    return p->device_count <= LEFT_OUT_PROPOSED;
}

/* Keeps a copy of the choice if it is the fastest so far. */
static int keep_if_faster(const struct problem *p, const struct place_choice *tried, uint32_t steps_max,
                          struct place_choice *choice, double *seconds, struct err *err)
{
    struct place_choice copy;
    double each = choice_simulate(p, tried, steps_max, err);
    if (each <= 0 || (choice->member_count && each >= *seconds))
        return 0;
    if (choice_copy(&copy, tried, err) < 0)
        return -1;
    choice_fini(choice);
    *choice = copy;
    *seconds = each;
    return 0;
}

/* The next placement to ask: the fastest one with whatever devices, of those not asked; none where that is
 * far behind what was found. UINT32_MAX: none. */
static uint32_t placement_next(const struct problem *p, const double *any_s, const bool *asked, double found)
{
    int wanted = p->workload->place;
    uint32_t next = UINT32_MAX;
    double least = found > 0 ? found * ANY_WITHIN : INFINITY;
    for (uint32_t i = 0; placements[i]; i++) {
        enum plan_placement kind = placements[i]->kind;
        if (kind == PLACE_SINGLE || asked[kind] || any_s[kind] <= 0 || any_s[kind] >= least ||
            (wanted != -1 && wanted != (int)kind))
            continue;
        next = i;
        least = any_s[kind];
    }
    return next;
}

static int propose_again(const struct problem *p, const struct placement *placement, uint32_t device,
                         uint64_t evaluations, uint32_t steps_max, struct place_choice *choice,
                         double *seconds, struct err *err)
{
    struct choice_list list = {
        .evaluations_max = evaluations, .must_use = device + 1, .runnable_on = p->runnable_only ? p : NULL};
    int result = placement->propose(p, &list, err);
    for (uint32_t k = 0, tried = 0; k < list.count && tried < TRIED_OF_EACH && result == 0; k++) {
        if (list.choices[k].member_count < 2)
            continue;
        result = keep_if_faster(p, &list.choices[k], steps_max, choice, seconds, err);
        tried++;
    }
    choice_list_fini(&list);
    return result;
}

/* Simulations of a choice with one device more, as a polisher's budget. */
static uint64_t budget(const struct problem *p, const struct place_choice *choice, uint32_t simulations,
                       uint32_t steps_max)
{
    uint64_t micro_batches = p->workload->batch_rows / choice->micro_batch_rows + 1;
    return simulations * (choice->member_count + UINT64_C(1)) * micro_batches * steps_max;
}

/* The device put into what was found without it. */
static int join_one(const struct problem *p, const struct place_choice *from, uint32_t device,
                    uint32_t steps_max, struct place_choice *choice, double *seconds, struct err *err)
{
    struct place_choice joined;
    double joined_s;
    struct polish *polish =
        polish_create(p, steps_max, budget(p, from, few(p) ? JOINED_WITH : JOINED_MANY, steps_max), 0, err);
    if (!polish)
        return -1;
    polish_must_use(polish, device);
    int result = choice_join(p, polish, from, device, &joined, &joined_s, err);
    polish_destroy(polish);
    if (result > 0 && (choice->member_count == 0 || joined_s < *seconds)) {
        choice_fini(choice);
        *choice = joined;
        *seconds = joined_s;
    } else if (result > 0) {
        choice_fini(&joined);
    }
    return result;
}

/* The best of all, and those of other placements nearly as fast: with the device in them, if it is not. */
static int join_all(const struct problem *p, const struct left_out_found *found, uint32_t device,
                    uint32_t steps_max, struct place_choice *choice, double *seconds, struct err *err)
{
    int result = join_one(p, found->best, device, steps_max, choice, seconds, err);
    for (int kind = 0; kind < PLACE_COUNT && result >= 0; kind++) {
        const struct place_choice *one = found->of[kind];
        if (!one || one->stages == found->best->stages || found->of_s[kind] > found->best_s * JOIN_WITHIN)
            continue;
        if (!choice_uses(one, device))
            result = join_one(p, one, device, steps_max, choice, seconds, err);
        else if (one->member_count > 1)
            result = keep_if_faster(p, one, steps_max, choice, seconds, err);
    }
    for (int kind = 0; kind < PLACE_COUNT && result >= 0 && few(p);
         kind++) { /* what did not become the best */
        const struct choice_list *list = &found->lists[kind];
        for (uint32_t i = 0; i < list->count && result >= 0; i++) {
            const struct place_choice *one = &list->choices[i];
            if (one->member_count > 1 && choice_uses(one, device))
                result = keep_if_faster(p, one, steps_max, choice, seconds, err);
        }
    }
    return result < 0 ? -1 : 0;
}

struct candidate {
    struct place_choice choice;
    double seconds; /* 0: none */
};

static int polish_with(const struct problem *p, struct candidate *c, uint32_t device, uint32_t steps_max,
                       struct err *err)
{
    uint64_t most = budget(p, &c->choice, POLISHED_WITH, steps_max);
    struct polish *polish = polish_create(p, steps_max, most, 0, err);
    if (!polish)
        return -1;
    polish_must_use(polish, device);
    polish_descend(polish, &c->choice, &c->seconds);
    polish_destroy(polish);
    return err->code == ERR_NOMEM ? -1 : 0;
}

/* Placements asked for it, those first that were fastest without. */
static int propose_all(const struct problem *p, const struct left_out_found *found, double known_s,
                       uint32_t device, uint64_t evaluations, uint32_t steps_max, struct candidate *c,
                       struct err *err)
{
    bool asked[PLACE_COUNT] = {0};
    int result = 0;
    uint32_t next;
    do {
        double least = c->seconds > 0 && (known_s <= 0 || c->seconds < known_s) ? c->seconds : known_s;
        next = placement_next(p, found->of_s, asked, least);
        if (next == UINT32_MAX)
            break;
        asked[placements[next]->kind] = true;
        result =
            propose_again(p, placements[next], device, evaluations, steps_max, &c->choice, &c->seconds, err);
    } while (result == 0);
    return result;
}

int left_out_try(const struct problem *problem, const struct left_out_found *found, uint32_t device,
                 uint64_t evaluations, uint32_t steps_max, struct place_choice *choice, double *seconds,
                 struct err *err)
{
    struct candidate joined = {0}, proposed = {0};
    int result = join_all(problem, found, device, steps_max, &joined.choice, &joined.seconds, err);
    if (result == 0 && few(problem))
        result = propose_all(problem, found, joined.seconds, device, evaluations, steps_max, &proposed, err);
    struct candidate *all[] = {&joined, &proposed};
    if (proposed.seconds > 0 && (joined.seconds <= 0 || proposed.seconds < joined.seconds)) {
        all[0] = &proposed;
        all[1] = &joined;
    }
    for (int i = 0; i < 2 && result == 0 && steps_max > 1 && few(problem); i++) {
        if (all[i]->seconds > 0 && all[i]->seconds < all[0]->seconds * POLISHED_WITHIN)
            result = polish_with(problem, all[i], device, steps_max, err);
    }
    uint32_t best = all[1]->seconds > 0 && all[1]->seconds < all[0]->seconds;
    *choice = all[best]->choice;
    *seconds = all[best]->seconds;
    choice_fini(&all[!best]->choice);
    if (result < 0)
        choice_fini(choice);
    return result;
}

static bool named(char *const *names, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return false;
}

int left_out_fill(const struct problem *p, const double *with_s, struct plan_answer *a, struct err *err)
{
    bool *used = calloc((size_t)p->device_count + 1, sizeof(*used));
    a->left_out = calloc((size_t)p->device_count + 1, sizeof(*a->left_out));
    if (!used || !a->left_out) {
        free(used);
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    for (uint32_t r = 0; a->plan && r < a->plan->rank_count; r++) {
        uint32_t d = cluster_device_find(p->cluster, a->plan->ranks[r].device);
        if (d != UINT32_MAX)
            used[d] = true;
    }
    for (uint32_t i = 0; i < p->device_count; i++) {
        uint32_t d = problem_listed(p, i);
        const char *name = p->cluster->devices[d].name, *why = "not asked for";
        if (used[d])
            continue;
        struct plan_left_out *line = &a->left_out[a->left_out_count++];
        line->step_s_with = p->usable[d] && a->plan && with_s ? with_s[d] : 0;
        if (named(p->workload->exclude, p->workload->exclude_count, name))
            why = "excluded";
        else if (p->usable[d] && a->plan && p->workload->place == PLACE_SINGLE)
            why = "one device is asked for (placement.kind)";
        else if (p->usable[d] && !a->plan)
            why = "nothing fits";
        else if (p->usable[d] && line->step_s_with > a->step_s * (1 + SAME))
            why = "slower with it";
        else if (p->usable[d] && line->step_s_with > 0)
            why = "no faster with it";
        else if (p->usable[d])
            why = p->device_count > LEFT_OUT_TRIED
                      ? "not needed; in a cluster this large not tried one by one"
                      : "nothing that was tried fits with it";
        line->device = strdup(name);
        line->why = strdup(why);
        if (!line->device || !line->why) {
            free(used);
            return err_set(err, ERR_NOMEM, "planner: out of memory");
        }
    }
    free(used);
    return 0;
}
