/* Finds the best plan for the job's objective. For planner/answer only; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_BEST_H
#define MOTLEY_PLANNER_ANSWER_BEST_H

#include "planner/answer/answer.h"

/* Does what plan_search does (plan.h), except for options->insight. */
int plan_best(const struct workload *workload, const struct cluster *cluster,
              const struct plan_options *options, struct plan_answer **answer, struct err *err);

#endif
