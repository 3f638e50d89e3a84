/* Small 16-bit products by a card's matrix units, which all lanes of a warp compute together: d += a b, with
 * sums in fp32.
 *
 *   cards               instruction                                      types
 *   sm_75               mma.m16n8k8, two halves of the terms             fp16
 *   sm_80 and later     mma.m16n8k16                                     fp16, bf16
 *   gfx908              v_mfma_f32_16x16x16f16, two of …_16x16x8bf16     fp16, bf16
 *   gfx90a, 942, 950    v_mfma_f32_16x16x16f16, …_16x16x16bf16_1k        fp16, bf16
 *   gfx11.., gfx12..    v_wmma_f32_16x16x16_f16, …_bf16                  fp16, bf16
 *
 * No other card has fragments here: Volta's m8n8k4 has a layout of its own and is left out. FRAGMENT_BF16 and
 * FRAGMENT_F16 tell what the compiler's target has; the host finds the same in the code object
 * (gpu_code.matrix). On other targets, products round their operands and multiply in fp32.
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
 * RDNA's warps of 32 (rdna()) multiply two fragments of b at once. Lane l with h = l / 16 and i = l % 16 has
 *   a[16,16]  words (row i, terms 0 … 15); in RDNA 4 (row i, terms 8h … 8h + 7)
 *   b[16,8]   of the second operand, which two fragments make together, the words of one column in the same
 *             order: column c of fragment f, where 8f + c = fragment_wmma_line(i)
 *   d[16,8]   floats (row i, columns 4h … 4h + 3)
 * The instruction gets b's columns as the rows of its first matrix and a's rows as the columns of its second,
 * so a lane's sums are of one row. (ROCm/amd_matrix_instruction_calculator; gpuopen.com/learn:
 * wmma_on_rdna3, using_matrix_core_amd_rdna4.)
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
#elif defined(__gfx908__) || defined(FRAGMENT_MFMA_1K) || defined(__GFX11__) || defined(__GFX12__)
#define FRAGMENT_BF16 1
#define FRAGMENT_F16 1
#elif defined(__HIP__)
#define FRAGMENT_BF16 0
#define FRAGMENT_F16 0
#else
#define FRAGMENT_BF16 1
#define FRAGMENT_F16 1
#endif

/* Words of a fragment of a and of b. */
#if defined(__CUDA_ARCH__) || (defined(__HIP__) && !defined(__GFX11__))
enum { FRAGMENT_A = 4, FRAGMENT_B = 2 };
#else
enum { FRAGMENT_A = 8, FRAGMENT_B = 4 };
#endif

/* Eight 16-bit values, which move in one access. */
struct fragment_eight {
    uint32_t w[4];
} __attribute__((aligned(16)));

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

/* A word of the lower halves of two words, and one of their upper halves; `first` gives the lower half. */
FUNCTION uint32_t fragment_lower(uint32_t first, uint32_t second)
{
#if defined(__HIP__)
    return __builtin_amdgcn_perm(second, first, 0x05040100);
#else
    return (first & 0xffffu) | second << 16;
#endif
}

FUNCTION uint32_t fragment_upper(uint32_t first, uint32_t second)
{
#if defined(__HIP__)
    return __builtin_amdgcn_perm(second, first, 0x07060302);
#else
    return first >> 16 | (second & 0xffff0000u);
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

/* Loads `count` fragments of b, one or two; the second has the 8 columns that follow. With rdna(), b has room
 * for two in any case. */
FUNCTION void fragment_take_b(uint32_t *tile, uint32_t at, uint32_t ld, uint32_t swizzle, uint32_t chunk,
                              uint32_t across, uint32_t count, uint32_t (*b)[FRAGMENT_B])
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

/* Of the 16 columns of two fragments of b, the one that lane l and lane l + 16 hold, where i = l % 16. The
 * instruction gives lane half h, as sum number v, row 2v + h of its first matrix (RDNA 4: row 8h + v). That
 * row must be column 4h + v % 4 of fragment v / 4. */
FUNCTION uint32_t fragment_wmma_line(uint32_t i)
{
    return rdna() == 3 ? i / 8 * 8 + i % 2 * 4 + i / 2 % 4 : i / 4 % 2 * 8 + i / 8 * 4 + i % 4;
}

/* This lane's words of an operand of which it holds one line. */
FUNCTION void fragment_wmma_take(struct fragment_tile from, uint32_t line, uint32_t *words)
{
    UNROLL
    for (uint32_t c = 0; c < (rdna() == 3 ? 2 : 1); c++) {
        uint32_t term = 8 * (rdna() == 3 ? c : lane() / 16);
        if (from.across) {
            UNROLL
            for (uint32_t w = 0; w < 4; w++)
                words[4 * c + w] = fragment_word(from, term + 2 * w, line);
            continue;
        }
        struct fragment_eight eight = GET((struct fragment_eight *)(from.tile + from.at + line * from.ld),
                                          fragment_chunk(line, from.chunk + term / 8, from.swizzle));
        UNROLL
        for (uint32_t w = 0; w < 4; w++)
            words[4 * c + w] = eight.w[w];
    }
}

FUNCTION void fragment_take_a(uint32_t *tile, uint32_t at, uint32_t ld, uint32_t swizzle, uint32_t chunk,
                              uint32_t across, uint32_t *a)
{
    struct fragment_tile from = {tile, at, ld, swizzle, chunk, across};
    if (rdna() != 0) {
        fragment_wmma_take(from, lane() % 16, a);
        return;
    }
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
                              uint32_t across, uint32_t count, uint32_t (*b)[FRAGMENT_B])
{
    struct fragment_tile from = {tile, at, ld, swizzle, chunk, across};
    if (rdna() != 0) { /* of one fragment alone, the lanes of the other have columns that nobody reads */
        fragment_wmma_take(from, fragment_wmma_line(lane() % 16) % (8 * count), b[0]);
        return;
    }
    uint32_t wide = warp_size() == 64, line = wide ? lane() % 16 : lane() / 4;
    uint32_t term = wide ? lane() / 16 * 4 : lane() % 4 * 2, far = term + (wide ? 2 : 8);
    UNROLL
    for (uint32_t i = 0; i < count; i++, line += fragment_columns()) {
        b[i][0] = fragment_word(from, term, line);
        b[i][1] = fragment_word(from, far, line);
    }
}

#endif

/* A fragment of a that waits in registers has four words in each lane, from a tile whose lines are not
 * swizzled. These are all words but on RDNA 3, where each half of the warp keeps the words of 8 terms and
 * gets the others from the other half before it multiplies. */
FUNCTION void fragment_take_kept(uint32_t *tile, uint32_t at, uint32_t ld, uint32_t kept[4])
{
    if (rdna() != 3) {
        fragment_take_a(tile, at, ld, 0, 0, 0, kept);
        return;
    }
    struct fragment_eight eight = GET((struct fragment_eight *)(tile + at + lane() % 16 * ld), lane() / 16);
    UNROLL
    for (uint32_t w = 0; w < 4; w++)
        kept[w] = eight.w[w];
}

FUNCTION void fragment_of_kept(const uint32_t kept[4], uint32_t *a)
{
    UNROLL
    for (uint32_t w = 0; w < 4; w++) {
        a[w] = kept[w];
        if (rdna() == 3) {
            uint32_t other = math_bits(shuffle_xor(math_float(kept[w]), 16));
            a[w] = lane() < 16 ? kept[w] : other;
            a[4 + w] = lane() < 16 ? other : kept[w];
        }
    }
}

/* Loads fragment_across() fragments of b from a tile whose rows are the terms: `at` is the first row, rows
 * are ld words apart, and each word holds two columns. NVIDIA's instruction turns blocks, so the fragments'
 * columns follow each other there. Elsewhere, of two fragments, the first has the even and the second the odd
 * columns among twice fragment_columns(); of four, the first two have the even and the others the odd ones
 * among four times as many. */
FUNCTION uint32_t fragment_across(void)
{
    return rdna() != 0 ? 4 : 2;
}

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 750

FUNCTION void fragment_take_across(uint32_t *tile, uint32_t at, uint32_t ld, uint32_t (*b)[FRAGMENT_B])
{
    fragment_take_b(tile, at, ld, 0, 0, 1, 2, b);
}

/* The column that number `column` of fragment j is, counted from the first column of fragment 0. */
FUNCTION uint32_t fragment_across_column(uint32_t j, uint32_t column)
{
    return j * fragment_columns() + column;
}

#else

FUNCTION void fragment_take_across(uint32_t *tile, uint32_t at, uint32_t ld, uint32_t (*b)[FRAGMENT_B])
{
#if !defined(__CUDA_ARCH__)
    if (rdna() != 0) {
        tile += fragment_wmma_line(lane() % 16) + (rdna() == 3 ? 0 : lane() / 16 * 8 * ld);
        UNROLL
        for (uint32_t w = 0; w < (rdna() == 3 ? 8 : 4); w++) {
            uint32_t low = GET(tile, at + 2 * w * ld), high = GET(tile, at + (2 * w + 1) * ld);
            b[0][w] = fragment_lower(low, high);
            b[2][w] = fragment_upper(low, high);
        }
        return;
    }
#endif
    /* distance between a lane's first two and other two terms */
    uint32_t word[4], next = warp_size() == 64 ? 2 : 8;
    tile += warp_size() == 64 ? lane() / 16 * 4 * ld + lane() % 16 : lane() % 4 * 2 * ld + lane() / 4;
    word[0] = GET(tile, at);
    word[1] = GET(tile, at + ld);
    word[2] = GET(tile, at + next * ld);
    word[3] = GET(tile, at + (next + 1) * ld);
    UNROLL
    for (uint32_t i = 0; i < 2; i++) {
        b[0][i] = fragment_lower(word[2 * i], word[2 * i + 1]);
        b[1][i] = fragment_upper(word[2 * i], word[2 * i + 1]);
    }
}

FUNCTION uint32_t fragment_across_column(uint32_t j, uint32_t column)
{
    const uint32_t group = fragment_across() == 4 ? j % 2 : j / 2,
                   odd = fragment_across() == 4 ? j / 2 : j % 2;
    return group * 2 * fragment_columns() + 2 * column + odd;
}

#endif

/* Row and column of value r of a lane's four values of d. A lane has equally many values of each of
 * fragment_rows() rows, and shares these rows with the lanes whose numbers differ from its own in bits of
 * fragment_sharing() alone. */
FUNCTION uint32_t fragment_row(uint32_t r)
{
    if (rdna() != 0)
        return lane() % 16;
    return warp_size() == 64 ? lane() / 16 * 4 + r : lane() / 4 + r / 2 * 8;
}

FUNCTION uint32_t fragment_column(uint32_t r)
{
    if (rdna() != 0)
        return lane() / 16 * 4 + r;
    return warp_size() == 64 ? lane() % 16 : lane() % 4 * 2 + r % 2;
}

FUNCTION uint32_t fragment_rows(void)
{
    return rdna() != 0 ? 1 : warp_size() == 64 ? 4 : 2;
}

FUNCTION uint32_t fragment_sharing(void)
{
    return rdna() != 0 ? 16 : warp_size() == 64 ? 15 : 3;
}

/* fragment_multiply_one(element, a, b, d), and with rdna() fragment_multiply_wmma(element, x, y, d), the
 * instruction itself. All lanes of the warp must take part. */
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800

FUNCTION void fragment_multiply_one(uint32_t element, const uint32_t *a, const uint32_t *b, float *d)
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

FUNCTION void fragment_multiply_one(uint32_t element, const uint32_t *a, const uint32_t *b, float *d)
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

FUNCTION void fragment_multiply_one(uint32_t element, const uint32_t *a, const uint32_t *b, float *d)
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

#elif defined(__GFX11__) || defined(__GFX12__)

typedef float fragment_floats __attribute__((ext_vector_type(8)));
typedef _Float16 fragment_halves __attribute__((ext_vector_type(2 * FRAGMENT_A)));
typedef short fragment_shorts __attribute__((ext_vector_type(2 * FRAGMENT_A)));
struct fragment_words {
    uint32_t w[FRAGMENT_A];
};
#if defined(__GFX11__)
#define FRAGMENT_WMMA(type) __builtin_amdgcn_wmma_f32_16x16x16_##type##_w32
#else
#define FRAGMENT_WMMA(type) __builtin_amdgcn_wmma_f32_16x16x16_##type##_w32_gfx12
#endif

FUNCTION void fragment_multiply_wmma(uint32_t element, const uint32_t *x, const uint32_t *y, float *d)
{
    fragment_floats sum;
    struct fragment_words first, second;
    UNROLL
    for (uint32_t v = 0; v < 8; v++)
        sum[v] = d[v];
    UNROLL
    for (uint32_t w = 0; w < FRAGMENT_A; w++) {
        first.w[w] = x[w];
        second.w[w] = y[w];
    }
    if (element == ELEMENT_F16)
        sum = FRAGMENT_WMMA(f16)(__builtin_bit_cast(fragment_halves, first),
                                 __builtin_bit_cast(fragment_halves, second), sum);
    else
        sum = FRAGMENT_WMMA(bf16)(__builtin_bit_cast(fragment_shorts, first),
                                  __builtin_bit_cast(fragment_shorts, second), sum);
    UNROLL
    for (uint32_t v = 0; v < 8; v++)
        d[v] = sum[v];
}

#elif defined(__CUDA_ARCH__) || defined(__HIP__)

FUNCTION void fragment_multiply_one(uint32_t element, const uint32_t *a, const uint32_t *b, float *d)
{
    (void)element, (void)a, (void)b, (void)d;
    assert_device(0);
}

#else

enum { FRAGMENT_LANE_WORDS = 8 }; /* most words of one operand, or a's and, from word 4 on, b's */

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

/* Gives each lane's words to its warp, for blocks of 256 threads. */
FUNCTION void fragment_give(uint32_t *words, uint32_t from, uint32_t count, const uint32_t *mine)
{
    for (uint32_t i = 0; i < count; i++)
        PUT(words, thread() * FRAGMENT_LANE_WORDS + from + i, mine[i]);
}

FUNCTION void fragment_multiply_one(uint32_t element, const uint32_t *a, const uint32_t *b, float *d)
{
    SHARED(uint32_t, words, 256 * FRAGMENT_LANE_WORDS);
    fragment_give(words, 0, warp_size() == 64 ? 2 : 4, a);
    fragment_give(words, 4, 2, b);
    warp_barrier();
    if (warp_size() == 64)
        fragment_multiply_64(element, words, d);
    else
        fragment_multiply_32(element, words, d);
    warp_barrier();
}

/* Terms 2i and 2i + 1 of a line of the matrix whose words the warp gave. RDNA 3 asks that its halves give the
 * same. */
FUNCTION uint32_t fragment_terms(uint32_t *words, uint32_t line, uint32_t i)
{
    if (rdna() == 4)
        return fragment_of(words, line + i / 4 * 16, i % 4);
    assert_device(fragment_of(words, line, i) == fragment_of(words, line + 16, i));
    return fragment_of(words, line, i);
}

/* WMMA by AMD's definition: d has rows of the first matrix times column lane % 16 of the second. */
FUNCTION void fragment_multiply_wmma(uint32_t element, const uint32_t *x, const uint32_t *y, float *d)
{
    SHARED(uint32_t, words, 256 * FRAGMENT_LANE_WORDS);
    uint32_t column[8], count = rdna() == 3 ? 8 : 4;
    fragment_give(words, 0, count, y);
    warp_barrier();
    for (uint32_t i = 0; i < 8; i++)
        column[i] = fragment_terms(words, lane() % 16, i);
    warp_barrier();
    fragment_give(words, 0, count, x);
    warp_barrier();
    for (uint32_t v = 0; v < 8; v++) {
        uint32_t row = rdna() == 3 ? 2 * v + lane() / 16 : lane() / 16 * 8 + v;
        for (uint32_t i = 0; i < 8; i++)
            d[v] = fragment_dot(element, d[v], fragment_terms(words, row, i), column[i]);
    }
    warp_barrier();
}

#endif

/* d += a b for `count` fragments of b, one or two. All lanes of the warp must take part. */
FUNCTION void fragment_multiply(uint32_t element, const uint32_t *a, uint32_t (*b)[FRAGMENT_B],
                                uint32_t count, float (*d)[4])
{
#if !defined(__CUDA_ARCH__) && (!defined(__HIP__) || defined(__GFX11__) || defined(__GFX12__))
    if (rdna() != 0) {
        float sums[8];
        UNROLL
        for (uint32_t i = 0; i < 8; i++)
            sums[i] = i < 4 * count ? d[i / 4][i % 4] : 0.0f;
        fragment_multiply_wmma(element, b[0], a, sums);
        UNROLL
        for (uint32_t i = 0; i < 4 * count; i++)
            d[i / 4][i % 4] = sums[i];
        return;
    }
#endif
#if !defined(__GFX11__) && !defined(__GFX12__)
    UNROLL
    for (uint32_t i = 0; i < count; i++)
        fragment_multiply_one(element, a, b[i], d[i]);
#endif
}

#endif
