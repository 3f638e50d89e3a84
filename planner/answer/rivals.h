/* Plans that may be as fast as the answer's, for trial steps (docs/PLANNER.md). For planner/answer only;
 * pure. */
#ifndef MOTLEY_PLANNER_ANSWER_RIVALS_H
#define MOTLEY_PLANNER_ANSWER_RIVALS_H

#include "planner/answer/answer.h"
#include "planner/search/search.h"

/* Fills answer->rivals with the best runnable plans of other placements than the answer's, at most `most`, as
 * far as each is predicted to take at most RIVAL_MOST times the answer's step. None where the job's objective
 * is not time, or the job is so short that a trial could not pay for one move. ERR_NOMEM. */
int rivals_fill(const struct problem *p, const struct search_found *found, uint32_t most,
                struct plan_answer *answer, struct err *err);

#endif
