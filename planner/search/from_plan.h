/* A plan that runs now as a start of the search: can it be kept, what does it take, which choice is it. For
 * this room only; pure. */
#ifndef MOTLEY_PLANNER_SEARCH_FROM_PLAN_H
#define MOTLEY_PLANNER_SEARCH_FROM_PLAN_H

#include "planner/search/placement.h"

/* May the plan be answered for this problem as it stands? Same blocks and batch, bounds that cover the rows,
 * what the specification asks for, devices that are there and large enough. −1 with ERR_INVALID and the
 * reason in words. */
int from_plan_check(const struct problem *problem, const struct plan *plan, struct err *err);

/* A copy of a sealed plan with this cluster's memory limits, priced over at most steps_max steps: *step_s.
 * Unsealed. Returns new (plan_destroy), or NULL: ERR_INVALID when it has no programs or they do not pass
 * plan_check; ERR_NOMEM. */
struct plan *from_plan_keep(const struct problem *problem, const struct plan *plan, uint32_t steps_max,
                            double *step_s, struct err *err);

/* The choice of a plan, by its placement's from_plan or choice_from_plan; choice_fini. ERR_INVALID,
 * ERR_NOMEM. */
int from_plan_choice(const struct problem *problem, const struct plan *plan, struct place_choice *choice,
                     struct err *err);

#endif
