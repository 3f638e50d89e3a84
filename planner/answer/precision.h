/* What a job with train.compute: auto is computed in. For planner/answer only; pure. */
#ifndef MOTLEY_PLANNER_ANSWER_PRECISION_H
#define MOTLEY_PLANNER_ANSWER_PRECISION_H

#include "planner/answer/answer.h"

/* Plans an open workload (compute_open) as plan_best does, in whichever of fp32, bf16 and fp16 is best for
 * its objective on the devices that it may use, and sets that in the workload. 16 bits are tried where a
 * device of the cluster multiplies them faster, and chosen if they gain a fiftieth; where none does, the
 * workload is computed in fp32, and nothing else is searched. With a plan to start from, it is what that plan
 * is computed in. */
int precision_best(struct workload *workload, const struct cluster *cluster,
                   const struct plan_options *options, struct plan_answer **answer, struct err *err);

#endif
