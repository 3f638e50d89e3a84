/* Says what a plan's predicted time rests on: which shares of it come from measured, imported and estimated
 * times of devices and links. A link counts with its time on the critical path (a transfer hidden behind
 * computation takes none); the rest of the step is divided by the seconds that every rank computes. For
 * planner/answer and plug; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_PROVENANCE_H
#define MOTLEY_PLANNER_ANSWER_PROVENANCE_H

#include "planner/cost/price.h"
#include "planner/answer/answer.h"

/* Most instructions of a plan for which the critical path is found; longer programs are judged by the ranks'
 * computing seconds alone. */
#define PATH_INSTRUCTIONS_MAX 100000u

/* Sets answer->uncertainty and, in answer->plan->costs, the shares, the sentence about them and whether links
 * are emulated, from one simulated step of the plan. `run`, which may be NULL, is the simulation that priced
 * the plan; it is reused if it was of the same step. ERR_NOMEM. */
int answer_rests(const struct problem *problem, struct plan_answer *answer, const struct price_run *run,
                 struct err *err);

#endif
