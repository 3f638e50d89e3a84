/* What else of the job would make it faster, beside the plan that was found. For planner/answer only; pure.
 */
#ifndef MOTLEY_PLANNER_ANSWER_WOULD_GAIN_H
#define MOTLEY_PLANNER_ANSWER_WOULD_GAIN_H

#include "planner/answer/answer.h"

/* Plans the job shortly with one choice changed at a time, and fills answer->gains with the
 * ANSWER_GAINS_MAX best that gain at least a tenth in tokens per second: a base in NF4, twice the rows of a
 * step, 16 bits in the place of fp32 (unless `computed_open`: the planner has chosen), or a placement that
 * the planner chooses. `workload` is as the answer was planned. ERR_NOMEM. */
int would_gain_find(const struct workload *workload, bool computed_open, const struct cluster *cluster,
                    const struct plan_options *options, struct plan_answer *answer, struct err *err);

#endif
