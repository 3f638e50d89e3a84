/* Makes the options of the stages of an expert plan. See experts.h. */
#include "worker/program/experts.h"

static bool has_saved_slot(const struct plan_rank *rank, const struct instr *x)
{
    return x->slot_save >= 0 && (uint32_t)x->slot_save < rank->slot_count &&
           rank->slots[x->slot_save].kind == SLOT_SAVED;
}

bool experts_rows(const struct plan_rank *rank, int kind, uint32_t *begin, uint32_t *end)
{
    const struct program *program = &rank->programs[kind];
    for (uint32_t i = 0; i < program->instr_count; i++)
        if (program->instrs[i].op == INSTR_ATTENTION) {
            *begin = program->instrs[i].row_begin;
            *end = program->instrs[i].row_end;
            return true;
        }
    return false;
}

uint32_t experts_stage_count(const struct plan_rank *rank)
{
    return (rank->rows > 0) + rank->expert_count;
}

/* Returns the most tokens of the rank's rows, from the size of the rank's slots for the residual stream. */
static uint32_t experts_own_tokens(const struct plan *plan, const struct plan_rank *rank, uint32_t hidden)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    for (uint32_t i = 0; i < train->instr_count; i++) {
        int32_t slot = train->instrs[i].slot_in;
        if (train->instrs[i].op != INSTR_ATTENTION || slot < 0 || (uint32_t)slot >= rank->slot_count)
            continue;
        uint64_t tokens = rank->slots[slot].bytes_bound / sizeof(float) / hidden;
        return tokens < plan->tokens_bound ? (uint32_t)tokens : plan->tokens_bound;
    }
    return plan->tokens_bound;
}

static uint32_t experts_least(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

static void fill_attention(const struct plan *plan, const struct plan_rank *rank, struct stage_options *o)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    uint32_t live = 0, begin = 0, end = PLAN_ROWS_ALL;
    experts_rows(rank, PROGRAM_TRAIN, &begin, &end);
    o->part.holds = HOLDS_NO_EXPERTS;
    o->tokens_max = experts_own_tokens(plan, rank, o->config->hidden);
    o->rows_max = experts_least(end, plan->rows_bound) - experts_least(begin, plan->rows_bound);
    o->row_tokens_max = experts_least(o->row_tokens_max, o->tokens_max);
    o->labelled_max = experts_least(o->labelled_max, o->tokens_max);
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        o->recompute |= x->op == INSTR_ATTENTION && (x->flags & FLAG_RECOMPUTE);
        if (x->block_begin != rank->block_begin || !has_saved_slot(rank, x))
            continue;
        live += x->op == INSTR_FORWARD;
        o->micro_batches_in_flight = live > o->micro_batches_in_flight ? live : o->micro_batches_in_flight;
        live -= x->op == INSTR_BACKWARD && live > 0;
    }
}

static void fill_experts(const struct plan_rank *rank, const struct plan_experts *held,
                         struct stage_options *o)
{
    const struct program *train = &rank->programs[PROGRAM_TRAIN];
    uint32_t live = 0;
    o->block_begin = (uint32_t)held->block;
    o->block_end = (uint32_t)held->block + 1;
    o->part = (struct layer_part){
        .holds = HOLDS_EXPERTS, .expert_begin = (uint32_t)held->begin, .expert_end = (uint32_t)held->end};
    o->labelled_max = 1;
    for (uint32_t i = 0; i < train->instr_count; i++) {
        const struct instr *x = &train->instrs[i];
        if (x->op != INSTR_EXPERTS || x->block_begin != held->block || !has_saved_slot(rank, x))
            continue;
        live += !(x->flags & FLAG_BACKWARD);
        o->micro_batches_in_flight = live > o->micro_batches_in_flight ? live : o->micro_batches_in_flight;
        live -= (x->flags & FLAG_BACKWARD) && live > 0;
    }
}

int experts_options(const struct plan *plan, uint32_t rank, const struct stage_options *options,
                    struct stage_options *all, struct err *err)
{
    const struct plan_rank *me = &plan->ranks[rank];
    uint32_t count = 0;
    for (uint32_t i = 0; i < me->expert_count; i++)
        for (uint32_t k = 0; k < i; k++)
            if (me->experts[k].block == me->experts[i].block)
                return err_set(
                    err, ERR_UNSUPPORTED,
                    "rank %u holds experts of block %d that are not consecutive: %d..%d and %d..%d", rank,
                    (int)me->experts[i].block, (int)me->experts[k].begin, (int)me->experts[k].end,
                    (int)me->experts[i].begin, (int)me->experts[i].end);
    if (me->rows > 0) {
        all[count] = *options;
        all[count].block_begin = (uint32_t)me->block_begin;
        all[count].block_end = (uint32_t)me->block_end;
        fill_attention(plan, me, &all[count++]);
    }
    for (uint32_t i = 0; i < me->expert_count; i++) {
        all[count] = *options;
        fill_experts(me, &me->experts[i], &all[count++]);
    }
    return 0;
}
