/* The best plan by the job's objective. For planner/answer only; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_BEST_H
#define MOTLEY_PLANNER_ANSWER_BEST_H

#include "planner/answer/answer.h"

/* As plan_search (plan.h), but that nothing is said of what would help (options->insight). */
int plan_best(const struct workload *workload, const struct cluster *cluster,
              const struct plan_options *options, struct plan_answer **answer, struct err *err);

#endif
