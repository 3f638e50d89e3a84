#include "model/files/nf4.h"

#define LANES 4
#include "model/files/nf4_blocks.h"

#include <math.h>
#include <string.h>

#include "model/files/dynamic_map.h"

const float nf4_table[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

_Static_assert((int)BLOCK_VALUES == (int)NF4_BLOCK, "vectors go over the format's blocks");

static void bounds_init(float bounds[BOUNDS])
{
    for (int c = 0; c < BOUNDS; c++)
        bounds[c] = (nf4_table[c] + nf4_table[c + 1]) / 2.0f;
}

static float nf4_largest(const float *x, uint64_t n)
{
    float max = 0;
    for (uint64_t i = 0; i < n; i++)
        max = fabsf(x[i]) > max ? fabsf(x[i]) : max;
    return max;
}

static float clamped(float x)
{
    return !(x > -1.0f) ? -1.0f : x < 1.0f ? x : 1.0f;
}

/* Quantises the tensor's short last block, which bitsandbytes treats differently: its scale is never below
 * 1e-38, and its values are divided by the scale, not multiplied by its inverse. */
static void quantise_rest(const float *bounds, const float *values, uint64_t count, uint8_t *codes,
                          float *absmax)
{
    float scaled[NF4_BLOCK] = {0};
    uint8_t all[NF4_BLOCK / 2];
    *absmax = fmaxf(nf4_largest(values, count), 1e-38f);
    for (uint64_t i = 0; i < count; i++)
        scaled[i] = clamped(values[i] / *absmax);
    codes_of_block(bounds, scaled, 1.0f, all);
    memcpy(codes, all, nf4_code_bytes(count));
}

void nf4_quantise(const float *values, uint64_t count, uint8_t *codes, float *absmax)
{
    uint64_t full = count / NF4_BLOCK;
    float bounds[BOUNDS];
    bounds_init(bounds);
    if (__builtin_cpu_supports("avx2"))
        nf4_blocks_avx2(bounds, values, full, codes, absmax);
    else
        quantise_blocks(bounds, values, full, codes, absmax);
    if (count % NF4_BLOCK != 0)
        quantise_rest(bounds, values + full * NF4_BLOCK, count % NF4_BLOCK, codes + full * (NF4_BLOCK / 2),
                      absmax + full);
}

/* Adds fp32 in the order in which PyTorch adds on CPUs (the cascade of SumKernel.cpp: 4 running vectors of 8
 * lanes, or of 1 lane below 8 values, carried to a higher level every 2^power steps). The mean, and with it
 * every code, depends on this order. From 32768 values on PyTorch splits the sum among its threads, whose
 * number the file does not tell; this function keeps the order of one thread. */
static float cascade_sum(const float *x, uint64_t count)
{
    enum { STRIDE_MAX = 32, LEVELS = 4 };
    float sums[LEVELS][STRIDE_MAX] = {{0}}, total = 0;
    uint64_t width = count < 8 ? 1 : 8, stride = 4 * width, steps = count / stride;
    uint64_t whole = count / width * width, step = 0;
    unsigned power = 0;
    while (1ull << power < steps)
        power++;
    power = power / LEVELS > 4 ? power / LEVELS : 4;
    while (step + (1ull << power) <= steps) {
        for (uint64_t end = step + (1ull << power); step < end; step++)
            for (uint64_t i = 0; i < stride; i++)
                sums[0][i] += x[step * stride + i];
        for (unsigned level = 1; level < LEVELS; level++) {
            for (uint64_t i = 0; i < stride; i++)
                sums[level][i] += sums[level - 1][i];
            memset(sums[level - 1], 0, sizeof(sums[0]));
            if ((step & ((1ull << power) - 1) << level * power) != 0)
                break;
        }
    }
    for (uint64_t i = step * stride; i < steps * stride; i++)
        sums[0][i % stride] += x[i];
    for (int level = 1; level < LEVELS; level++)
        for (uint64_t i = 0; i < stride; i++)
            sums[0][i] += sums[level][i];
    for (uint64_t i = steps * stride; i < whole; i++)
        sums[0][i % width] += x[i];
    for (uint64_t i = width; i < stride; i++)
        sums[0][i % width] += sums[0][i];
    for (uint64_t i = whole; i < count; i++)
        total += x[i];
    for (uint64_t i = 0; i < width; i++)
        total += sums[0][i];
    return total;
}

enum { NESTED_PLACES = 65536 };

/* bitsandbytes looks a value in [-1, 1] up in a table of 65536 entries; each entry has the code nearest to
 * its grid point. Values near 0, where codes are denser than the grid, therefore share codes. */
static void nested_table(const float *map, uint8_t *table)
{
    int code = 0; /* the first code whose midpoint to the next one is not below the grid point */
    for (int place = 0; place < NESTED_PLACES; place++) {
        float grid = 2.0f * (float)place / 65535.0f - 1.0f;
        while (code < DYNAMIC_MAP_SIZE - 1 && grid > (map[code] + map[code + 1]) * 0.5f)
            code++;
        table[place] = (uint8_t)code;
    }
}

static uint8_t nested_code(const uint8_t *table, float value)
{
    return table[(int)fmaf((value + 1.0f) * 0.5f, 65535.0f, 0.5f)];
}

void nf4_nest(const float *absmax, uint64_t blocks, uint8_t *codes, float *scales)
{
    float map[DYNAMIC_MAP_SIZE], mean = blocks == 0 ? 0 : cascade_sum(absmax, blocks) / (float)blocks;
    uint8_t table[NESTED_PLACES];
    dynamic_map(true, map);
    nested_table(map, table);
    *scales++ = mean;
    for (uint64_t begin = 0; begin < blocks; begin += NF4_NESTED_BLOCK) {
        uint64_t n = blocks - begin < NF4_NESTED_BLOCK ? blocks - begin : NF4_NESTED_BLOCK;
        float rest[NF4_NESTED_BLOCK];
        for (uint64_t i = 0; i < n; i++)
            rest[i] = absmax[begin + i] - mean;
        float max = nf4_largest(rest, n), inverse = 1.0f / max;
        *scales++ = max;
        if (max == 0.0f)
            memset(codes + begin, 0, n);
        for (uint64_t i = 0; i < n && max != 0.0f; i++)
            codes[begin + i] = nested_code(table, clamped(rest[i] * inverse));
    }
}

void nf4_unnest(const float *map, const uint8_t *codes, const float *scales, uint64_t begin, uint64_t count,
                float *absmax)
{
    for (uint64_t i = 0; i < count; i++) {
        float product = map[codes[begin + i]] * scales[1 + (begin + i) / NF4_NESTED_BLOCK];
        absmax[i] = product + scales[0];
    }
}

void nf4_dequantise(const uint8_t *codes, const float *absmax, uint64_t count, float *values)
{
    for (uint64_t i = 0; i < count; i++) {
        int code = i % 2 == 0 ? codes[i / 2] >> 4 : codes[i / 2] & 15;
        values[i] = nf4_table[code] * absmax[i / NF4_BLOCK];
    }
}
