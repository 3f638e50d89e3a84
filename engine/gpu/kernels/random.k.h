/* Kernels of dropout and of noise on embeddings. Their random numbers are functions of (seed, step, row id,
 * position, feature) with the same bits as on CPUs (see op.h).
 */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_RANDOM_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_RANDOM_K_H

#include "engine/gpu/kernels/four.h"

#define RANDOM_KERNELS(X) X(dropout, 256) X(dropout_backward, 256) X(embed_noise, 256)

/* y = mask * x * scale; a feature is kept if its 16 bits are at most keep_last */
struct dropout_args {
    uint64_t x, positions, row_ids, step, y;
    uint32_t key0, key1, site; /* of struct op_dropout */
    uint32_t tokens, width, keep_last, wide;
    float scale;
};

/* dx += mask * t * scale unless dx is 0, then t = mask * x * scale */
struct dropout_backward_args {
    uint64_t x, positions, row_ids, step, t, dx;
    uint32_t key0, key1, site;
    uint32_t tokens, width, keep_last, wide;
    float scale;
};

/* x[t] += alpha / sqrt(length * width) * u, with random u (struct op_embed_noise) */
struct embed_noise_args {
    uint64_t x, row_start, row_ids, step;
    uint32_t key0, key1;
    uint32_t rows, tokens, width, wide;
    float alpha;
};

#ifdef GPU_KERNELS

struct philox {
    uint32_t v[4];
};

/* Philox4x32-10 (Salmon et al. 2011). */
FUNCTION struct philox philox_of(uint32_t key0, uint32_t key1, uint32_t c0, uint32_t c1, uint32_t c2,
                                 uint32_t c3)
{
    struct philox out;
    for (uint32_t round = 0; round < 10; round++) {
        uint64_t a = (uint64_t)c0 * 0xD2511F53u, b = (uint64_t)c2 * 0xCD9E8D57u;
        c0 = (uint32_t)(b >> 32) ^ c1 ^ key0;
        c1 = (uint32_t)b;
        c2 = (uint32_t)(a >> 32) ^ c3 ^ key1;
        c3 = (uint32_t)a;
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    out.v[0] = c0;
    out.v[1] = c1;
    out.v[2] = c2;
    out.v[3] = c3;
    return out;
}

/* The factors of features 4 * half … 4 * half + 3 of a group of eight. */
FUNCTION struct four dropout_factors(struct philox numbers, uint32_t half, uint32_t keep_last, float scale)
{
    struct four factors;
    for (uint32_t j = 0; j < 4; j++) {
        uint32_t number = half == 0 ? numbers.v[j / 2] : numbers.v[2 + j / 2];
        factors.v[j] = (number >> (j % 2 * 16) & 0xffffu) <= keep_last ? scale : 0.0f;
    }
    return factors;
}

FUNCTION uint32_t half_left(uint32_t n, uint32_t half)
{
    return n < 4 * half ? 0 : n - 4 * half < 4 ? n - 4 * half : 4;
}

KERNEL(dropout, 256)
{
    struct four_position at = place_of_group(args.tokens, args.width, 8, 256);
    if (at.n == 0)
        return;
    struct philox numbers =
        philox_of(args.key0, args.key1, LOAD(POINTER(const uint32_t, args.positions), at.row),
                  LOAD(POINTER(const uint32_t, args.row_ids), at.row),
                  LOAD(POINTER(const uint32_t, args.step), 0), args.site + (uint32_t)(at.column / 8));
    UNROLL
    for (uint32_t half = 0; half < 2; half++) {
        uint64_t i = at.row * args.width + at.column + 4 * half;
        uint32_t n = half_left(at.n, half);
        struct four factors = dropout_factors(numbers, half, args.keep_last, args.scale);
        struct four a = four_load(POINTER(const float, args.x), i, n, args.wide);
        for (uint32_t j = 0; j < 4; j++)
            a.v[j] *= factors.v[j];
        four_store(POINTER(float, args.y), i, n, args.wide, a);
    }
}

KERNEL(dropout_backward, 256)
{
    struct four_position at = place_of_group(args.tokens, args.width, 8, 256);
    if (at.n == 0)
        return;
    struct philox numbers =
        philox_of(args.key0, args.key1, LOAD(POINTER(const uint32_t, args.positions), at.row),
                  LOAD(POINTER(const uint32_t, args.row_ids), at.row),
                  LOAD(POINTER(const uint32_t, args.step), 0), args.site + (uint32_t)(at.column / 8));
    float *t = POINTER(float, args.t), *dx = POINTER(float, args.dx);
    UNROLL
    for (uint32_t half = 0; half < 2; half++) {
        uint64_t i = at.row * args.width + at.column + 4 * half;
        uint32_t n = half_left(at.n, half);
        struct four factors = dropout_factors(numbers, half, args.keep_last, args.scale);
        struct four a = four_load(POINTER(const float, args.x), i, n, args.wide);
        if (args.dx != 0) {
            struct four d = four_load(dx, i, n, args.wide), g = four_load(t, i, n, args.wide);
            for (uint32_t j = 0; j < 4; j++)
                d.v[j] = math_fma(g.v[j], factors.v[j], d.v[j]);
            four_store(dx, i, n, args.wide, d);
        }
        for (uint32_t j = 0; j < 4; j++)
            a.v[j] *= factors.v[j];
        four_store(t, i, n, args.wide, a);
    }
}

/* The row that contains `token`: the last one that begins at or before it. */
FUNCTION uint32_t row_of_token(const uint32_t *row_start, uint32_t rows, uint32_t token)
{
    uint32_t low = 0, high = rows;
    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;
        if (LOAD(row_start, middle) <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Computes in double, as on CPUs, so that all devices round the same number. */
KERNEL(embed_noise, 256)
{
    struct four_position at = place_in_rows(args.tokens, args.width);
    if (at.n == 0)
        return;
    const uint32_t *row_start = POINTER(const uint32_t, args.row_start);
    uint32_t token = (uint32_t)at.row, row = row_of_token(row_start, args.rows, token);
    uint32_t begin = LOAD(row_start, row), length = LOAD(row_start, row + 1) - begin;
    struct philox numbers =
        philox_of(args.key0, args.key1, token - begin, LOAD(POINTER(const uint32_t, args.row_ids), token),
                  LOAD(POINTER(const uint32_t, args.step), 0), 0xfffff000u | (uint32_t)(at.column / 4));
    double size = (double)args.alpha / math_sqrt_wide((double)length * (double)args.width);
    uint64_t i = at.row * args.width + at.column;
    struct four a = four_load(POINTER(const float, args.x), i, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++) {
        double u = (double)(numbers.v[j] >> 8) * 1.1920928955078125e-07 - 1.0;
        a.v[j] = (float)((double)a.v[j] + size * u);
    }
    four_store(POINTER(float, args.x), i, at.n, args.wide, a);
}

#endif
#endif
