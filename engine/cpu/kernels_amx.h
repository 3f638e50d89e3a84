/* Products of bf16 on the tile registers that Intel's server CPUs have since Sapphire Rapids. */
#ifndef MOTLEY_ENGINE_CPU_KERNELS_AMX_H
#define MOTLEY_ENGINE_CPU_KERNELS_AMX_H

#include "engine/cpu/kernels.h"

/* As struct kernels' gemm_rounded, for g->as == VALUES_BF16. Sums are in fp32; numbers below fp32's normal
 * range count as 0. NULL: built by a compiler without AMX (gcc before 11). */
extern void (*const gemm_bf16_amx)(const struct gemm_rounded *g, float *scratch);

#endif
