/* Shared by the parts of the checker; not for other rooms. */
#ifndef MOTLEY_PROGRAM_CHECK_CHECK_PRIVATE_H
#define MOTLEY_PROGRAM_CHECK_CHECK_PRIVATE_H

#include "program/program.h"
#include "program/where.h"

/* One program kind of one rank, prepared: which of the rank's queues each instruction is on, counted densely,
 * and what must have happened before it starts. clock[i·queue_count + q] is one more than the position in
 * queue q of the last instruction there that is known to be done when i starts (0: none). */
struct check_order {
    uint32_t count, queue_count;
    uint32_t *queue;    /* [count] dense queue */
    uint32_t *position; /* [count] place in that queue */
    uint32_t *clock;    /* [count · queue_count] */
};

int check_order_init(struct check_order *order, const struct plan *plan, uint32_t rank, int kind,
                     struct err *err);
void check_order_fini(struct check_order *order);
/* Is instruction a surely done before b starts? */
bool check_order_before(const struct check_order *order, uint32_t a, uint32_t b);

/* The parts; each returns 0, or -1 with the sentence. */
int check_slots(const struct plan *plan, uint32_t rank, int kind, const struct check_order *order,
                struct err *err);
int check_held(const struct plan *plan, uint32_t rank, int kind, const struct check_order *order,
               struct err *err);
int check_step(const struct plan *plan, uint32_t rank, const struct check_order *order, struct err *err);
int check_walk(const struct plan *plan, int kind, struct err *err);
int check_tensor(const struct plan *plan, struct err *err);
int check_rows(const struct plan *plan, int kind, struct err *err);
int check_reductions(const struct plan *plan, struct err *err);
/* Attention and experts apart (expert.c). */
bool check_has_experts(const struct plan *plan);
int check_experts(const struct plan *plan, int kind, struct err *err);
int check_expert_reductions(const struct plan *plan, struct err *err);

/* Does it take gradients of its blocks' parameters? */
bool check_trains(const struct instr *x);
/* Is the slot followed by held.c: weights gathered, gradients to be reduced? */
bool check_slot_held(const struct plan_slot *slot);

#endif
