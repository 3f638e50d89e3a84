/* Tells of an existing plan whether it can be kept, what its step costs, and which candidate it is. For
 * planner/ only; pure. */
#ifndef MOTLEY_PLANNER_CANDIDATE_FROM_PLAN_H
#define MOTLEY_PLANNER_CANDIDATE_FROM_PLAN_H

#include "planner/candidate/candidate.h"

/* Checks that the plan can answer this problem: same blocks and batch, bounds that cover the rows, the
 * specification's wishes met, and devices that exist and have enough memory. −1 with ERR_INVALID and the
 * reason in words. */
int from_plan_check(const struct problem *problem, const struct plan *plan, struct err *err);

/* Copies a sealed plan, sets this cluster's memory limits, and prices it over at most steps_max steps into
 * *step_s. The copy is not sealed. Returns new (plan_destroy), or NULL: ERR_INVALID if it has no programs
 * or they fail plan_check; ERR_NOMEM. */
struct plan *from_plan_keep(const struct problem *problem, const struct plan *plan, uint32_t steps_max,
                            double *step_s, struct err *err);

/* Rebuilds the candidate (candidate_fini) of a plan whose stages are one rank or several replicas: stages,
 * members, windows, delays and the owners of micro-batches. The plan's ranks must be in the order of their
 * stages; in interleaved plans the ranks' first ranges of blocks in order, then the second ones. ERR_INVALID
 * if a device is gone or the plan has another shape; ERR_NOMEM. */
int candidate_from_plan(const struct problem *problem, const struct plan *plan, struct candidate *candidate,
                        struct err *err);

#endif
