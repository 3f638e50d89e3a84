/* Forecasts corrected by what earlier runs measured (planner/given/taught.h).
 *
 * ln(measured / forecast) of a run is taken to be the sum of four independent normal parts: one of its kind
 * of placement, one of its devices with their tables for such jobs, one of this kind on these devices, and
 * noise of the run. The correction of a plan is the best linear unbiased prediction of the sum of its first
 * three parts from the runs (Henderson 1975; Robinson 1991): few, noisy or old runs correct little, and none
 * nothing. A run's noise has twice the variance for each TAUGHT_HALF_LIFE_DAYS of its age.
 */
#ifndef MOTLEY_PLANNER_COST_TAUGHT_H
#define MOTLEY_PLANNER_COST_TAUGHT_H

#include "planner/cost/problem.h"

#define TAUGHT_HALF_LIFE_DAYS 14.0

/* Fills problem->taught; NULL if no run is known. ERR_NOMEM. */
int taught_init(struct problem *problem, struct err *err);
/* Returns a device's part of the sum by which taught_factor knows a plan's devices. */
uint64_t taught_part(const struct problem *problem, uint32_t device);
/* Returns the factor on the forecast of a plan of this placement, whose devices' parts have that sum; 1:
 * nothing is known. *runs (or NULL) receives how many runs it comes from. */
double taught_factor(const struct problem *problem, enum plan_placement placement, uint64_t devices,
                     uint32_t *runs);
/* Returns a factor that is not above that of any plan, and at most 1: for lower bounds. */
double taught_least(const struct problem *problem);

#endif
