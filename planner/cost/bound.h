/* A lower bound of the step time. For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_COST_BOUND_H
#define MOTLEY_PLANNER_COST_BOUND_H

#include "planner/cost/problem.h"

/* Seconds of a mean step that no plan can beat: the smallest of three bounds. The first is
 * docs/PLANNER.md's (rows / Σ 1/t_d at the best micro-batch of mean rows). The second also holds for rows
 * of uneven length and for devices that are relatively better at some blocks. The third is for plans with
 * experts apart. Memory and links are ignored. 0: no device may be used. */
double bound_time(const struct problem *problem);

#endif
