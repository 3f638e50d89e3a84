/* Declarations that the parts of the checker share; other rooms do not include them. */
#ifndef MOTLEY_PROGRAM_CHECK_CHECK_PRIVATE_H
#define MOTLEY_PROGRAM_CHECK_CHECK_PRIVATE_H

#include "program/program.h"
#include "program/where.h"

/* The order within one program of one rank: the queue of each instruction, and what must have happened
 * before it starts. clock[i·queue_count + q] is 1 + the position in queue q of the last instruction that
 * is certainly done when i starts (0: none). */
struct check_order {
    uint32_t count, queue_count;
    uint32_t *queue;    /* [count] each instruction's queue, numbered densely */
    uint32_t *position; /* [count] each instruction's position in its queue */
    uint32_t *clock;    /* [count · queue_count] vector clock of each instruction */
};

int check_order_init(struct check_order *order, const struct plan *plan, uint32_t rank, int kind,
                     struct err *err);
void check_order_fini(struct check_order *order);
/* True if instruction a is certainly done before b starts. */
bool check_order_before(const struct check_order *order, uint32_t a, uint32_t b);

/* The parts of the checker. Each returns 0, or -1 with a sentence about the mistake in *err. */
int check_slots(const struct plan *plan, uint32_t rank, int kind, const struct check_order *order,
                struct err *err);
int check_held(const struct plan *plan, uint32_t rank, int kind, const struct check_order *order,
               struct err *err);
int check_step(const struct plan *plan, uint32_t rank, const struct check_order *order, struct err *err);
int check_walk(const struct plan *plan, int kind, struct err *err);
int check_tensor(const struct plan *plan, struct err *err);
int check_rows(const struct plan *plan, int kind, struct err *err);
int check_reductions(const struct plan *plan, struct err *err);
/* Checks of expert plans, in which attention and experts may be on different ranks (expert.c). */
bool check_has_experts(const struct plan *plan);
int check_experts(const struct plan *plan, int kind, struct err *err);
int check_expert_reductions(const struct plan *plan, struct err *err);

/* True if the instruction computes gradients of its blocks' parameters. */
bool check_trains(const struct instr *x);
/* True for slots of gathered weights and unreduced gradients, which held.c checks. */
bool check_slot_held(const struct plan_slot *slot);

#endif
