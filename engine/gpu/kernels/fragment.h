/* Small 16-bit products by a card's matrix units, which all lanes of a warp compute together: d += a b, with
 * sums in fp32.
 *
 *   cards               instruction                                      types
 *   sm_75               mma.m16n8k8, two halves of the terms             fp16
 *   sm_80 and later     mma.m16n8k16                                     fp16, bf16
 *   gfx908              v_mfma_f32_16x16x16f16, two of …_16x16x8bf16     fp16, bf16
 *   gfx90a, 942, 950    v_mfma_f32_16x16x16f16, …_16x16x16bf16_1k        fp16, bf16
 *
 * No other card has fragments here: Volta's m8n8k4 has a layout of its own and is left out, as is RDNA 3's
 * WMMA. FRAGMENT_BF16 and FRAGMENT_F16 tell what the compiler's target has; the host finds the same in the
 * code object (gpu_code.matrix). On other targets, products round their operands and multiply in fp32.
 *
 * The emulated device holds the same values in the same lanes and exchanges them through shared memory. A
 * matrix unit adds its terms in its own order (and gfx90a's takes subnormal operands for 0), so cards agree
 * with the emulated device within rounding, not to the bit; each card repeats its own results.
 *
 * A fragment has 16 rows, 16 terms and fragment_columns() columns. A word holds two neighbouring terms, the
 * lower one in the lower half. In warps of 32, lane l with g = l / 4 and q = l % 4 has
 *   a[16,16]  words (row g, terms 2q), (g + 8, 2q), (g, 2q + 8), (g + 8, 2q + 8)
 *   b[16,8]   words (terms 2q, column g), (2q + 8, g)
 *   d[16,8]   floats (row g, columns 2q and 2q + 1), (g + 8, the same)
 * In warps of 64, lane l with h = l / 16 and i = l % 16 has
 *   a[16,16]  words (row i, terms 4h), (i, 4h + 2)
 *   b[16,16]  words (terms 4h, column i), (4h + 2, i)
 *   d[16,16]  floats (rows 4h … 4h + 3, column i)
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_FRAGMENT_H
#define MOTLEY_ENGINE_GPU_KERNELS_FRAGMENT_H

#include "engine/gpu/kernels/four.h"

/* The bf16 instruction of gfx90a and of the cards after it. */
#if defined(__gfx90a__) || defined(__gfx942__) || defined(__gfx950__)
#define FRAGMENT_MFMA_1K
#endif

#if defined(__CUDA_ARCH__)
#define FRAGMENT_BF16 (__CUDA_ARCH__ >= 800)
#define FRAGMENT_F16 (__CUDA_ARCH__ >= 750)
#elif defined(__gfx908__) || defined(FRAGMENT_MFMA_1K)
#define FRAGMENT_BF16 1
#define FRAGMENT_F16 1
#elif defined(__HIP__)
#define FRAGMENT_BF16 0
#define FRAGMENT_F16 0
#else
#define FRAGMENT_BF16 1
#define FRAGMENT_F16 1
#endif

/* Rounds a float to fp16, to nearest even, with the card's own instruction if one is known. */
FUNCTION uint16_t fragment_f16(float x)
{
#if defined(__CUDA_ARCH__)
    uint16_t half;
    __asm__("cvt.rn.f16.f32 %0, %1;" : "=h"(half) : "f"(x));
    return half;
#elif defined(__HIP__)
    return __builtin_bit_cast(uint16_t, (_Float16)x);
#else
    return math_to_f16(x);
#endif
}

/* Rounds x to the element type and back to a float. */
FUNCTION float fragment_round(uint32_t element, float x)
{
    if (element == ELEMENT_F32)
        return x;
#if defined(__CUDA_ARCH__)
    if (element == ELEMENT_F16) {
        float wide;
        uint16_t half = fragment_f16(x);
        __asm__("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(half));
        return wide;
    }
#elif defined(__HIP__)
    if (element == ELEMENT_F16)
        return (float)(_Float16)x;
#else
    if (element == ELEMENT_F16)
        return math_of_f16(math_to_f16(x));
#endif
    return math_of_bf16(math_to_bf16(x));
}

/* element_of, with the card's own instruction if one is known. */
FUNCTION float fragment_value(uint32_t element, uint16_t x)
{
#if defined(__CUDA_ARCH__)
    float wide;
    if (element == ELEMENT_BF16)
        return math_of_bf16(x);
    __asm__("cvt.f32.f16 %0, %1;" : "=f"(wide) : "h"(x));
    return wide;
#elif defined(__HIP__)
    return element == ELEMENT_BF16 ? math_of_bf16(x) : (float)__builtin_bit_cast(_Float16, x);
#else
    return element_of(element, x);
#endif
}

FUNCTION uint16_t fragment_half(uint32_t element, float x)
{
    return element == ELEMENT_F16 ? fragment_f16(x) : math_to_bf16(x);
}

/* Rounds two floats to the element type and packs them into one word. */
FUNCTION uint32_t fragment_pair(uint32_t element, float low, float high)
{
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
    uint32_t pair;
    if (element == ELEMENT_F16)
        __asm__("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    else
        __asm__("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(high), "f"(low));
    return pair;
#else
    return (uint32_t)fragment_half(element, high) << 16 | fragment_half(element, low);
#endif
}

FUNCTION uint32_t fragment_columns(void)
{
    return warp_size() == 64 ? 16 : 8;
}

/* The words of fragments in a tile of shared memory. Callers add what is equal for all fragments of a loop to
 * `tile` and leave constants in `at`: one register then holds the address of all. Rows of a tile are ld words
 * apart; both and `at` are multiples of four words. A row is a line (a row of a, a column of b) with the
 * terms as neighbours, in chunks of 8 terms from `chunk` on; or, `across`, a term with the lines as
 * neighbours. NVIDIA's cards have an instruction that gives every lane its words of four blocks of 8 rows by
 * 8 values, and turns the blocks if they lie across.
 *
 * `swizzle` is the logarithm of how many lines fill all 32 banks of shared memory, if lines follow each other
 * without padding: chunks then change places so that one chunk of 8 lines uses all banks. 0: lines are
 * padded, and chunks lie in order. */
FUNCTION uint32_t fragment_chunk(uint32_t line, uint32_t chunk, uint32_t swizzle)
{
    return swizzle == 0 ? chunk : chunk ^ (line >> swizzle & ((8u >> swizzle) - 1u));
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750

FUNCTION uint32_t fragment_address(const uint32_t *at)
{
#if defined(__clang__)
    return (uint32_t)(uint64_t)(__attribute__((address_space(3))) const uint32_t *)at;
#else
    return (uint32_t)__cvta_generic_to_shared(at);
#endif
}

/* This lane's words x0 … x3 of four blocks; lane l has the address of row l % 8 of block l / 8. */
#define FRAGMENT_BLOCKS(turn, at, x0, x1, x2, x3)                                                            \
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x4" turn ".shared.b16 {%0, %1, %2, %3}, [%4];"              \
                     : "=r"(x0), "=r"(x1), "=r"(x2), "=r"(x3)                                                \
                     : "r"(fragment_address(at))                                                             \
                     : "memory")

#define FRAGMENT_TWO_BLOCKS(turn, at, x0, x1)                                                                \
    __asm__ volatile("ldmatrix.sync.aligned.m8n8.x2" turn ".shared.b16 {%0, %1}, [%2];"                      \
                     : "=r"(x0), "=r"(x1)                                                                    \
                     : "r"(fragment_address(at))                                                             \
                     : "memory")

FUNCTION void fragment_take_a(uint32_t *tile, uint32_t at, uint32_t ld, uint32_t swizzle, uint32_t chunk,
                              uint32_t across, uint32_t *a)
{
    if (across)
        FRAGMENT_BLOCKS(".trans", tile + at + (lane() / 16 * 8 + lane() % 8) * ld + lane() / 8 % 2 * 4, a[0],
                        a[1], a[2], a[3]);
    else
        FRAGMENT_BLOCKS(
            "", tile + at + lane() % 16 * ld + fragment_chunk(lane() % 16, chunk + lane() / 16, swizzle) * 4,
            a[0], a[1], a[2], a[3]);
}

/* Loads `count` fragments of b, one or two; the second has the 8 columns that follow. */
FUNCTION void fragment_take_b(uint32_t *tile, uint32_t at, uint32_t ld, uint32_t swizzle, uint32_t chunk,
                              uint32_t across, uint32_t count, uint32_t (*b)[2])
{
    uint32_t line = lane() / 16 * 8 + lane() % 8;
    tile += at + (across ? lane() % 16 * ld + lane() / 16 * 4
                         : line * ld + fragment_chunk(line, chunk + lane() / 8 % 2, swizzle) * 4);
    if (count == 2 && across)
        FRAGMENT_BLOCKS(".trans", tile, b[0][0], b[0][1], b[1][0], b[1][1]);
    else if (count == 2)
        FRAGMENT_BLOCKS("", tile, b[0][0], b[0][1], b[1][0], b[1][1]);
    else if (across)
        FRAGMENT_TWO_BLOCKS(".trans", tile, b[0][0], b[0][1]);
    else
        FRAGMENT_TWO_BLOCKS("", tile, b[0][0], b[0][1]);
}

#else

/* Where a tile is, as fragment_take_a and fragment_take_b get it. */
struct fragment_tile {
    uint32_t *tile;
    uint32_t at, ld, swizzle, chunk, across;
};

/* Terms `term` and `term` + 1 of a line, as a word. */
FUNCTION uint32_t fragment_word(struct fragment_tile from, uint32_t term, uint32_t line)
{
    if (!from.across)
        return GET(from.tile, from.at + line * from.ld +
                                  fragment_chunk(line, from.chunk + term / 8, from.swizzle) * 4 +
                                  term / 2 % 4);
    uint16_t *first = (uint16_t *)(from.tile + from.at + term * from.ld);
    return GET(first, line) | (uint32_t)GET(first, line + 2 * from.ld) << 16;
}

FUNCTION void fragment_take_a(uint32_t *tile, uint32_t at, uint32_t ld, uint32_t swizzle, uint32_t chunk,
                              uint32_t across, uint32_t *a)
{
    struct fragment_tile from = {tile, at, ld, swizzle, chunk, across};
    if (warp_size() == 64) {
        a[0] = fragment_word(from, lane() / 16 * 4, lane() % 16);
        a[1] = fragment_word(from, lane() / 16 * 4 + 2, lane() % 16);
        return;
    }
    UNROLL
    for (uint32_t w = 0; w < 4; w++)
        a[w] = fragment_word(from, lane() % 4 * 2 + w / 2 * 8, lane() / 4 + w % 2 * 8);
}

FUNCTION void fragment_take_b(uint32_t *tile, uint32_t at, uint32_t ld, uint32_t swizzle, uint32_t chunk,
                              uint32_t across, uint32_t count, uint32_t (*b)[2])
{
    struct fragment_tile from = {tile, at, ld, swizzle, chunk, across};
    uint32_t wide = warp_size() == 64, line = wide ? lane() % 16 : lane() / 4;
    uint32_t term = wide ? lane() / 16 * 4 : lane() % 4 * 2, far = term + (wide ? 2 : 8);
    UNROLL
    for (uint32_t i = 0; i < count; i++, line += fragment_columns()) {
        b[i][0] = fragment_word(from, term, line);
        b[i][1] = fragment_word(from, far, line);
    }
}

#endif

/* Loads two fragments of b from a tile whose rows are the terms: `at` is the first row, rows are ld words
 * apart, and each word holds two columns. One fragment has the even and one the odd columns among twice
 * fragment_columns(). */
FUNCTION void fragment_take_across(uint32_t *tile, uint32_t at, uint32_t ld, uint32_t *even, uint32_t *odd)
{
    /* distance between a lane's first two and other two terms */
    uint32_t word[4], next = warp_size() == 64 ? 2 : 8;
    tile += warp_size() == 64 ? lane() / 16 * 4 * ld + lane() % 16 : lane() % 4 * 2 * ld + lane() / 4;
    word[0] = GET(tile, at);
    word[1] = GET(tile, at + ld);
    word[2] = GET(tile, at + next * ld);
    word[3] = GET(tile, at + (next + 1) * ld);
    UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        even[i] = (word[2 * i] & 0xffffu) | word[2 * i + 1] << 16;
        odd[i] = word[2 * i] >> 16 | (word[2 * i + 1] & 0xffff0000u);
    }
}

/* Row and column of value r of a lane's four values of d. A lane has equally many values of each of
 * fragment_rows() rows, and shares these rows with fragment_lanes() neighbouring lanes. */
FUNCTION uint32_t fragment_row(uint32_t r)
{
    return warp_size() == 64 ? lane() / 16 * 4 + r : lane() / 4 + r / 2 * 8;
}

FUNCTION uint32_t fragment_column(uint32_t r)
{
    return warp_size() == 64 ? lane() % 16 : lane() % 4 * 2 + r % 2;
}

FUNCTION uint32_t fragment_rows(void)
{
    return warp_size() == 64 ? 4 : 2;
}

FUNCTION uint32_t fragment_lanes(void)
{
    return warp_size() == 64 ? 16 : 4;
}

/* fragment_multiply(element, a, b, d): all lanes of the warp must take part. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

FUNCTION void fragment_multiply(uint32_t element, const uint32_t *a, const uint32_t *b, float *d)
{
    if (element == ELEMENT_F16)
        __asm__ volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    else
        __asm__ volatile(
            "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
            "{%8, %9}, {%0, %1, %2, %3};"
            : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

#elif defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750

FUNCTION void fragment_multiply(uint32_t element, const uint32_t *a, const uint32_t *b, float *d)
{
    (void)element;
    UNROLL
    for (uint32_t half = 0; half < 2; half++)
        __asm__ volatile("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5}, {%6}, "
                         "{%0, %1, %2, %3};"
                         : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
                         : "r"(a[2 * half]), "r"(a[2 * half + 1]), "r"(b[half]));
}

#elif defined(__gfx908__) || defined(FRAGMENT_MFMA_1K)

typedef float fragment_floats __attribute__((ext_vector_type(4)));
typedef _Float16 fragment_halves __attribute__((ext_vector_type(4)));
typedef short fragment_shorts __attribute__((ext_vector_type(4)));
typedef short fragment_two __attribute__((ext_vector_type(2)));
struct fragment_words {
    uint32_t w[2];
};

FUNCTION void fragment_multiply(uint32_t element, const uint32_t *a, const uint32_t *b, float *d)
{
    fragment_floats sum = {d[0], d[1], d[2], d[3]};
    struct fragment_words x = {{a[0], a[1]}}, y = {{b[0], b[1]}};
    if (element == ELEMENT_F16)
        sum = __builtin_amdgcn_mfma_f32_16x16x16f16(__builtin_bit_cast(fragment_halves, x),
                                                    __builtin_bit_cast(fragment_halves, y), sum, 0, 0, 0);
    else {
#if defined(FRAGMENT_MFMA_1K)
        sum = __builtin_amdgcn_mfma_f32_16x16x16bf16_1k(__builtin_bit_cast(fragment_shorts, x),
                                                        __builtin_bit_cast(fragment_shorts, y), sum, 0, 0, 0);
#else /* each instruction takes two of a lane's four terms; which two does not matter to the sum */
        sum = __builtin_amdgcn_mfma_f32_16x16x8bf16(__builtin_bit_cast(fragment_two, x.w[0]),
                                                    __builtin_bit_cast(fragment_two, y.w[0]), sum, 0, 0, 0);
        sum = __builtin_amdgcn_mfma_f32_16x16x8bf16(__builtin_bit_cast(fragment_two, x.w[1]),
                                                    __builtin_bit_cast(fragment_two, y.w[1]), sum, 0, 0, 0);
#endif
    }
    d[0] = sum[0];
    d[1] = sum[1];
    d[2] = sum[2];
    d[3] = sum[3];
}

#elif defined(__CUDA_ARCH__) || defined(__HIP__)

FUNCTION void fragment_multiply(uint32_t element, const uint32_t *a, const uint32_t *b, float *d)
{
    (void)element, (void)a, (void)b, (void)d;
    assert_device(0);
}

#else

enum { FRAGMENT_LANE_WORDS = 6 }; /* four words of a, two of b */

FUNCTION float fragment_dot(uint32_t element, float sum, uint32_t x, uint32_t y)
{
    sum = math_fma(element_of(element, (uint16_t)x), element_of(element, (uint16_t)y), sum);
    return math_fma(element_of(element, (uint16_t)(x >> 16)), element_of(element, (uint16_t)(y >> 16)), sum);
}

/* Word number `word` of lane `from` of this warp. */
FUNCTION uint32_t fragment_of(uint32_t *words, uint32_t from, uint32_t word)
{
    return GET(words, (warp() * warp_size() + from) * FRAGMENT_LANE_WORDS + word);
}

FUNCTION void fragment_multiply_32(uint32_t element, uint32_t *words, float *d)
{
    uint32_t g = lane() / 4, q = lane() % 4;
    for (uint32_t i = 0; i < 8; i++) { /* handles terms 2i and 2i + 1 */
        uint32_t half = i / 4, at = i % 4;
        uint32_t top = fragment_of(words, 4 * g + at, 2 * half),
                 low = fragment_of(words, 4 * g + at, 2 * half + 1);
        uint32_t left = fragment_of(words, 8 * q + at, 4 + half),
                 right = fragment_of(words, 8 * q + 4 + at, 4 + half);
        d[0] = fragment_dot(element, d[0], top, left);
        d[1] = fragment_dot(element, d[1], top, right);
        d[2] = fragment_dot(element, d[2], low, left);
        d[3] = fragment_dot(element, d[3], low, right);
    }
}

FUNCTION void fragment_multiply_64(uint32_t element, uint32_t *words, float *d)
{
    uint32_t h = lane() / 16, column = lane() % 16;
    for (uint32_t i = 0; i < 8; i++) { /* handles terms 2i and 2i + 1 */
        uint32_t y = fragment_of(words, i / 2 * 16 + column, 4 + i % 2);
        for (uint32_t r = 0; r < 4; r++)
            d[r] = fragment_dot(element, d[r], fragment_of(words, i / 2 * 16 + 4 * h + r, i % 2), y);
    }
}

/* The emulated version, for blocks of 256 threads. */
FUNCTION void fragment_multiply(uint32_t element, const uint32_t *a, const uint32_t *b, float *d)
{
    SHARED(uint32_t, words, 256 * FRAGMENT_LANE_WORDS);
    uint32_t at = thread() * FRAGMENT_LANE_WORDS, count = warp_size() == 64 ? 2 : 4;
    for (uint32_t i = 0; i < count; i++)
        PUT(words, at + i, a[i]);
    PUT(words, at + 4, b[0]);
    PUT(words, at + 5, b[1]);
    warp_barrier();
    if (warp_size() == 64)
        fragment_multiply_64(element, words, d);
    else
        fragment_multiply_32(element, words, d);
    warp_barrier();
}

#endif
#endif
