/* The steps of a layer with experts, each forward and backward. STEP_ROUTE, STEP_WEIGH, STEP_DISPATCH and
 * STEP_COMBINE are described in model/shape/layer.h; they run on the thread of the pass. */
#ifndef MOTLEY_ENGINE_STAGE_EXPERTS_H
#define MOTLEY_ENGINE_STAGE_EXPERTS_H

#include "engine/stage/layer.h"

/* Sets `out` to the value that the step adds to. */
void sum_begin(const struct layer_run *run, const struct layer_step *step);

/* STEP_ROUTE, and its order of rows */
void route_forward(const struct layer_run *run, const struct layer_step *step);
void route_backward(const struct layer_run *run, const struct layer_step *step);
/* STEP_WEIGH */
void weigh_forward(const struct layer_run *run, const struct layer_step *step);
void weigh_backward(const struct layer_run *run, const struct layer_step *step);
/* STEP_COMBINE */
void combine_forward(const struct layer_run *run, const struct layer_step *step);
void combine_backward(const struct layer_run *run, const struct layer_step *step);
/* STEP_DISPATCH; with accumulate the gradient of the tokens exists already and is added to. */
void dispatch_forward(const struct layer_run *run, const struct layer_step *step);
void dispatch_backward(const struct layer_run *run, const struct layer_step *step, bool accumulate);

#endif
