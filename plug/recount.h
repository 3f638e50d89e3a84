/* Comparison of an external plan's memory with what our own formulas give for the same assignment. For
 * this room only; pure. */
#ifndef MOTLEY_PLUG_RECOUNT_H
#define MOTLEY_PLUG_RECOUNT_H

#include "planner/candidate/candidate.h"

/* Checks a plan that passed plan_check and from_plan_check, with the candidate that was read from it.
 * Compares every rank's sums, and each slot with ours of the same kind and blocks. Rings may differ from ours
 * in depth: what counts is how many of their buffers hold something at once, by the plan's own order. −1:
 * ERR_INVALID naming the rank and what is too small, or if none of our generators makes plans of this shape;
 * ERR_NOFIT if the assignment does not fit at all; ERR_NOMEM. */
int recount_memory(const struct problem *problem, const struct candidate *candidate, struct plan *plan,
                   struct err *err);

#endif
