/* What would let a job fit that does not. For planner/answer only; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_WOULD_FIT_H
#define MOTLEY_PLANNER_ANSWER_WOULD_FIT_H

#include "planner/answer/answer.h"

/* Where memory is all that an answer lacks, appends to its words what would fit, each found by short
 * searches: shorter rows, moments on the host, a base in NF4, or more memory on one device. */
int would_fit_say(const struct workload *workload, const struct cluster *cluster,
                  const struct plan_options *options, struct plan_answer *answer, struct err *err);

#endif
