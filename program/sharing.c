/* Finds a rank's role in sharding weights and optimiser state over ranks. */
#include "program/sharing.h"

static bool has_slot(const struct plan_rank *rank, int32_t slot, int kind)
{
    return slot >= 0 && (uint32_t)slot < rank->slot_count && rank->slots[slot].kind == kind;
}

static bool moves_block_here(const struct plan_rank *rank, const struct instr *x)
{
    return x->block_begin < x->block_end && x->block_begin >= rank->block_begin &&
           x->block_end <= rank->block_end;
}

bool plan_rank_computes(const struct plan_rank *rank)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < rank->programs[kind].instr_count; i++)
            if (rank->programs[kind].instrs[i].op == INSTR_FORWARD)
                return true;
    return false;
}

/* The last stage of a pipeline also gathers a tied embedding, which must not be taken for a shard of its own.
 * Its ranks have no block 0. They gather the table from one rank that gathers nothing itself, or from all
 * members of the first stage, which shard the table with the rest of their state. The gather of the table has
 * a group of its own, so the group that shards a rank's state is the one that gathers the rank's last blocks.
 */
enum plan_sharing plan_rank_sharing(const struct plan_rank *rank, int32_t *group)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    bool computes = plan_rank_computes(rank);
    int32_t last = 0;
    *group = PLAN_NONE;
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        if (!moves_block_here(rank, x))
            continue;
        if (x->op == INSTR_PUSH && has_slot(rank, x->slot_in, SLOT_PARAMETERS))
            return SHARES_HOLDER;
        if (x->op == INSTR_PULL && has_slot(rank, x->slot_out, SLOT_GATHERED))
            return SHARES_WORKER;
        if (x->op == INSTR_ALL_GATHER && (has_slot(rank, x->slot_out, SLOT_GATHERED) || !computes) &&
            x->block_end > last) {
            *group = x->group;
            last = x->block_end;
        }
    }
    return last > 0 ? SHARES_MEMBER : SHARES_NONE;
}

/* Whether the instruction gathers the tied embedding's table, or reduces its gradients, on a rank that keeps
 * a shard of the table. */
static bool gathers_table(const struct plan_rank *rank, const struct instr *x)
{
    return x->op == INSTR_ALL_GATHER ? has_slot(rank, x->slot_out, SLOT_GATHERED)
                                     : has_slot(rank, x->slot_in, SLOT_GRADIENTS) &&
                                           rank->slots[x->slot_in].lifetime == SLOT_FOR_INSTRUCTIONS;
}

bool plan_moves_shared(const struct plan_rank *rank, enum plan_sharing role, int32_t group,
                       const struct instr *x)
{
    if (role == SHARES_NONE || !moves_block_here(rank, x))
        return false;
    bool table = rank->owns_tied && x->block_begin == 0 && x->block_end == 1 && gathers_table(rank, x);
    return x->op == INSTR_PULL || x->op == INSTR_PUSH ||
           (role == SHARES_MEMBER && (x->group == group || table) &&
            (x->op == INSTR_ALL_GATHER || x->op == INSTR_REDUCE_SCATTER));
}
