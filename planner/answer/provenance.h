/* What a plan's time rests on: how much of it was measured, imported, estimated, of devices and of links.
 * Links count with what the critical path spends on them (a transfer behind computation takes no time), the
 * rest is shared out by what every rank computes. For planner/answer and plug; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_PROVENANCE_H
#define MOTLEY_PLANNER_ANSWER_PROVENANCE_H

#include "planner/cost/price.h"
#include "planner/answer/answer.h"

/* Longer programs are judged without a path, by busy seconds alone. */
#define PATH_INSTRUCTIONS_MAX 100000u

/* Simulates one step of answer->plan (programs needed; `run`, which may be NULL: what priced it, used where
 * that was the same step) and writes the shares, the sentence and emulated links into plan->costs, and
 * answer->uncertainty. ERR_NOMEM. */
int answer_rests(const struct problem *problem, struct plan_answer *answer, const struct price_run *run,
                 struct err *err);

#endif
