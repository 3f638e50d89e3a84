/* No plan can be faster than this. For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_COST_BOUND_H
#define MOTLEY_PLANNER_COST_BOUND_H

#include "planner/cost/problem.h"

/* Seconds of a mean step: the least of docs/PLANNER.md's lower bound (rows / Σ 1/t_d at the best micro-batch
 * of mean rows), of one that also holds for rows of uneven length and for devices that are better at some
 * blocks than at others, and of the experts'. Memory and links are ignored. 0: no device may be used. */
double bound_time(const struct problem *problem);

#endif
