/* Replicas of few devices, to the end: who takes which rows in micro-batches of how many, by branch and bound
 * (README.md says what is bounded by what, and why nothing is passed over). For this room only; pure. */
#ifndef MOTLEY_PLANNER_SHARDED_REPLICA_EXACT_H
#define MOTLEY_PLANNER_SHARDED_REPLICA_EXACT_H

#include "planner/search/placement.h"

#define REPLICA_EXACT_DEVICES 6u
#define REPLICA_EXACT_ROWS 32u

/* Looks for replicas (LoRA: all of the base everywhere) whose mean of `steps_max` priced steps is below
 * beat_s. `budget`: members given rows that may be looked at. Returns 1 with the best found in *choice
 * (choice_fini) and its simulated seconds; 0 when there is none; −1 ERR_NOMEM. Nothing is looked at where
 * there are more usable devices or rows than above, or for full fine-tuning. */
int replica_exact(const struct problem *problem, double beat_s, uint32_t steps_max, uint64_t budget,
                  struct place_choice *choice, double *seconds, struct err *err);

#endif
