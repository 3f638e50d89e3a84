/* NF4's block quantisation with vectors of 8 floats, for CPUs with AVX2. */
#define LANES 8
#include "model/files/nf4_blocks.h"

void nf4_blocks_avx2(const float *bounds, const float *values, uint64_t blocks, uint8_t *codes, float *absmax)
{
    quantise_blocks(bounds, values, blocks, codes, absmax);
}
