/* From workload and cluster to the plan, with what it was chosen over.
 *
 * Pure: no clock, no files; equal inputs give equal answers. A search ends when its budget of evaluations is
 * spent.
 */
#ifndef MOTLEY_PLANNER_ANSWER_PLAN_H
#define MOTLEY_PLANNER_ANSWER_PLAN_H

#include "planner/answer/answer.h"

/* Returns 0 and an answer also when nothing fits (verdict says so). −1: ERR_INVALID (nonsense in the workload
 * or a device asked for that does not exist), ERR_UNSUPPORTED (placement not possible for this model),
 * ERR_NOMEM. */
int plan_search(const struct workload *workload, const struct cluster *cluster,
                const struct plan_options *options, struct plan_answer **answer, struct err *err);

/* `motley plan SPEC --cluster FILE` without a server: specification, cluster file and config.json as parsed
 * JSON. */
int plan_from_cluster(const json_t *spec, const json_t *cluster, const json_t *config_json,
                      const struct plan_options *options, struct plan_answer **answer, struct err *err);

#endif
