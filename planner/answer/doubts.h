/* What looks wrong in the tables a plan rests on, though it can be planned with: times that no such device
 * can reach or that are absurdly long (another unit than seconds), and times that fall while the work rises.
 * For this room only; pure.
 */
#ifndef MOTLEY_PLANNER_ANSWER_DOUBTS_H
#define MOTLEY_PLANNER_ANSWER_DOUBTS_H

#include "planner/cost/problem.h"
#include "planner/answer/answer.h"

#define DOUBTS_MAX 16u /* sentences; what is beyond them is counted in one more */

/* Fills answer->warnings for the problem's usable devices. ERR_NOMEM. */
int problem_doubts(const struct problem *problem, struct plan_answer *answer, struct err *err);

#endif
