/* Writes an answer's verdict in words. For planner/answer and plug; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_VERDICT_H
#define MOTLEY_PLANNER_ANSWER_VERDICT_H

#include "planner/candidate/candidate.h"
#include "planner/answer/answer.h"

/* Sets answer->words from the rest of the answer: "Uses 3 of 4 devices: 41 s per step, …". If there is no
 * plan, the words name the placement that lacks least memory by shortages[PLACE_COUNT], and
 * answer->shortfall_bytes is set. ERR_NOMEM. */
int answer_words(const struct problem *problem, const struct shortage *shortages, struct plan_answer *answer,
                 struct err *err);

/* Sets answer->cost_per_million_tokens and kwh_per_million_tokens from the plan's devices; 0 if the price
 * or power of one of them is unknown. */
void answer_value(const struct cluster *cluster, struct plan_answer *answer);

#endif
