/* Who takes which micro-batch of a hybrid and in which order everybody works, changed together: simulated
 * annealing (Kirkpatrick, Gelatt and Vecchi, "Optimization by simulated annealing", Science 220, 1983), in
 * which quick looks say what is not worth simulating. For this room only. */
#ifndef MOTLEY_PLANNER_HYBRID_DEAL_WALK_H
#define MOTLEY_PLANNER_HYBRID_DEAL_WALK_H

#include "planner/search/polish.h"

/* Walks from the choice as it is dealt, `looks` quick looks long, or as many as the polisher's budget lets,
 * and keeps the fastest on the way; who is in which stage stays, cuts and the order within a stage may
 * change. Which way depends on the choice and on `number` alone. Nothing where nobody is to say who takes
 * which (deal_fix), or quick looks cannot say. *seconds: the choice's, by polish_seconds, before and after.
 * *err is set on ERR_NOMEM only. */
void deal_walk(struct polish *polish, const struct problem *problem, uint64_t number, uint32_t looks,
               struct place_choice *choice, double *seconds, struct err *err);

#endif
