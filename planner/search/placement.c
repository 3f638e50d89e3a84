/* The table of placements, and what their generators share. */
#include "planner/search/placement.h"

#include <stdlib.h>
#include <string.h>

const struct placement *const placements[] = {&place_single, &place_pipeline, &place_data,   &place_hybrid,
                                              &place_server, &place_expert,   &place_tensor, NULL};

const struct placement *placement_find(enum plan_placement kind)
{
    for (uint32_t i = 0; placements[i]; i++) {
        if (placements[i]->kind == kind)
            return placements[i];
    }
    return NULL;
}

bool placement_stages(const struct problem *problem, uint32_t least, uint32_t most, struct err *err)
{
    uint32_t asked = problem->workload->stages;
    if (asked == 0 || (asked >= least && (most == 0 || asked <= most)))
        return true;
    err_set(err, ERR_INVALID, "placement.stages is %u, and this has %s", asked,
            most == 1 ? "one stage" : "two stages at least");
    return false;
}

bool placement_devices(const struct problem *problem, uint32_t least, const char *who, struct err *err)
{
    uint32_t usable = problem_usable_count(problem);
    if (usable < least)
        err_set(err, ERR_NOFIT, "%s %u devices at least; %u can be used", who, least, usable);
    return usable >= least;
}

uint32_t machine_take(double *rates, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t n = 1; n < count; n++)
        best = rates[n] > rates[best] ? n : best;
    if (count == 0 || rates[best] <= 0)
        return UINT32_MAX;
    rates[best] = 0;
    return best;
}

bool choice_runnable(const struct problem *problem, const struct place_choice *choice)
{
    const struct placement *placement = placement_find(choice->placement);
    return placement && (!placement->runnable || placement->runnable(problem, choice));
}

bool choice_uses(const struct place_choice *choice, uint32_t device)
{
    for (uint32_t m = 0; m < choice->member_count; m++) {
        if (choice->members[m].device == device)
            return true;
    }
    return false;
}

static bool stage_uses(const struct place_choice *choice, uint32_t stage, uint32_t device)
{
    const struct place_stage *s = &choice->stages[stage];
    bool found = false;
    for (uint32_t m = s->member_first; m < s->member_first + s->member_count && !found; m++)
        found = choice->members[m].device == device;
    return found;
}

void members_by_machine(const struct problem *problem, struct place_member *members, uint32_t *beside,
                        uint32_t count)
{
    const struct device *devices = problem->cluster->devices;
    for (uint32_t i = 1; i < count; i++) {
        struct place_member member = members[i];
        uint32_t own = beside ? beside[i] : 0, at = i;
        for (; at > 0 && devices[members[at - 1].device].node > devices[member.device].node; at--) {
            members[at] = members[at - 1];
            if (beside)
                beside[at] = beside[at - 1];
        }
        members[at] = member;
        if (beside)
            beside[at] = own;
    }
}

bool choice_same_groups(const struct place_choice *a, const struct place_choice *b)
{
    bool same = a->stage_count == b->stage_count && a->member_count == b->member_count;
    for (uint32_t s = 0; s < a->stage_count && same; s++) {
        const struct place_stage *stage = &a->stages[s];
        same = stage->member_count == b->stages[s].member_count;
        for (uint32_t m = stage->member_first; m < stage->member_first + stage->member_count && same; m++)
            same = stage_uses(b, s, a->members[m].device);
    }
    return same;
}

int choice_copy(struct place_choice *to, const struct place_choice *from, struct err *err)
{
    *to = *from;
    to->stages = calloc((size_t)from->stage_count + 1, sizeof(*to->stages));
    to->members = calloc((size_t)from->member_count + 1, sizeof(*to->members));
    to->dealt = from->dealt ? calloc((size_t)from->dealt_count + 1, 1) : NULL;
    to->order = from->order ? calloc(2 * (size_t)from->dealt_count + 1, 1) : NULL;
    if (!to->stages || !to->members || (from->dealt && !to->dealt) || (from->order && !to->order)) {
        choice_fini(to);
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    }
    if (from->dealt)
        memcpy(to->dealt, from->dealt, from->dealt_count);
    if (from->order)
        memcpy(to->order, from->order, 2 * (size_t)from->dealt_count);
    memcpy(to->stages, from->stages, from->stage_count * sizeof(*to->stages));
    memcpy(to->members, from->members, from->member_count * sizeof(*to->members));
    return 0;
}

void choice_fini(struct place_choice *choice)
{
    free(choice->stages);
    free(choice->members);
    free(choice->dealt);
    free(choice->order);
    *choice = (struct place_choice){0};
}

static bool choice_equal(const struct place_choice *a, const struct place_choice *b)
{
    return a->placement == b->placement && a->schedule == b->schedule &&
           a->micro_batch_rows == b->micro_batch_rows && a->gathered_layers == b->gathered_layers &&
           a->together == b->together && a->stage_count == b->stage_count &&
           a->member_count == b->member_count && a->in_turn == b->in_turn &&
           a->dealt_count == b->dealt_count &&
           (a->dealt_count == 0 || memcmp(a->dealt, b->dealt, a->dealt_count) == 0) &&
           !a->order == !b->order &&
           (!a->order || memcmp(a->order, b->order, 2 * (size_t)a->dealt_count) == 0) &&
           memcmp(a->stages, b->stages, a->stage_count * sizeof(*a->stages)) == 0 &&
           memcmp(a->members, b->members, a->member_count * sizeof(*a->members)) == 0;
}

int choice_list_add(struct choice_list *list, const struct place_choice *choice, struct err *err)
{
    uint32_t at = list->count;
    if (list->runnable_on && !choice_runnable(list->runnable_on, choice))
        return 0;
    if (list->must_use && !choice_uses(choice, list->must_use - 1))
        return 0;
    while (at > 0 && list->choices[at - 1].estimate_s > choice->estimate_s)
        at--;
    if (at >= CHOICES_MAX)
        return 0;
    for (uint32_t i = at; i-- > 0 && list->choices[i].estimate_s == choice->estimate_s;) {
        if (choice_equal(&list->choices[i], choice))
            return 0;
    }
    struct place_choice copy;
    if (choice_copy(&copy, choice, err) < 0)
        return -1;
    if (list->count == CHOICES_MAX)
        choice_fini(&list->choices[--list->count]);
    memmove(&list->choices[at + 1], &list->choices[at], (list->count - at) * sizeof(*list->choices));
    list->choices[at] = copy;
    list->count++;
    return 0;
}

void choice_list_short(struct choice_list *list, uint32_t device, uint64_t needs, uint64_t has)
{
    uint64_t missing = needs > has ? needs - has : 0;
    if (missing == 0 || (list->shortfall_bytes && list->shortfall_bytes <= missing))
        return;
    list->shortfall_bytes = missing;
    list->shortfall_device = device;
    list->needs_bytes = needs;
    list->has_bytes = has;
}

void choice_list_lacks(struct choice_list *list, uint64_t has, uint64_t lacks)
{
    choice_list_short(list, SHORT_TOGETHER, has + lacks, has);
}

void choice_list_fini(struct choice_list *list)
{
    for (uint32_t i = 0; i < list->count; i++)
        choice_fini(&list->choices[i]);
    *list = (struct choice_list){0};
}

void plan_frame_fill(struct plan *plan, const struct problem *problem, const struct place_choice *choice)
{
    uint32_t rows = 0;
    for (uint32_t k = 0; k < plan->micro_batch_count; k++) {
        uint32_t count = plan->micro_batch_start[k + 1] - plan->micro_batch_start[k];
        rows = count > rows ? count : rows;
    }
    plan->placement = choice->placement;
    plan->block_count = problem->block_count;
    plan->rows_bound = rows;
    plan->tokens_bound = problem_tokens_bound(problem, rows);
    plan->labelled_bound = problem_labelled_bound(problem, rows);
    plan->sequence_bound = problem->sequence_bound;
    plan->trains_embedding = problem->workload->method == METHOD_FULL;
}

int plan_rank_fill(struct plan_rank *rank, const struct problem *problem, const struct place_member *member,
                   const struct memory_need *need, struct err *err)
{
    const struct device *device = &problem->cluster->devices[member->device];
    free(rank->device);
    free(rank->node);
    rank->device = strdup(device->name);
    rank->node = strdup(problem->cluster->nodes[device->node].name);
    if (!rank->device || !rank->node)
        return err_set(err, ERR_NOMEM, "planner: out of memory");
    memcpy(rank->memory_peak, need->purpose, sizeof(rank->memory_peak));
    rank->memory_bytes = need->total;
    rank->memory_limit_bytes = device->memory_limit_bytes;
    rank->process_base_bytes = device->profile.process_base_bytes;
    rank->recompute = member->recompute;
    if (need->total > device->memory_limit_bytes)
        return err_set(err, ERR_NOFIT, "%s needs %llu bytes, its limit is %llu", device->name,
                       (unsigned long long)need->total, (unsigned long long)device->memory_limit_bytes);
    return 0;
}

int32_t plan_rank_slot(struct plan_rank *rank, const struct plan_slot *slot)
{
    struct plan_slot *grown = realloc(rank->slots, ((size_t)rank->slot_count + 1) * sizeof(*grown));
    if (!grown)
        return -1;
    rank->slots = grown;
    grown[rank->slot_count] = *slot;
    return (int32_t)rank->slot_count++;
}

int32_t plan_rank_fixed_slot(struct plan_rank *rank, int kind, int lifetime, int place, int purpose,
                             uint64_t bytes)
{
    struct plan_slot slot = {.kind = (uint8_t)kind,
                             .place = (uint8_t)place,
                             .lifetime = (uint8_t)lifetime,
                             .purpose = (uint8_t)purpose,
                             .ring_micro_batches = 1,
                             .ring_blocks = 1,
                             .block_begin = rank->block_begin,
                             .block_end = rank->block_end,
                             .bytes_fixed = bytes,
                             .bytes_bound = bytes,
                             .bytes_total = bytes};
    return plan_rank_slot(rank, &slot);
}
