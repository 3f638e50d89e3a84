/* Turns a job's specification into the options of its stages. */
#ifndef MOTLEY_WORKER_SESSION_METHOD_H
#define MOTLEY_WORKER_SESSION_METHOD_H

#include "engine/stage/stage.h"
#include "model/job/spec.h"

/* Sets the options that the specification decides: method, base dtype, compute dtype, optimiser, embedding
 * noise, label smoothing, seed and, for adapters, the adapted matrices of the model options->config.
 * ERR_INVALID for a target that no matrix of the model has. */
int method_options(const struct job_spec *spec, struct stage_options *options, struct err *err);

/* Returns the weight of the load-balancing loss in a step: coefficient * labelled / tokens; 0 when that loss
 * is off. */
double method_router_scale(const struct job_spec *spec, const struct model_config *config, uint64_t labelled,
                           uint64_t tokens);

#endif
