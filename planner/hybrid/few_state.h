/* Groupings of few devices in full fine-tuning: what a group promises that keeps its stage's state in shards.
 * For this room only; pure. */
#ifndef MOTLEY_PLANNER_HYBRID_FEW_STATE_H
#define MOTLEY_PLANNER_HYBRID_FEW_STATE_H

#include "planner/few/few_bound.h"

/* few_bound_walk with those prices. */
int few_state_walk(struct few_bound *bound, const struct problem *problem, struct err *err);

#endif
