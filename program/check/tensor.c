/* Checks tensor groups: the members' parts together make every matrix of a layer once, the first member has
 * embedding and head, and every all-reduce is over all members. */
#include <string.h>

#include "program/check/check_private.h"

static bool follows(uint32_t before, uint32_t begin, uint32_t end)
{
    return begin == before && end > begin;
}

/* Returns the next member of the stage, at or after rank `from`; rank_count: none. */
static uint32_t member_from(const struct plan *plan, uint32_t from, int32_t stage)
{
    while (from < plan->rank_count && plan->ranks[from].stage != stage)
        from++;
    return from;
}

/* Checks that member r has the layers of its group's first member, which may also have embedding and head. */
static int blocks_check(const struct plan *plan, uint32_t first, uint32_t r, struct err *err)
{
    const struct plan_rank *a = &plan->ranks[first], *b = &plan->ranks[r];
    int32_t begin = a->block_begin > 1 ? a->block_begin : 1, last = plan->block_count - 1;
    int32_t end = a->block_end < last ? a->block_end : last;
    if (r == first || (b->block_begin == begin && b->block_end == end))
        return 0;
    return err_set(err, ERR_INVALID, "rank %u: blocks %d..%d, but its tensor group shares %d..%d", r,
                   b->block_begin, b->block_end, begin, end);
}

static int stage_tiles(const struct plan *plan, uint32_t first, struct plan_tensor *total, struct err *err)
{
    int32_t stage = plan->ranks[first].stage;
    struct plan_tensor at = {0};
    for (uint32_t r = first; r < plan->rank_count; r = member_from(plan, r + 1, stage)) {
        const struct plan_tensor *t = &plan->ranks[r].tensor;
        if (!follows(at.kv_head_end, t->kv_head_begin, t->kv_head_end) ||
            !follows(at.column_end, t->column_begin, t->column_end))
            return err_set(err, ERR_INVALID,
                           "rank %u: heads %u..%u, columns %u..%u do not follow what the members of stage %d "
                           "before it keep, up to %u, %u",
                           r, t->kv_head_begin, t->kv_head_end, t->column_begin, t->column_end, stage,
                           at.kv_head_end, at.column_end);
        if (blocks_check(plan, first, r, err) < 0)
            return -1;
        at = *t;
    }
    if (total->kv_head_end && (total->kv_head_end != at.kv_head_end || total->column_end != at.column_end))
        return err_set(err, ERR_INVALID, "rank %u: stage %d keeps %u heads, %u columns; another stage %u, %u",
                       first, stage, at.kv_head_end, at.column_end, total->kv_head_end, total->column_end);
    *total = at;
    return 0;
}

static bool is_stage(const struct plan *plan, const struct plan_group *group, int32_t stage)
{
    uint32_t members = 0, inside = 0;
    for (uint32_t r = 0; r < plan->rank_count; r++)
        members += plan->ranks[r].stage == stage;
    for (uint32_t i = 0; i < group->rank_count; i++)
        inside += plan->ranks[group->ranks[i]].stage == stage;
    return members == group->rank_count && inside == members;
}

static int sums_whole(const struct plan *plan, uint32_t rank, int kind, struct err *err)
{
    const struct plan_rank *r = &plan->ranks[rank];
    int32_t known = PLAN_NONE; /* the group that was checked last */
    char where[200];
    for (uint32_t i = 0; i < r->programs[kind].instr_count; i++) {
        const struct instr *x = &r->programs[kind].instrs[i];
        bool half = x->flags & (FLAG_FIRST_HALF | FLAG_SECOND_HALF);
        if (half && (x->block_begin < 1 || x->block_end > plan->block_count - 1))
            return err_set(err, ERR_INVALID, "%s: embedding and head have no halves",
                           plan_where(plan, rank, kind, i, where));
        if (x->op != INSTR_ALL_REDUCE || x->slot_in < 0 || r->slots[x->slot_in].kind != SLOT_PARTIAL ||
            x->group == known)
            continue;
        if (!is_stage(plan, &plan->groups[x->group], r->stage))
            return err_set(err, ERR_INVALID, "%s: group %d is not all of stage %d, whose parts it sums",
                           plan_where(plan, rank, kind, i, where), x->group, r->stage);
        known = x->group;
    }
    return 0;
}

int check_tensor(const struct plan *plan, struct err *err)
{
    struct plan_tensor total = {0};
    if (plan->placement != PLACE_TENSOR)
        return 0;
    for (uint32_t r = 0; r < plan->rank_count; r++) {
        if (member_from(plan, 0, plan->ranks[r].stage) == r && stage_tiles(plan, r, &total, err) < 0)
            return -1;
        for (int kind = 0; kind < PROGRAM_KINDS; kind++)
            if (sums_whole(plan, r, kind, err) < 0)
                return -1;
    }
    return 0;
}
