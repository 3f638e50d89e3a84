/* Faults for tests: each function spoils one instruction of a program in a way that is either harmless or
 * must be found by the checker. Each returns false when its fault does not apply to the instruction. */
#ifndef MOTLEY_TESTS_PLANNER_SPOIL_H
#define MOTLEY_TESTS_PLANNER_SPOIL_H

#include <stdbool.h>
#include <stdint.h>

#include "common/rand.h"
#include "program/program.h"

/* Replaces an instruction by one that does nothing. */
static inline bool spoil_drop(struct instr *x)
{
    x->op = INSTR_RELEASE;
    x->queue = QUEUE_COMPUTE;
    x->slot_in = x->slot_out = x->slot_save = PLAN_NONE;
    x->flags = 0;
    return true;
}

/* Exchanges two instructions; the dependences stay with their positions. */
static inline void spoil_exchange(struct instr *x, struct instr *y)
{
    struct instr mine = *x;
    *x = *y;
    x->after_first = mine.after_first;
    x->after_count = mine.after_count;
    mine.after_first = y->after_first;
    mine.after_count = y->after_count;
    *y = mine;
}

static inline bool spoil_swap_next(const struct plan *plan, struct program *p, uint32_t i)
{
    for (uint32_t k = i + 1; k < p->instr_count; k++) {
        if (instr_queue_index(plan, &p->instrs[k]) == instr_queue_index(plan, &p->instrs[i])) {
            spoil_exchange(&p->instrs[i], &p->instrs[k]);
            return true;
        }
    }
    return false;
}

static inline bool spoil_micro_batch(const struct plan *plan, struct instr *x)
{
    if (x->micro_batch < 0 || plan->micro_batch_count < 2)
        return false;
    x->micro_batch = (int32_t)((uint32_t)(x->micro_batch + 1) % plan->micro_batch_count);
    return true;
}

static inline bool spoil_wait(struct instr *x)
{
    if (x->after_count == 0)
        return false;
    x->after_count--;
    return true;
}

/* Clears the flags that free a slot, accumulate, or recompute. */
static inline bool spoil_flags(struct instr *x)
{
    if (!x->flags)
        return false;
    x->flags = 0;
    return true;
}

static inline bool spoil_slot_out(const struct plan_rank *r, struct instr *x, struct rand_stream *random)
{
    if (x->slot_out < 0 || r->slot_count < 2)
        return false;
    x->slot_out = (int32_t)rand_stream_below(random, r->slot_count);
    return true;
}

#endif
