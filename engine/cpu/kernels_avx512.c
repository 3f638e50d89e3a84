/* Row kernels for AVX-512, AVX512-BF16 and AMX, which differ in products of bf16 alone. This file is compiled
 * with the flags of AVX-512 (engine/options.cmake) and called only where the CPU supports it.
 */
#include <immintrin.h>

#define VECTOR 16
#define KERNELS kernels_avx512
#define KERNELS_ISA "avx512"
#define WIDE_MULTIPLY(a, b) ((vl)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#define ROUND_F16(x)                                                                                         \
    ((vf)_mm512_cvtph_ps(_mm512_cvtps_ph((__m512)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)))
#define WIDEN_F16(x) ((vf)_mm512_cvtph_ps((__m256i)(x)))
#define LANES_SUM(x) kernels_avx512_lanes_sum_fast((__m512)(x))

static inline float kernels_avx512_lanes_sum_fast(__m512 x)
{
    return _mm512_reduce_add_ps(x);
}

#include "engine/cpu/kernels_bf16.h"
#include "engine/cpu/kernels_body.h"

static void gemm_rounded_amx(const struct gemm_rounded *g, float *scratch)
{
    if (g->as == VALUES_BF16)
        gemm_bf16_amx(g, scratch);
    else
        gemm_rounded(g, scratch);
}

/* With few terms, as in LoRA's second product, padding them to a tile costs more than it saves. */
static void gemm_rounded_bf16(const struct gemm_rounded *g, float *scratch)
{
    if (g->as == VALUES_BF16 && g->k >= 32)
        gemm_bf16_avx512(g, scratch);
    else
        gemm_rounded(g, scratch);
}

const struct kernels kernels_avx512_bf16 = KERNELS_TABLE("avx512-bf16", gemm_rounded_bf16);
const struct kernels kernels_amx = KERNELS_TABLE("amx", gemm_rounded_amx);
