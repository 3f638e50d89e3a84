/* What a plan was chosen over: every placement's best, every device alone, what can be run today, and what
 * devices that are left out would bring. For planner/answer only; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_ALTERNATIVES_H
#define MOTLEY_PLANNER_ANSWER_ALTERNATIVES_H

#include "planner/answer/answer.h"
#include "planner/search/search.h"

#define LEFT_OUT_TRIED 16u /* devices of a cluster up to which each one left out is searched with */

/* Fills answer->alternatives. ERR_NOMEM. */
int alternatives_fill(const struct problem *problem, const struct search_found *found,
                      struct plan_answer *answer, struct err *err);
/* Fills answer->left_out. Returns 0; 1, and nothing filled, when such a device turned out to make a better
 * plan: *found has it as the best now; −1 ERR_NOMEM. */
int left_out_fill(const struct problem *problem, const struct search_options *options,
                  struct search_found *found, struct plan_answer *answer, struct err *err);

#endif
