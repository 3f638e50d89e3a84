/* Unpacks NF4 with AVX2 (engine/options.cmake), also on AVX-512 machines. */
#include <immintrin.h>

#include "engine/cpu/unpack.h"
#include "model/files/nf4.h"

/* Values of 8 codes, each in the low 4 bits of a lane. The low 3 bits permute both halves of the table; the
 * fourth, shifted to the sign, chooses the half. */
static inline __m256 nf4_values(__m256i codes, __m256 low, __m256 high)
{
    __m256 choice = _mm256_castsi256_ps(_mm256_slli_epi32(codes, 28));
    return _mm256_blendv_ps(_mm256_permutevar8x32_ps(low, codes), _mm256_permutevar8x32_ps(high, codes),
                            choice);
}

void unpack_nf4_avx2(const uint8_t *codes, const float *absmax, uint64_t count, float *values)
{
    const __m256 low = _mm256_loadu_ps(nf4_table), high = _mm256_loadu_ps(nf4_table + 8);
    const __m128i nibble = _mm_set1_epi8(15);
    uint64_t full = count / NF4_BLOCK;
    for (uint64_t block = 0; block < full; block++, values += NF4_BLOCK) {
        __m256 scale = _mm256_set1_ps(absmax[block]);
        for (int half = 0; half < 2; half++, codes += 16) {
            __m128i pairs = _mm_loadu_si128((const __m128i *)(const void *)codes);
            __m128i first = _mm_and_si128(_mm_srli_epi16(pairs, 4), nibble),
                    second = _mm_and_si128(pairs, nibble);
            __m128i bytes[2] = {_mm_unpacklo_epi8(first, second), _mm_unpackhi_epi8(first, second)};
            for (int i = 0; i < 2; i++) {
                float *to = values + 32 * half + 16 * i;
                __m256 a = nf4_values(_mm256_cvtepu8_epi32(bytes[i]), low, high);
                __m256 b = nf4_values(_mm256_cvtepu8_epi32(_mm_srli_si128(bytes[i], 8)), low, high);
                _mm256_storeu_ps(to, _mm256_mul_ps(a, scale));
                _mm256_storeu_ps(to + 8, _mm256_mul_ps(b, scale));
            }
        }
    }
    nf4_dequantise(codes, absmax + full, count % NF4_BLOCK, values);
}
