/* Products of bf16 on the tile registers that Intel's server CPUs have since Sapphire Rapids (AMX), or by the
 * vectors of AVX512-BF16 (Cooper Lake, Zen 4 and later). */
#ifndef MOTLEY_ENGINE_CPU_KERNELS_BF16_H
#define MOTLEY_ENGINE_CPU_KERNELS_BF16_H

#include "engine/cpu/kernels.h"

/* As struct kernels' gemm_rounded, for g->as == VALUES_BF16. Sums are in fp32; numbers below fp32's normal
 * range count as 0. Both NULL: built by a compiler without AMX (gcc before 11). */
extern void (*const gemm_bf16_amx)(const struct gemm_rounded *g, float *scratch);
extern void (*const gemm_bf16_avx512)(const struct gemm_rounded *g, float *scratch);

#endif
