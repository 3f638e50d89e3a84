/* The steps of gated delta nets, of short convolutions, of attention with gates and of latent attention,
 * forward and backward.
 * Each queues the step's ops; with a cache, the layer's state in it is used and advanced. */
#ifndef MOTLEY_ENGINE_STAGE_DELTA_H
#define MOTLEY_ENGINE_STAGE_DELTA_H

#include "engine/stage/layer.h"

/* STEP_SPLIT: what is no gate, the parts of a packed gated delta net apart, or q, k and v of latent
 * attention. */
void split_forward(const struct layer_run *run, const struct layer_step *step);
void split_backward(const struct layer_run *run, const struct layer_step *step);
/* STEP_QK_NORM without weights: q and k are scaled to length 1, and q also by 1 / sqrt(key_dim). The gradient
 * is replaced in place. */
void unit_norm_forward(const struct layer_run *run);
void unit_norm_backward(const struct layer_run *run);
/* STEP_CONV */
void conv_forward(const struct layer_run *run, const struct layer_step *step);
void conv_backward(const struct layer_run *run, const struct layer_step *step);
/* STEP_DELTA */
void delta_forward(const struct layer_run *run, const struct layer_step *step);
void delta_backward(const struct layer_run *run, const struct layer_step *step,
                    const struct tape_entry *entry);
/* STEP_GATE */
void gate_forward(const struct layer_run *run, const struct layer_step *step);
void gate_backward(const struct layer_run *run, const struct layer_step *step);

#endif
