/* Makes the plan and its alternatives from a workload and a cluster. Pure: no clock, no files; equal inputs
 * give equal answers. The search ends when its budget of evaluations is spent. */
#ifndef MOTLEY_PLANNER_ANSWER_PLAN_H
#define MOTLEY_PLANNER_ANSWER_PLAN_H

#include "planner/answer/answer.h"

/* Chooses what an open workload is computed in (precision.c), so that the workload afterwards fits the plan.
 * Returns 0 and an answer also if nothing fits (its verdict says so). −1: ERR_INVALID (the workload is
 * invalid, or a requested device does not exist), ERR_UNSUPPORTED (the placement is impossible for this
 * model), ERR_NOMEM. */
int plan_search(struct workload *workload, const struct cluster *cluster, const struct plan_options *options,
                struct plan_answer **answer, struct err *err);

/* Does what `motley plan SPEC --cluster FILE` does without a server; the arguments are the parsed
 * specification, cluster file and config.json. */
int plan_from_cluster(const json_t *spec, const json_t *cluster, const json_t *config_json,
                      const struct plan_options *options, struct plan_answer **answer, struct err *err);

#endif
