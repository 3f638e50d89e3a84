/* Computes a lower bound of the step time. For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_COST_BOUND_H
#define MOTLEY_PLANNER_COST_BOUND_H

#include "planner/cost/problem.h"

/* Returns a lower bound in seconds of a mean step of any plan: the smallest of three bounds. The first is
 * docs/PLANNER.md's (rows / Σ 1/t_d at the best micro-batch of mean rows). The second also holds for rows of
 * uneven length and for devices that are faster at some blocks than at others, relative to other devices. The
 * third is for plans that put attention and experts on different devices. Memory and links are ignored. 0: no
 * device may be used. */
double bound_time(const struct problem *problem);

#endif
