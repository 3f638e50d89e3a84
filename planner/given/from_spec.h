/* Conversion of job specifications and documents into the planner's structs. No other file of this room
 * includes model/job/spec.h and model/rows/rows.h. Pure. */
#ifndef MOTLEY_PLANNER_GIVEN_FROM_SPEC_H
#define MOTLEY_PLANNER_GIVEN_FROM_SPEC_H

#include <jansson.h>

#include "model/shape/config.h"
#include "model/rows/rows.h"
#include "model/job/spec.h"
#include "planner/given/workload.h"

/* The sizes of a job's rows. NULL sizes: the data is not available, and every row is assumed to have
 * data.sequence_tokens tokens. prompt_tokens: length of the rendered sample prompt; 0 if unknown, and 256 are
 * assumed. expert_share: measured routing (INTERFACES.md); NULL: every expert receives as many tokens.
 * compute: what the job's last run was computed in, for a job with train.compute: auto; NULL: it has not run.
 */
struct plan_rows {
    const struct row_size *train, *eval;
    uint32_t train_count, eval_count, prompt_tokens;
    const json_t *expert_share;
    const char *compute;
};

/* Fills *workload (workload_fini). config is borrowed until the workload ends; spec and rows are copied. */
int workload_from_spec(const struct job_spec *spec, const struct model_config *config,
                       const struct plan_rows *rows, struct workload *workload, struct err *err);

#endif
