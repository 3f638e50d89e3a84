/* The table of architectures, which arch_table.c has and arch.c looks things up in. */
#ifndef MOTLEY_MODEL_SHAPE_ARCH_PRIVATE_H
#define MOTLEY_MODEL_SHAPE_ARCH_PRIVATE_H

#include "model/shape/arch.h"

#define ARCH_LAYER "model.layers.%u." /* what the names of a layer's tensors begin with */

extern const struct arch archs[MODEL_ARCH_COUNT];
extern const struct arch_name arch_llama_names[ARCH_TENSOR_COUNT];

#endif
