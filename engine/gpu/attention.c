/* Ops of this family: see kernels/attention.k.h. */
#include "engine/gpu/gpu.h"

const struct gpu_op gpu_attention_ops[] = {{.run = NULL}};
