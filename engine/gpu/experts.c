/* Ops of this family: see kernels/experts.k.h. */
#include "engine/gpu/gpu.h"

const struct gpu_op gpu_experts_ops[] = {{.run = NULL}};
