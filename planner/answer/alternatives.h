/* Lists the plans that the chosen one was compared with: the best of every placement, every device alone, the
 * best plan that workers of this release can run, and plans with devices that the chosen one leaves out. For
 * planner/answer only; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_ALTERNATIVES_H
#define MOTLEY_PLANNER_ANSWER_ALTERNATIVES_H

#include "planner/answer/answer.h"
#include "planner/search/search.h"

#define LEFT_OUT_TRIED 16u /* most devices of a cluster in which unused devices are tried one by one */

/* Fills answer->alternatives. ERR_NOMEM. */
int alternatives_fill(const struct problem *problem, const struct search_found *found,
                      struct plan_answer *answer, struct err *err);
/* Fills answer->left_out: for each device that the plan does not use, why, and the step's seconds with it.
 * Returns 0; 1 if a plan with such a device is better: *found then has it as the best, and nothing is filled;
 * −1 ERR_NOMEM. */
int left_out_fill(const struct problem *problem, const struct search_options *options,
                  struct search_found *found, struct plan_answer *answer, struct err *err);

#endif
