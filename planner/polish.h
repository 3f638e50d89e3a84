/* Polishing a choice by simulation: windows, blocks between neighbours, recomputation, who takes which stage.
 * For this room only. */
#ifndef MOTLEY_PLANNER_POLISH_H
#define MOTLEY_PLANNER_POLISH_H

#include "planner/placement.h"

/* Seconds of a choice by emitting and simulating it over at most steps_max priced steps; negative when it
 * does not fit. *err is set on ERR_NOMEM only. */
double choice_simulate(const struct problem *problem, const struct place_choice *choice, uint32_t steps_max,
                       struct err *err);

/* Changes *choice (owned by the caller) while simulation says it gets faster, at most `simulations` of them;
 * *seconds is its time before and after. Returns how many simulations were spent. */
uint32_t choice_polish(const struct problem *problem, struct place_choice *choice, double *seconds,
                       uint32_t simulations, uint32_t steps_max, struct err *err);

#endif
