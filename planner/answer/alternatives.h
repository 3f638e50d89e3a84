/* What a plan was compared with: the best of every placement, every device alone, the best plan that can
 * run today, and plans with devices that were left out. For planner/answer only; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_ALTERNATIVES_H
#define MOTLEY_PLANNER_ANSWER_ALTERNATIVES_H

#include "planner/answer/answer.h"
#include "planner/search/search.h"

#define LEFT_OUT_TRIED 16u /* most devices of a cluster for which each left-out device is searched with */

/* Fills answer->alternatives. ERR_NOMEM. */
int alternatives_fill(const struct problem *problem, const struct search_found *found,
                      struct plan_answer *answer, struct err *err);
/* Fills answer->left_out. Returns 0; 1 if a left-out device makes a better plan, which is then the best in
 * *found, and nothing is filled; −1 ERR_NOMEM. */
int left_out_fill(const struct problem *problem, const struct search_options *options,
                  struct search_found *found, struct plan_answer *answer, struct err *err);

#endif
