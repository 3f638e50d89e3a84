/* The verdict in words. For planner/answer and plug; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_VERDICT_H
#define MOTLEY_PLANNER_ANSWER_VERDICT_H

#include "planner/candidate/candidate.h"
#include "planner/answer/answer.h"

/* Sets answer->words from what else stands in the answer: "Fits on 3 of 4 devices. 41 s per step, …". For an
 * answer without a plan, the nearest placement among shortages[PLACE_COUNT] and what it lacks, which also
 * goes into answer->shortfall_bytes. ERR_NOMEM. */
int answer_words(const struct problem *problem, const struct shortage *shortages, struct plan_answer *answer,
                 struct err *err);

/* Sets what a step costs and takes, by the plan's devices: answer->cost_per_million_tokens and
 * kwh_per_million_tokens; 0 where a device of the plan does not say its price or power. */
void answer_value(const struct cluster *cluster, struct plan_answer *answer);

#endif
