/* What a plan of somebody else's says of memory, against what the same assignment needs by our own formulas.
 * For this room only; pure. */
#ifndef MOTLEY_PLUG_RECOUNT_H
#define MOTLEY_PLUG_RECOUNT_H

#include "planner/candidate/candidate.h"

/* Of a plan that plan_check and from_plan_check passed, and the candidate that was read off it. Looks through
 * every rank: its purposes' sums, and each buffer beside ours of the same kind and blocks. A ring may be
 * deeper than ours where the sums have it. −1: ERR_INVALID naming rank and what is too little, or where the
 * plan is of a shape that no generator of ours has; ERR_NOFIT where the assignment does not fit at all;
 * ERR_NOMEM. */
int recount_memory(const struct problem *problem, const struct candidate *candidate, struct plan *plan,
                   struct err *err);

#endif
