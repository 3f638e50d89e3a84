/* Conversion of job specifications and documents into the planner's structs. No other file of this room
 * includes model/job/spec.h and model/rows/rows.h. Pure. */
#ifndef MOTLEY_PLANNER_GIVEN_FROM_SPEC_H
#define MOTLEY_PLANNER_GIVEN_FROM_SPEC_H

#include <jansson.h>

#include "model/shape/config.h"
#include "model/rows/rows.h"
#include "model/job/spec.h"
#include "planner/given/workload.h"

/* Fills *workload (workload_fini). config is borrowed until the workload ends; spec and sizes are copied.
 * sizes NULL: the data is not at hand, and every row is assumed to have spec->data.sequence_tokens tokens.
 * prompt_tokens: length of the rendered sample prompt; 0 if unknown, and 256 are assumed. */
int workload_from_spec(const struct job_spec *spec, const struct model_config *config,
                       const struct row_size *sizes, uint32_t row_count, const struct row_size *eval_sizes,
                       uint32_t eval_row_count, uint32_t prompt_tokens, struct workload *workload,
                       struct err *err);

#endif
