/* Unpacks weights to fp32 with the bits of model/files/dequantise.c and model/files/nf4.c, which describe the
 * blocks. The functions unpack_… return four values of a matrix and serve other kernels, too.
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_UNPACK_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_UNPACK_K_H

#include "engine/gpu/kernels/dynamic_map.h"
#include "engine/gpu/kernels/four.h"

#define UNPACK_KERNELS(X) X(unpack_nf4, 256) X(unpack_blocks, 256)

/* Kinds of blocks, for host and kernels. */
enum {
    UNPACK_Q4_0,
    UNPACK_Q4_1,
    UNPACK_Q5_0,
    UNPACK_Q5_1,
    UNPACK_Q8_0,
    UNPACK_Q4_K,
    UNPACK_Q5_K,
    UNPACK_Q6_K,
    UNPACK_MXFP4
};

/* How many groups of four values each thread unpacks. */
enum { UNPACK_FOURS = 8 };

/* y[rows,width], with rows ldy values apart, gets values begin + row * ldx + column of codes x, as y_as.
 * Scales are absmax: f32, or if `nested` u8 with their own scales. begin and ldx are multiples of 4. */
struct unpack_nf4_args {
    uint64_t x, absmax, scales, y, begin, rows;
    uint32_t width, ldx, ldy, y_as, nested, wide;
};

/* y[rows,width], with rows ldy values apart, gets values begin + row * ldx + column of x, which holds blocks
 * of kind `kind` (UNPACK_…), as y_as. begin and ldx are multiples of 4. */
struct unpack_blocks_args {
    uint64_t x, y, begin, rows;
    uint32_t width, ldx, ldy, y_as, kind, wide;
};

#ifdef GPU_KERNELS

/* Four values as they were read, before anything is computed of them. Not a vector: words that are not used
 * take no registers. */
struct fetched {
    uint32_t w[4];
};

FUNCTION struct fetched fetched_words(uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3)
{
    struct fetched x;
    x.w[0] = w0;
    x.w[1] = w1;
    x.w[2] = w2;
    x.w[3] = w3;
    return x;
}

FUNCTION float nf4_value(uint32_t code)
{
    switch (code) {
    case 0:
        return -1.0f;
    case 1:
        return -0.6961928009986877f;
    case 2:
        return -0.5250730514526367f;
    case 3:
        return -0.39491748809814453f;
    case 4:
        return -0.28444138169288635f;
    case 5:
        return -0.18477343022823334f;
    case 6:
        return -0.09105003625154495f;
    case 7:
        return 0.0f;
    case 8:
        return 0.07958029955625534f;
    case 9:
        return 0.16093020141124725f;
    case 10:
        return 0.24611230194568634f;
    case 11:
        return 0.33791524171829224f;
    case 12:
        return 0.44070982933044434f;
    case 13:
        return 0.5626170039176941f;
    case 14:
        return 0.7229568362236023f;
    default:
        return 1.0f;
    }
}

/* Shared memory for nf4_values: the values of nf4_value, and from NF4_SCALES on those of dynamic_with_sign,
 * which only nested scales use. The block has 256 threads. */
enum { NF4_SCALES = 16, NF4_TABLE = NF4_SCALES + 256 };

FUNCTION void nf4_table(float *table, uint32_t nested)
{
    if (thread() < 16)
        PUT(table, thread(), nf4_value(thread()));
    if (nested)
        PUT(table, NF4_SCALES + thread(), dynamic_with_sign(thread()));
    barrier();
}

enum { NF4_ZEROS = 0x7777 }; /* codes of four zeros */

/* Reads the codes of n = 1 … 4 values from value i on, which is a multiple of 4, and the parts of which
 * nf4_values computes their scale. pairs: n is 4, and codes begin at an even address. */
FUNCTION struct fetched nf4_read(uint64_t codes, uint64_t absmax, uint64_t scales, uint32_t nested,
                                 uint64_t i, uint32_t n, uint32_t pairs)
{
    const uint8_t *bytes = POINTER(const uint8_t, codes + i / 2);
    uint32_t four = pairs ? LOAD(POINTER(const uint16_t, codes), i / 4)
                          : LOAD(bytes, 0) | (n > 2 ? (uint32_t)LOAD(bytes, 1) << 8 : 0u);
    /* Nested and plain scales make the same accesses, because a branch would wait for the loads. */
    uint32_t code = LOAD(POINTER(const uint8_t, absmax), nested ? i / 64 : 0);
    float scale = LOAD(POINTER(const float, nested ? scales : absmax), nested ? 1 + i / 64 / 256 : i / 64);
    return fetched_words(four, code, math_bits(scale), 0);
}

/* The scale of which `scale` has the bits, if `nested` times that of `code`, and more by `offset`. */
FUNCTION float nf4_scale(float *table, uint32_t nested, float offset, uint32_t code, uint32_t scale)
{
    if (!nested)
        return math_float(scale);
    float product = GET(table, NF4_SCALES + code) * math_float(scale);
    return product + offset;
}

/* Computes four values from what nf4_read returned. offset: with nested scales, what is added to each of
 * them. */
FUNCTION struct four nf4_values(float *table, uint32_t nested, float offset, struct fetched next)
{
    struct four x;
    float absmax = nf4_scale(table, nested, offset, next.w[1], next.w[2]);
    UNROLL
    for (uint32_t j = 0; j < 4; j++) /* the first value of a byte is in its upper half */
        x.v[j] = GET(table, next.w[0] >> 4 * (j ^ 1u) & 15u) * absmax;
    return x;
}

/* Position of the thread's f-th group of four values. The threads of a block unpack neighbouring groups. */
FUNCTION struct four_position unpack_place(uint32_t f, uint64_t rows, uint32_t width)
{
    return place_of(((uint64_t)block_x() * UNPACK_FOURS + f) * 256 + thread(), rows, width, 4);
}

KERNEL(unpack_nf4, 256)
{
    SHARED(float, table, NF4_TABLE);
    float offset = args.nested ? LOAD(POINTER(const float, args.scales), 0) : 0.0f;
    nf4_table(table, args.nested);
    ROLLED
    for (uint32_t f = 0; f < UNPACK_FOURS; f++) {
        struct four_position at = unpack_place(f, args.rows, args.width);
        if (at.n == 0)
            return;
        struct fetched x =
            nf4_read(args.x, args.absmax, args.scales, args.nested,
                     args.begin + at.row * args.ldx + at.column, at.n, args.x % 2 == 0 && at.n == 4);
        four_store_as(args.y_as, args.y, at.row * args.ldy + at.column, at.n, args.wide,
                      nf4_values(table, args.nested, offset, x));
    }
}

FUNCTION float half_at(const uint8_t *p, uint32_t i)
{
    return math_of_f16((uint16_t)(LOAD(p, i) | (uint32_t)LOAD(p, i + 1) << 8));
}

FUNCTION int32_t signed_byte(uint8_t x)
{
    return (int32_t)(x ^ 128u) - 128;
}

/* Values [j, j + 4) of a block; j is a multiple of 4. Q4_0 and Q4_1 blocks: d, (m for Q4_1,) then 16 bytes
 * with low nibbles first. Q5_0 and Q5_1 have the fifth bits in 4 bytes before these. */
FUNCTION struct four unpack_q45(const uint8_t *p, uint32_t j, uint32_t with_minimum, uint32_t fifth)
{
    struct four x;
    float d = half_at(p, 0), m = with_minimum ? half_at(p, 2) : 0.0f;
    uint32_t head = with_minimum ? 4 : 2, first = head + (fifth ? 4 : 0) + j % 16, shift = j / 16 * 4;
    uint32_t bits = fifth ? (uint32_t)LOAD(p, head + j / 8) >> j % 8 : 0;
    for (uint32_t l = 0; l < 4; l++) {
        int32_t q = (int32_t)(((uint32_t)LOAD(p, first + l) >> shift & 15u) | (bits >> l & 1u) << 4);
        x.v[l] = with_minimum ? (float)q * d + m : (float)(q - (fifth ? 16 : 8)) * d;
    }
    return x;
}

/* Q8_0 blocks: d, then 32 signed bytes. */
FUNCTION struct four unpack_q8(const uint8_t *p, uint32_t j)
{
    struct four x;
    float d = half_at(p, 0);
    for (uint32_t l = 0; l < 4; l++)
        x.v[l] = (float)signed_byte(LOAD(p, 2 + j + l)) * d;
    return x;
}

/* Q4_K blocks: d, dmin, 6-bit scales and minima of 8 sub-blocks in 12 bytes, 128 bytes of nibbles. Q5_K has
 * the fifth bits in 32 bytes before the nibbles. */
FUNCTION struct four unpack_k45(const uint8_t *p, uint32_t j, uint32_t fifth)
{
    struct four x;
    uint32_t sub = j / 32, at = j % 32, scale, minimum;
    if (sub < 4) {
        scale = LOAD(p, 4 + sub) & 63u;
        minimum = LOAD(p, 8 + sub) & 63u;
    } else {
        uint32_t both = LOAD(p, 8 + sub);
        scale = (both & 15u) | (uint32_t)LOAD(p, sub) >> 6 << 4;
        minimum = both >> 4 | (uint32_t)LOAD(p, 4 + sub) >> 6 << 4;
    }
    float d = half_at(p, 0) * (float)scale, m = half_at(p, 2) * (float)minimum;
    uint32_t first = (fifth ? 48 : 16) + sub / 2 * 32 + at;
    for (uint32_t l = 0; l < 4; l++) {
        uint32_t q = (uint32_t)LOAD(p, first + l) >> (sub % 2 * 4) & 15u;
        if (fifth)
            q |= ((uint32_t)LOAD(p, 16 + at + l) >> sub & 1u) << 4;
        x.v[l] = d * (float)q - m;
    }
    return x;
}

/* Q6_K blocks: 128 bytes of low nibbles, 64 bytes of high pairs, 16 signed scales for 16 values each, d. */
FUNCTION struct four unpack_q6_k(const uint8_t *p, uint32_t j)
{
    struct four x;
    uint32_t run = j / 16, half = run / 8, k = run / 2 % 4, at = 16 * (run % 2) + j % 16;
    float d = half_at(p, 208) * (float)signed_byte(LOAD(p, 192 + run));
    for (uint32_t l = 0; l < 4; l++) {
        uint32_t low = (uint32_t)LOAD(p, 64 * half + 32 * (k & 1u) + at + l) >> (k & 2u) * 2 & 15u;
        uint32_t high = (uint32_t)LOAD(p, 128 + 32 * half + at + l) >> 2 * k & 3u;
        x.v[l] = d * (float)((int32_t)(low | high << 4) - 32);
    }
    return x;
}

/* MXFP4 blocks: the exponent of the scale, then 16 bytes with low nibbles first, which are codes of E2M1. */
FUNCTION struct four unpack_mxfp4(const uint8_t *p, uint32_t j)
{
    struct four x;
    uint32_t e = LOAD(p, 0);
    float half = math_float(e < 2 ? 0x00200000u << e : (e - 1u) << 23);
    for (uint32_t l = 0; l < 4; l++) {
        uint32_t code = (uint32_t)LOAD(p, 1 + j % 16 + l) >> j / 16 * 4 & 15u, size = code & 7u;
        uint32_t twice = size < 4 ? size : (2u + (size & 1u)) << (size / 2 - 1);
        x.v[l] = math_float(math_bits((float)twice) | code >> 3 << 31) * half;
    }
    return x;
}

/* Values [i, i + 4) of blocks x; i is a multiple of 4. */
FUNCTION struct four unpack_four(uint32_t kind, const uint8_t *x, uint64_t i)
{
    uint64_t small = i / 32, large = i / 256;
    switch (kind) {
    case UNPACK_Q4_0:
        return unpack_q45(x + small * 18, (uint32_t)(i % 32), 0, 0);
    case UNPACK_Q4_1:
        return unpack_q45(x + small * 20, (uint32_t)(i % 32), 1, 0);
    case UNPACK_Q5_0:
        return unpack_q45(x + small * 22, (uint32_t)(i % 32), 0, 1);
    case UNPACK_Q5_1:
        return unpack_q45(x + small * 24, (uint32_t)(i % 32), 1, 1);
    case UNPACK_Q8_0:
        return unpack_q8(x + small * 34, (uint32_t)(i % 32));
    case UNPACK_Q4_K:
        return unpack_k45(x + large * 144, (uint32_t)(i % 256), 0);
    case UNPACK_Q5_K:
        return unpack_k45(x + large * 176, (uint32_t)(i % 256), 1);
    case UNPACK_MXFP4:
        return unpack_mxfp4(x + small * 17, (uint32_t)(i % 32));
    default:
        return unpack_q6_k(x + large * 210, (uint32_t)(i % 256));
    }
}

KERNEL(unpack_blocks, 256)
{
    ROLLED
    for (uint32_t f = 0; f < UNPACK_FOURS; f++) {
        struct four_position at = unpack_place(f, args.rows, args.width);
        if (at.n == 0)
            return;
        struct four x = unpack_four(args.kind, POINTER(const uint8_t, args.x),
                                    args.begin + at.row * args.ldx + at.column);
        four_store_as(args.y_as, args.y, at.row * args.ldy + at.column, at.n, args.wide, x);
    }
}

#endif
#endif
