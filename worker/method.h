/* From a job's specification to what its stages are made with. */
#ifndef MOTLEY_WORKER_METHOD_H
#define MOTLEY_WORKER_METHOD_H

#include "engine/stage.h"
#include "model/spec.h"

/* Set all that the specification decides: method, base, compute, optimiser, noise and smoothing, seed; of
 * adapters, on the model of options->config. ERR_INVALID: a target that no matrix has. */
int method_options(const struct job_spec *spec, struct stage_options *options, struct err *err);

/* What the load-balancing loss counts: coefficient * labelled / tokens of the step; 0: it is off. */
double method_router_scale(const struct job_spec *spec, const struct model_config *config, uint64_t labelled,
                           uint64_t tokens);

#endif
