/* What a candidate or plan is judged by: seconds of a step, its price, or its energy. Pure. */
#ifndef MOTLEY_PLANNER_CANDIDATE_OBJECTIVE_H
#define MOTLEY_PLANNER_CANDIDATE_OBJECTIVE_H

#include "planner/candidate/candidate.h"

#define OBJECTIVE_KWH 3.6e6 /* joules */

/* Every usable device must say what is weighed: ERR_INVALID names the first that does not. */
int objective_check(const struct problem *problem, struct err *err);
/* What a second of a candidate's step counts: 1; the prices of its devices a second; their watts, as if all
 * were busy throughout. An estimate's value is its seconds times this. */
double objective_weight(const struct problem *problem, const struct candidate *candidate);
/* The value of a step of a priced plan (its ranks' busy_s are filled). */
double objective_value(const struct problem *problem, const struct plan *plan, double step_s);

/* What one step of a plan costs: its devices' prices for the whole step, working or not. 0: one is missing.
 */
double plan_step_price(const struct cluster *cluster, const struct plan *plan, double step_s);
/* Joules of one step: power while computing, idle power for the rest. 0: a device does not say its power. */
double plan_step_joules(const struct cluster *cluster, const struct plan *plan, double step_s);

#endif
