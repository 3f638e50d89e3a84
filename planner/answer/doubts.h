/* Warnings about times and amounts that look wrong but can be planned with: times that such a device cannot
 * reach, or that are absurdly long (perhaps not in seconds), times that fall while the work rises, amounts in
 * a wrong unit. For planner/answer only; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_DOUBTS_H
#define MOTLEY_PLANNER_ANSWER_DOUBTS_H

#include "planner/cost/problem.h"
#include "planner/answer/answer.h"

#define DOUBTS_MAX 16u /* most warnings; if there are more, one further sentence gives their number */

/* Fills answer->warnings for the problem's usable devices. ERR_NOMEM. */
int problem_doubts(const struct problem *problem, struct plan_answer *answer, struct err *err);

#endif
