/* Small products by the matrix units of a card, 32 lanes together: PTX's mma.m16n8k16 from sm_80 on.
 * Everywhere else, the emulated device included, the same lanes hold the same values and exchange them by
 * shuffles, which is right but slow. A matrix unit adds its terms in an order of its own, so cards agree with
 * the emulated device within rounding, not to the bit; one card repeats itself.
 *
 * Of lane l of 32, g = l / 4 and q = l % 4, words hold pairs of bf16, the lower term in the lower half:
 *   a[16,16]  words (row g, terms 2q), (g + 8, 2q), (g, 2q + 8), (g + 8, 2q + 8)
 *   b[16,8]   words (terms 2q, column g), (2q + 8, g)
 *   d[16,8]   floats (row g, columns 2q and 2q + 1), (g + 8, the same)
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_FRAGMENT_H
#define MOTLEY_ENGINE_GPU_KERNELS_FRAGMENT_H

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

/* Two floats as a word of bf16, rounded to nearest even. */
FUNCTION uint32_t fragment_pair(float low, float high)
{
    uint32_t pair;
    __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
}

/* d += a b. All lanes of the warp must be there. */
FUNCTION void fragment_multiply(const uint32_t *a, const uint32_t *b, float *d)
{
    __asm__ volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
        "{%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#else

FUNCTION uint32_t fragment_pair(float low, float high)
{
    return (uint32_t)math_to_bf16(high) << 16 | math_to_bf16(low);
}

#if defined(__CUDA_ARCH__) || defined(__HIP__)

FUNCTION void fragment_multiply(const uint32_t *a, const uint32_t *b, float *d)
{
    (void)a;
    (void)b;
    (void)d;
    assert_device(0);
}

#else

FUNCTION float fragment_dot(float sum, uint32_t x, uint32_t y)
{
    sum = math_fma(math_of_bf16((uint16_t)x), math_of_bf16((uint16_t)y), sum);
    return math_fma(math_of_bf16((uint16_t)(x >> 16)), math_of_bf16((uint16_t)(y >> 16)), sum);
}

FUNCTION uint32_t fragment_word(uint32_t word, uint32_t from)
{
    return math_bits(shuffle_from(math_float(word), lane() / 32 * 32 + from));
}

FUNCTION void fragment_multiply(const uint32_t *a, const uint32_t *b, float *d)
{
    uint32_t g = lane() % 32 / 4, q = lane() % 4;
    for (uint32_t i = 0; i < 8; i++) { /* terms 2i and 2i + 1 */
        uint32_t half = i / 4, at = i % 4;
        uint32_t top = fragment_word(a[2 * half], 4 * g + at),
                 low = fragment_word(a[2 * half + 1], 4 * g + at);
        uint32_t left = fragment_word(b[half], 8 * q + at), right = fragment_word(b[half], 8 * q + 4 + at);
        d[0] = fragment_dot(d[0], top, left);
        d[1] = fragment_dot(d[1], top, right);
        d[2] = fragment_dot(d[2], low, left);
        d[3] = fragment_dot(d[3], low, right);
    }
}

#endif
#endif
#endif
