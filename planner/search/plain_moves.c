#include "planner/search/plain_moves.h"

#include "planner/cost/micro.h"

int plain_recompute(const struct problem *p, struct place_choice *c, uint32_t member, bool on)
{
    bool changed = false;
    if (!micro_recompute_allowed(p, on))
        return 0;
    for (uint32_t m = 0; m < c->member_count; m++) {
        if ((m == member || member == c->member_count) && c->members[m].recompute != on) {
            c->members[m].recompute = on;
            changed = true;
        }
    }
    return changed;
}

int plain_swap(struct place_choice *c, uint32_t a, uint32_t b)
{
    if (a >= b)
        return 0;
    uint32_t device = c->members[a].device;
    c->members[a].device = c->members[b].device;
    c->members[b].device = device;
    return 1;
}

int plain_replace(const struct problem *p, struct place_choice *c, uint32_t member, uint32_t device)
{
    if (!p->usable[device] || choice_uses(c, device))
        return 0;
    c->members[member].device = device;
    return 1;
}

int plain_cut(struct place_choice *c, uint32_t first, uint32_t last, int step)
{
    if (last < first || last + 1 >= c->stage_count)
        return 0;
    for (uint32_t s = first; s <= last; s++)
        c->stages[s].block_end += step;
    for (uint32_t s = 0; s < c->stage_count; s++) {
        c->stages[s].block_begin = s ? c->stages[s - 1].block_end : 0;
        if (c->stages[s].block_end <= c->stages[s].block_begin)
            return 0;
    }
    return 1;
}
