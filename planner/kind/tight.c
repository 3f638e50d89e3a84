#include "planner/kind/tight.h"

#include "planner/cost/memory.h"
#include "planner/emit/pipeline.h"

static uint64_t limit_of(const struct workbench *bench, const struct candidate *c, uint32_t s)
{
    return bench->problem->cluster->devices[c->members[c->stages[s].member_first].device].memory_limit_bytes;
}

/* Returns the least bytes that a stage's member needs: with one micro-batch in flight, and recomputing if
 * that is allowed. */
static uint64_t least_need(const struct workbench *bench, const struct candidate *c, uint32_t s)
{
    uint32_t sides = (s > 0 ? 1u : 0u) + (s + 1 < c->stage_count ? 1u : 0u);
    struct memory_need need;
    pipeline_member_need(bench->problem, c, s, c->stages[s].member_first, (struct flat_share){0, 1}, 1,
                         PIPELINE_BUFFERS_SIDE * sides, &need);
    return need.total;
}

static bool tight_holds(const struct workbench *bench, struct candidate *c, uint32_t s, int32_t begin,
                        int32_t end)
{
    c->stages[s].block_begin = begin;
    c->stages[s].block_end = end;
    return least_need(bench, c, s) <= limit_of(bench, c, s);
}

/* Returns the number of blocks that fit in stage s's memory, from block `begin` on, or, if `backward`, up to
 * block `end`. */
static int32_t blocks_held(const struct workbench *bench, struct candidate *c, uint32_t s, int32_t begin,
                           int32_t end, bool backward)
{
    int32_t low = 0, high = end - begin;
    while (low < high) {
        int32_t middle = low + (high - low + 1) / 2;
        bool fits = backward ? tight_holds(bench, c, s, end - middle, end)
                             : tight_holds(bench, c, s, begin, begin + middle);
        if (fits)
            low = middle;
        else
            high = middle - 1;
    }
    return low;
}

/* Gives the stages before and after `s` as many blocks as their memory holds, and `s` the rest. Returns the
 * bytes that s then lacks; UINT64_MAX if a stage would have no block. */
static uint64_t lacking(struct workbench *bench, struct candidate *c, uint32_t s)
{
    int32_t begin = 0, end = bench->problem->block_count, left = (int32_t)c->stage_count;
    for (uint32_t i = c->stage_count; --i > s; left--) {
        int32_t count = blocks_held(bench, c, i, left - 1 < end ? left - 1 : end, end, true);
        if (count == 0)
            return UINT64_MAX;
        c->stages[i].block_begin = end - count;
        c->stages[i].block_end = end;
        end -= count;
    }
    for (uint32_t i = 0; i < s; i++) {
        int32_t last = end - (int32_t)(s - i); /* every stage up to s keeps at least one block */
        int32_t count = last > begin ? blocks_held(bench, c, i, begin, last, false) : 0;
        if (count == 0)
            return UINT64_MAX;
        c->stages[i].block_begin = begin;
        c->stages[i].block_end = begin + count;
        begin += count;
    }
    bench->spent += c->stage_count;
    if (tight_holds(bench, c, s, begin, end))
        return 0;
    return least_need(bench, c, s) - limit_of(bench, c, s);
}

int tight_cut(struct workbench *bench, struct candidate *c)
{
    const struct problem *p = bench->problem;
    c->owner_count = 0;
    candidate_members_reset(c, micro_recompute_allowed(p, true));
    if (c->stage_count != c->member_count || (int32_t)c->stage_count > p->block_count)
        return 0;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        uint64_t lacks = lacking(bench, c, s);
        if (lacks == 0)
            return 1;
        if (lacks < UINT64_MAX)
            shortage_note(&bench->shortage[c->placement], c->members[s].device, limit_of(bench, c, s) + lacks,
                          limit_of(bench, c, s));
    }
    return 0;
}
