/* The objective that plans are compared by: seconds, price or energy of a step. Pure. */
#ifndef MOTLEY_PLANNER_CANDIDATE_OBJECTIVE_H
#define MOTLEY_PLANNER_CANDIDATE_OBJECTIVE_H

#include "planner/candidate/candidate.h"

#define OBJECTIVE_KWH 3.6e6 /* joules in a kWh */

/* If the objective needs prices or power, checks that every usable device states them. ERR_INVALID names the
 * first device that does not. */
int objective_check(const struct problem *problem, struct err *err);
/* Returns the factor from a candidate's estimated seconds to its value: what earlier runs tell of such plans
 * (planner/cost/taught.h), times 1 for time, the sum of its devices' prices per second, or the sum of their
 * watts, as if all computed throughout. */
double objective_weight(const struct problem *problem, const struct candidate *candidate);
/* Returns the value of one step of a priced plan, whose ranks' busy_s are filled. */
double objective_value(const struct problem *problem, const struct plan *plan, double step_s);

/* Returns the price of one step of a plan: its devices' prices for the whole step, whether they compute or
 * not. 0: a price is missing. */
double plan_step_price(const struct cluster *cluster, const struct plan *plan, double step_s);
/* Returns the energy of one step in joules: power while computing, and idle power for the rest. 0: a device's
 * power is missing. */
double plan_step_joules(const struct cluster *cluster, const struct plan *plan, double step_s);

#endif
