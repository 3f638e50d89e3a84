/* Row kernels for SSE4.2. This file is compiled with its flags (engine/options.cmake) and called only where
 * the CPU supports it. */
#include <immintrin.h>

#define VECTOR 4
#define KERNELS kernels_sse42
#define KERNELS_ISA "sse42"
#define WIDE_MULTIPLY(a, b) ((vl)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#define LANES_SUM(x) kernels_sse42_lanes_sum_fast((__m128)(x))

static inline float kernels_sse42_lanes_sum_fast(__m128 x)
{
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

#include "engine/cpu/kernels_body.h"
