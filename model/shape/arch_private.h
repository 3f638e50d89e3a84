/* The table of architectures, which arch_table.c has and arch.c looks things up in. */
#ifndef MOTLEY_MODEL_SHAPE_ARCH_PRIVATE_H
#define MOTLEY_MODEL_SHAPE_ARCH_PRIVATE_H

#include "model/shape/arch.h"

#define ARCH_LAYER "model.layers.%u." /* what the names of a layer's tensors begin with */

extern const struct arch archs[MODEL_ARCH_COUNT];
extern const struct arch_name arch_llama_names[ARCH_TENSOR_COUNT];

/* What Gemma 4's small models have for the layers' own inputs. */
#define PER_LAYER_NAMES                                                                                      \
    [ARCH_PER_LAYER_TABLE] = {"model.embed_tokens_per_layer", NULL},                                         \
    [ARCH_PER_LAYER_MODEL] = {"model.per_layer_model_projection", NULL},                                     \
    [ARCH_PER_LAYER_NORM] = {"model.per_layer_projection_norm", NULL},                                       \
    [ARCH_PER_LAYER_GATE] = {ARCH_LAYER "per_layer_input_gate", NULL},                                       \
    [ARCH_PER_LAYER_OUT] = {ARCH_LAYER "per_layer_projection", NULL},                                        \
    [ARCH_NORM_PER_LAYER] = {ARCH_LAYER "post_per_layer_input_norm", NULL}

#endif
