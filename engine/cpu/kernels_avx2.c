/* Row kernels for AVX2. This file is compiled with AVX2's flags (engine/options.cmake) and called only where
 * the CPU supports it. */
#include <immintrin.h>

#define VECTOR 8
#define KERNELS kernels_avx2
#define KERNELS_ISA "avx2"
#define WIDE_MULTIPLY(a, b) ((vl)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#define ROUND_F16(x)                                                                                         \
    ((vf)_mm256_cvtph_ps(_mm256_cvtps_ph((__m256)(x), _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC)))
#define WIDEN_F16(x) ((vf)_mm256_cvtph_ps((__m128i)(x)))
#define LANES_SUM(x) kernels_avx2_lanes_sum_fast((__m256)(x))

static inline float kernels_avx2_lanes_sum_fast(__m256 y)
{
    __m128 x = _mm_add_ps(_mm256_castps256_ps128(y), _mm256_extractf128_ps(y, 1));
    x = _mm_add_ps(x, _mm_movehl_ps(x, x));
    return _mm_cvtss_f32(_mm_add_ss(x, _mm_shuffle_ps(x, x, 1)));
}

#include "engine/cpu/kernels_body.h"
