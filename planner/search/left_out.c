/* Devices left out: what each would have brought. */
#include "planner/search/left_out.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "planner/search/polish.h"

#define TRIED_OF_EACH 4u  /* choices of a placement that are simulated, by estimate */
#define POLISHED_WITH 24u /* simulations to polish the best of them */
#define SAME 1e-9         /* relative: as fast with it as without */
#define ANY_WITHIN 1.02   /* of what was found with it: placements slower than that without are not asked */

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

/* The device as a stage of its own at one place of a pipeline, with one block of the larger neighbour. */
static int insert_at(const struct problem *p, const struct place_choice *best, uint32_t device, uint32_t at,
                     uint32_t steps_max, struct place_choice *choice, double *seconds, struct err *err)
{
    uint32_t count = best->stage_count;
    struct place_choice wide = *best;
    struct place_stage *stages = calloc((size_t)count + 1, sizeof(*stages));
    struct place_member *members = calloc((size_t)count + 1, sizeof(*members));
    int result = 0;
    if (!stages || !members) {
        result = err_set(err, ERR_NOMEM, "planner: out of memory");
        goto out;
    }
    for (uint32_t s = 0; s <= count; s++) {
        uint32_t old = s < at || s == count ? s - (s == count) : s - (s > at);
        stages[s] = best->stages[old];
        members[s] = best->members[stages[s].member_first];
        stages[s].member_first = s;
        stages[s].member_count = 1;
        if (s < at) /* one stage more to wait for */
            members[s].window++;
    }
    const struct place_stage *left = at > 0 ? &best->stages[at - 1] : NULL;
    const struct place_stage *right = at < count ? &best->stages[at] : NULL;
    int32_t left_size = left ? left->block_end - left->block_begin : 0;
    int32_t right_size = right ? right->block_end - right->block_begin : 0;
    if (left_size < 2 && right_size < 2)
        goto out;
    bool from_left = left_size >= right_size;
    int32_t begin = from_left ? left->block_end - 1 : right->block_begin;
    stages[at].block_begin = begin;
    stages[at].block_end = begin + 1;
    if (from_left)
        stages[at - 1].block_end = begin;
    else
        stages[at + 1].block_begin = begin + 1;
    members[at].device = device;
    wide.placement = PLACE_PIPELINE;
    wide.stage_count = wide.member_count = count + 1;
    wide.stages = stages;
    wide.members = members;
    result = keep_if_faster(p, &wide, steps_max, choice, seconds, err);
out:
    free(stages);
    free(members);
    return result;
}

static int insert_anywhere(const struct problem *p, const struct place_choice *best, uint32_t device,
                           uint32_t steps_max, struct place_choice *choice, double *seconds, struct err *err)
{
    int wanted = p->workload->place;
    if (!best || best->member_count == 0 || best->member_count != best->stage_count ||
        (best->placement != PLACE_PIPELINE && best->placement != PLACE_SINGLE) ||
        (wanted >= 0 && wanted != PLACE_PIPELINE) || p->workload->stages)
        return 0;
    for (uint32_t at = 0; at <= best->stage_count; at++) {
        if (insert_at(p, best, device, at, steps_max, choice, seconds, err) < 0)
            return -1;
    }
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

int left_out_try(const struct problem *problem, const struct place_choice *best, const double *any_s,
                 uint32_t device, uint64_t evaluations, uint32_t steps_max, struct place_choice *choice,
                 double *seconds, struct err *err)
{
    bool asked[PLACE_COUNT] = {0};
    int result = 0;
    uint32_t next;
    *choice = (struct place_choice){0};
    *seconds = 0;
    while (result == 0 && (next = placement_next(problem, any_s, asked, *seconds)) != UINT32_MAX) {
        asked[placements[next]->kind] = true;
        result =
            propose_again(problem, placements[next], device, evaluations, steps_max, choice, seconds, err);
    }
    if (result == 0)
        result = insert_anywhere(problem, best, device, steps_max, choice, seconds, err);
    if (result == 0 && choice->member_count && steps_max > 1) {
        uint64_t cells = (uint64_t)choice->member_count *
                         (problem->workload->batch_rows / choice->micro_batch_rows + 1) * steps_max;
        struct polish *polish = polish_create(problem, steps_max, POLISHED_WITH * cells, 0, err);
        if (!polish) {
            result = -1;
        } else {
            polish_must_use(polish, device);
            polish_descend(polish, choice, seconds);
            polish_destroy(polish);
        }
    }
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
