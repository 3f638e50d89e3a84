/* A plan that runs now: can it be kept, what does it take, which candidate is it. For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_CANDIDATE_FROM_PLAN_H
#define MOTLEY_PLANNER_CANDIDATE_FROM_PLAN_H

#include "planner/candidate/candidate.h"

/* May the plan be answered for this problem as it stands? Same blocks and batch, bounds that cover the rows,
 * what the specification asks for, devices that are there and large enough. −1 with ERR_INVALID and the
 * reason in words. */
int from_plan_check(const struct problem *problem, const struct plan *plan, struct err *err);

/* A copy of a sealed plan with this cluster's memory limits, priced over at most steps_max steps: *step_s.
 * Unsealed. Returns new (plan_destroy), or NULL: ERR_INVALID when it has no programs or they do not pass
 * plan_check; ERR_NOMEM. */
struct plan *from_plan_keep(const struct problem *problem, const struct plan *plan, uint32_t steps_max,
                            double *step_s, struct err *err);

/* Reads stages, members, windows, delays and owners off a plan whose ranks stand in the order of their
 * stages, or whose ranges go round them: the candidate of a chain of replicas (candidate_fini). ERR_INVALID
 * when a device is gone or the plan has another shape; ERR_NOMEM. */
int candidate_from_plan(const struct problem *problem, const struct plan *plan, struct candidate *candidate,
                        struct err *err);

#endif
