#include "worker/checkpoint/keeper.h"

#include <stdlib.h>
#include <string.h>

/* A rank's shard of a block's state, from fraction `begin` to fraction `end` of the block's bytes. */
struct kept_share {
    double begin, end;
};

static bool holds_block(const struct plan_rank *rank, int32_t block)
{
    return plan_rank_holds(rank, block, block + 1);
}

/* Returns the share of a group's member. All ranks add the shares in the same order, so they compute equal
 * bounds. */
static struct kept_share member_share(const struct plan_group *group, uint32_t position)
{
    struct kept_share kept = {0, 0};
    for (uint32_t i = 0; i <= position; i++) {
        kept.begin = kept.end;
        kept.end += group->shares ? group->shares[i] : 1.0 / group->rank_count;
    }
    return kept;
}

/* Sets the shard of a block's state that a rank keeps. A rank keeps state of the blocks that its STEP
 * updates: all of it, or its shard if a group shares the update. Returns false when the rank keeps none. */
static bool kept_share(const struct plan *plan, uint32_t rank, int32_t block, struct kept_share *kept)
{
    const struct plan_rank *keeper = &plan->ranks[rank];
    for (uint32_t i = 0; i < keeper->update_count && holds_block(keeper, block); i++) {
        const struct plan_update *update = &keeper->updates[i];
        if (block < update->block_begin || block >= update->block_end)
            continue;
        *kept = (struct kept_share){0, 1};
        if (update->group == PLAN_NONE)
            return true;
        int position = plan_group_position(&plan->groups[update->group], rank);
        if (position >= 0)
            *kept = member_share(&plan->groups[update->group], (uint32_t)position);
        return position >= 0 && kept->end > kept->begin;
    }
    return false;
}

/* Returns the expert that a parameter belongs to, or -1. */
static int32_t expert_of(const char *name)
{
    static const char word[] = ".experts.";
    const char *at = strstr(name, word);
    return at ? (int32_t)strtol(at + sizeof(word) - 1, NULL, 10) : -1;
}

static bool has_expert(const struct plan_rank *rank, int32_t block, int32_t expert)
{
    for (uint32_t e = 0; e < rank->expert_count; e++)
        if (rank->experts[e].block == block && expert >= rank->experts[e].begin &&
            expert < rank->experts[e].end)
            return true;
    return false;
}

static bool keeps_same(const struct plan *plan, uint32_t mine, uint32_t other,
                       const struct shard_piece *piece)
{
    const struct plan_rank *a = &plan->ranks[mine], *b = &plan->ranks[other];
    int32_t block = (int32_t)piece->of.block;
    struct kept_share own, theirs;
    if (plan->placement == PLACE_EXPERT)
        return has_expert(b, block, expert_of(piece->of.name));
    return kept_share(plan, mine, block, &own) && kept_share(plan, other, block, &theirs) &&
           own.begin == theirs.begin && own.end == theirs.end &&
           (piece->of.alike || memcmp(&a->tensor, &b->tensor, sizeof(a->tensor)) == 0);
}

bool piece_is_stored_by(const struct plan *plan, uint32_t rank, const struct shard_piece *piece)
{
    bool parts = plan->placement == PLACE_TENSOR || plan->placement == PLACE_EXPERT;
    if (parts && piece->of.alike)
        return plan_counts_alike(plan, rank, (int32_t)piece->of.block);
    for (uint32_t r = 0; r < rank; r++)
        if (keeps_same(plan, rank, r, piece))
            return false;
    return true;
}
