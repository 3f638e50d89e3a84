/* Finds which trained state each rank updates, so that other ranks need not have its programs. */
#include "program/update.h"

#include <stdlib.h>

/* Whether a rank whose STEP names no group keeps whole trained state: it runs blocks, or it is a parameter
 * server, which pushes parameters. A rank that keeps only a shard of frozen weights has none. */
static bool keeps_whole(const struct plan_rank *rank)
{
    for (int kind = 0; kind < PROGRAM_KINDS; kind++)
        for (uint32_t i = 0; i < rank->programs[kind].instr_count; i++) {
            const struct instr *x = &rank->programs[kind].instrs[i];
            if (x->op == INSTR_FORWARD || x->op == INSTR_ATTENTION || x->op == INSTR_EXPERTS ||
                (x->op == INSTR_PUSH && x->slot_in >= 0 && (uint32_t)x->slot_in < rank->slot_count &&
                 rank->slots[x->slot_in].kind == SLOT_PARAMETERS))
                return true;
        }
    return false;
}

int plan_updates_find(struct plan_rank *rank, struct err *err)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    uint32_t count = 0;
    for (uint32_t i = 0; i < train->instr_count; i++)
        count += train->instrs[i].op == INSTR_STEP;
    free(rank->updates);
    rank->update_count = 0;
    rank->updates = calloc((size_t)count + 1, sizeof(*rank->updates));
    if (!rank->updates)
        return err_set(err, ERR_NOMEM, "plan: out of memory");
    bool whole = count > 0 && keeps_whole(rank);
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        if (x->op != INSTR_STEP || (x->group == PLAN_NONE && !whole))
            continue;
        bool all = x->block_begin == x->block_end;
        rank->updates[rank->update_count++] = (struct plan_update){
            all ? rank->block_begin : x->block_begin, all ? rank->block_end : x->block_end, x->group};
    }
    return 0;
}
