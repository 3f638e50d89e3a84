/* What a plan's predicted time rests on: the shares that were measured, imported and estimated, of devices
 * and of links. Links count with their time on the critical path (a transfer that overlaps computing takes
 * no time); the rest of the step is divided by what every rank computes. For planner/answer and plug;
 * pure. */
#ifndef MOTLEY_PLANNER_ANSWER_PROVENANCE_H
#define MOTLEY_PLANNER_ANSWER_PROVENANCE_H

#include "planner/cost/price.h"
#include "planner/answer/answer.h"

/* Most instructions for which the critical path is used; longer programs are judged by busy seconds alone. */
#define PATH_INSTRUCTIONS_MAX 100000u

/* Simulates one step of answer->plan, which needs programs, and writes the shares, the sentence and
 * emulated links into plan->costs, and answer->uncertainty. `run`, which may be NULL, is the run that
 * priced the plan; it is reused if it was the same step. ERR_NOMEM. */
int answer_rests(const struct problem *problem, struct plan_answer *answer, const struct price_run *run,
                 struct err *err);

#endif
