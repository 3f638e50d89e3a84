/* Kernels for the norm of gradients and for the optimiser's steps. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_OPTIMIZER_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_OPTIMIZER_K_H

#include "engine/gpu/kernels/dynamic_map.h"
#include "engine/gpu/kernels/four.h"
#include "engine/gpu/kernels/team.h"

#define OPTIMIZER_KERNELS(X) X(square_sums, 256) X(sums_add, 256) X(adamw, 256) X(adamw8, 256)

/* partial[block], f64: the sum of squares of the block's `per_block` values (a multiple of 1024) of x[count]
 */
struct square_sums_args {
    uint64_t x, partial, count, per_block;
    uint32_t wide;
};

/* *out = the sum of partial[count], in one block. */
struct sums_add_args {
    uint64_t partial, out;
    uint32_t count;
};

/* For the scalars see engine/device/scalars.h. */
struct adamw_args {
    uint64_t value, gradient, moment1, moment2, count;
    float decay, beta1, beta2, one_minus_beta1, one_minus_beta2, inverse_root_correction2, eps, step_size,
        grad_scale;
    uint32_t wide;
};

/* A block of threads computes the map of 8-bit codes, then handles one block of 256 values after the other.
 */
struct adamw8_args {
    uint64_t code1, code2, absmax1, absmax2;
    struct adamw_args plain; /* used are value, gradient, count and the scalars */
};

#ifdef GPU_KERNELS

KERNEL(square_sums, 256)
{
    SHARED(double, shared, TEAM_SHARED(256));
    uint64_t begin = block_x() * args.per_block, end = begin + args.per_block;
    double sum = 0.0;
    end = end < args.count ? end : args.count;
    for (uint64_t at = begin + thread() * 4; at < end; at += 1024) {
        uint32_t n = end - at < 4 ? (uint32_t)(end - at) : 4;
        struct four a = four_load(POINTER(const float, args.x), at, n, args.wide);
        for (uint32_t j = 0; j < 4; j++)
            sum += (double)a.v[j] * (double)a.v[j];
    }
    sum = team_sum_wide(team_block(256, shared), sum);
    if (thread() == 0)
        STORE(POINTER(double, args.partial), block_x(), sum);
}

KERNEL(sums_add, 256)
{
    SHARED(double, shared, TEAM_SHARED(256));
    double sum = 0.0;
    for (uint32_t i = thread(); i < args.count; i += 256)
        sum += LOAD(POINTER(const double, args.partial), i);
    sum = team_sum_wide(team_block(256, shared), sum);
    if (thread() == 0)
        STORE(POINTER(double, args.out), 0, sum);
}

struct adamw_state {
    float value, moment1, moment2;
};

/* Gives the same bits as the CPU's kernel with fused multiply-add. */
FUNCTION struct adamw_state adamw_step(const struct adamw_args args, struct adamw_state s, float gradient)
{
    float g = gradient * args.grad_scale;
    s.moment1 = math_fma(s.moment1, args.beta1, g * args.one_minus_beta1);
    s.moment2 = math_fma(s.moment2, args.beta2, g * g * args.one_minus_beta2);
    float size = math_fma(math_sqrt(s.moment2), args.inverse_root_correction2, args.eps);
    s.value = math_fma(s.value, args.decay, -(args.step_size * s.moment1 / size));
    return s;
}

KERNEL(adamw, 256)
{
    struct four_position at = place_in_array(args.count);
    float *value = POINTER(float, args.value), *moment1 = POINTER(float, args.moment1);
    float *moment2 = POINTER(float, args.moment2);
    struct four p = four_load(value, at.column, at.n, args.wide);
    struct four g = four_load(POINTER(const float, args.gradient), at.column, at.n, args.wide);
    struct four m = four_load(moment1, at.column, at.n, args.wide);
    struct four v = four_load(moment2, at.column, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++) {
        struct adamw_state s;
        s.value = p.v[j];
        s.moment1 = m.v[j];
        s.moment2 = v.v[j];
        s = adamw_step(args, s, g.v[j]);
        p.v[j] = s.value;
        m.v[j] = s.moment1;
        v.v[j] = s.moment2;
    }
    four_store(value, at.column, at.n, args.wide, p);
    four_store(moment1, at.column, at.n, args.wide, m);
    four_store(moment2, at.column, at.n, args.wide, v);
}

/* The code of the value nearest to x, the lower of two that are equally near. map[256] rises from the code of
 * 0, `zero`, on. Codes below `zero` mirror those above, except that no code stands for -1. Magnitudes compare
 * in the same order as their bits. NaN gets code 0. */
FUNCTION uint8_t dynamic_code(float *map, uint32_t zero, float x)
{
    uint32_t bits = math_bits(x), negative = bits >> 31, size = (bits & 0x7fffffffu) + negative;
    uint32_t low = 0,
             high = 255 -
                    zero; /* the number of boundaries below the magnitude is at least low and at most high */
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return 0;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        float bound = (GET(map, zero + middle) + GET(map, zero + middle + 1)) / 2.0f;
        if (size > math_bits(bound))
            low = middle + 1;
        else
            high = middle;
    }
    if (!negative)
        return (uint8_t)(zero + low);
    return (uint8_t)(zero - (low > zero ? zero : low));
}

/* Encodes the thread's moment; returns the block's new largest magnitude. */
FUNCTION float adamw8_encode(float *map, uint32_t zero, struct team team, float moment, uint32_t there,
                             uint8_t *code, uint64_t at)
{
    float size = moment < 0.0f ? -moment : moment;
    float absmax = team_max(team, size == size ? size : 0.0f);
    if (there)
        STORE(code, at, dynamic_code(map, zero, moment * (1.0f / (absmax > 1e-38f ? absmax : 1e-38f))));
    return absmax;
}

/* Updates one block of values; thread t handles value t. */
FUNCTION void adamw8_block(const struct adamw8_args args, uint64_t block, float *with_sign,
                           float *without_sign, struct team team)
{
    uint64_t at = block * 256 + thread();
    uint32_t there = at < args.plain.count;
    float *value = POINTER(float, args.plain.value);
    float *absmax1 = POINTER(float, args.absmax1), *absmax2 = POINTER(float, args.absmax2);
    uint8_t *code1 = POINTER(uint8_t, args.code1), *code2 = POINTER(uint8_t, args.code2);
    struct adamw_state s;
    s.value = s.moment1 = s.moment2 = 0.0f;
    if (there) {
        s.value = LOAD(value, at);
        s.moment1 = GET(with_sign, LOAD(code1, at)) * LOAD(absmax1, block);
        s.moment2 = GET(without_sign, LOAD(code2, at)) * LOAD(absmax2, block);
        s = adamw_step(args.plain, s, LOAD(POINTER(const float, args.plain.gradient), at));
        STORE(value, at, s.value);
    }
    float max1 = adamw8_encode(with_sign, 127, team, s.moment1, there, code1, at);
    float max2 = adamw8_encode(without_sign, 0, team, s.moment2, there, code2, at);
    if (thread() == 0) {
        STORE(absmax1, block, max1);
        STORE(absmax2, block, max2);
    }
}

KERNEL(adamw8, 256)
{
    SHARED(float, with_sign, 256);
    SHARED(float, without_sign, 256);
    SHARED(double, shared, TEAM_SHARED(256));
    PUT(with_sign, thread(), dynamic_with_sign(thread()));
    PUT(without_sign, thread(), dynamic_without_sign(thread()));
    barrier();
    for (uint64_t block = block_x(); block * 256 < args.plain.count; block += blocks_x())
        adamw8_block(args, block, with_sign, without_sign, team_block(256, shared));
}

#endif
#endif
