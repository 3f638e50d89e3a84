/* Quantises whole blocks of NF4 (nf4.h) with vectors of LANES floats; the file that includes this one defines
 * LANES. Every value is scaled and compared alone, so the number of lanes changes no bit. bounds[15] holds
 * the midpoints of the table's values. */
#ifndef MOTLEY_MODEL_FILES_NF4_BLOCKS_H
#define MOTLEY_MODEL_FILES_NF4_BLOCKS_H

#include <stdint.h>
#include <string.h>

enum { BLOCK_VALUES = 64, BOUNDS = 15 };

typedef float lanes __attribute__((vector_size(4 * LANES)));
typedef int32_t ints __attribute__((vector_size(4 * LANES)));
typedef uint64_t pairs __attribute__((vector_size(4 * LANES)));

static inline float largest_of_block(const float *x)
{
    int32_t found[LANES], all = 0;
    ints max = {0}; /* bit patterns of non-negative floats compare like the floats */
    for (int i = 0; i < BLOCK_VALUES; i += LANES) {
        ints v;
        memcpy(&v, x + i, sizeof(v));
        v &= 0x7fffffff;
        max = (v & (v > max)) | (max & (v <= max));
    }
    memcpy(found, &max, sizeof(found));
    for (int i = 0; i < LANES; i++)
        all = found[i] > all ? found[i] : all;
    float largest;
    memcpy(&largest, &all, sizeof(largest));
    return largest;
}

/* Computes the codes of x * inverse: a code is the number of bounds below the value. */
static inline void codes_of_block(const float *bounds, const float *x, float inverse, uint8_t *codes)
{
    uint64_t two[BLOCK_VALUES / 2];
    for (int i = 0; i < BLOCK_VALUES; i += LANES) {
        lanes v;
        ints count = {0};
        memcpy(&v, x + i, sizeof(v));
        v *= inverse;
        for (int c = 0; c < BOUNDS; c++)
            count -= v > bounds[c] - (lanes){0};
        pairs p = (pairs)count; /* the first code of each pair is in the low half */
        p = p << 4 | p >> 32;
        memcpy(two + i / 2, &p, sizeof(p));
    }
    for (int i = 0; i < BLOCK_VALUES / 2; i++)
        codes[i] = (uint8_t)two[i];
}

static inline void quantise_blocks(const float *bounds, const float *values, uint64_t blocks, uint8_t *codes,
                                   float *absmax)
{
    for (uint64_t block = 0; block < blocks; block++, values += BLOCK_VALUES) {
        float max = largest_of_block(values);
        absmax[block] = max;
        codes_of_block(bounds, values, 1.0f / (max > 1e-38f ? max : 1e-38f),
                       codes + block * (BLOCK_VALUES / 2));
    }
}

/* quantise_blocks() compiled for CPUs with AVX2 (model/options.cmake). */
void nf4_blocks_avx2(const float *bounds, const float *values, uint64_t blocks, uint8_t *codes,
                     float *absmax);

#endif
