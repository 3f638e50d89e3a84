/* Makes the analysis of a plan that insight.h describes. For planner/answer only; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_INSIGHT_FILL_H
#define MOTLEY_PLANNER_ANSWER_INSIGHT_FILL_H

#include "planner/answer/answer.h"
#include "planner/answer/insight.h"

/* Fills answer->insight. If the plan has no programs, or very long ones, nothing is filled. options: those of
 * the search that gave the answer. ERR_NOMEM, or as plan_search. */
int plan_insight_fill(const struct workload *workload, const struct cluster *cluster,
                      const struct plan_options *options, struct plan_answer *answer, struct err *err);

#endif
