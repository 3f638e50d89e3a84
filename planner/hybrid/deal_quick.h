/* Who takes which micro-batch of a hybrid, with its cuts, by quick looks (group_quick.h). For this room only.
 */
#ifndef MOTLEY_PLANNER_HYBRID_DEAL_QUICK_H
#define MOTLEY_PLANNER_HYBRID_DEAL_QUICK_H

#include "planner/search/polish.h"

/* Deals a hybrid outright while that looks faster and fits; *quick, seconds, is its quick look before and
 * after. Nothing changes where nobody is to say who takes which (deal_fix). Out of the polisher's budget.
 * *err is set on ERR_NOMEM only. */
void deal_quick(struct polish *polish, const struct problem *problem, struct place_choice *choice,
                double *quick, struct err *err);

#endif
