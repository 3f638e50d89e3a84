/* NF4 exactly as bitsandbytes' quantize_4bit stores it (Dettmers et al. 2023, section 3; version 0.50.2, on
 * CPUs). A tensor is cut into blocks of 64 values along its whole length. Each block has its largest
 * magnitude (absmax) and 4-bit codes, two to a byte, the first in the high half. With double quantisation the
 * absmax, less their mean, are kept as 8-bit codes of the dynamic map (model/files/dynamic_map.h) in blocks
 * of 256 with an fp32 scale each.
 *
 * A tensor may be quantised in pieces: nf4_quantise() for each piece, then nf4_nest() once, since the mean is
 * taken over the whole tensor. The caller owns all memory; no function here fails. Products and sums are
 * fp32, each rounded on its own. */
#ifndef MOTLEY_MODEL_FILES_NF4_H
#define MOTLEY_MODEL_FILES_NF4_H

#include <stdint.h>

enum { NF4_BLOCK = 64, NF4_NESTED_BLOCK = 256 };

extern const float nf4_table[16]; /* value of each code, before multiplication by the block's absmax */

/* These functions return sizes for a tensor of `count` values: bytes of codes, number of absmax, and number
 * of f32 in `scales` (the offset comes first). */
static inline uint64_t nf4_code_bytes(uint64_t count)
{
    return count / 2 + count % 2;
}
static inline uint64_t nf4_blocks(uint64_t count)
{
    return count / NF4_BLOCK + (count % NF4_BLOCK != 0);
}
static inline uint64_t nf4_scales(uint64_t count)
{
    uint64_t blocks = nf4_blocks(count);
    return 1 + blocks / NF4_NESTED_BLOCK + (blocks % NF4_NESTED_BLOCK != 0);
}

/* Quantises values[count] into codes[nf4_code_bytes(count)] and absmax[nf4_blocks(count)]. count is a
 * multiple of 64 except in the tensor's last piece. */
void nf4_quantise(const float *values, uint64_t count, uint8_t *codes, float *absmax);

/* Quantises the absmax of all `blocks` of a tensor into codes[blocks] and scales[1 + ceil(blocks / 256)]: the
 * mean, then the scale of each 256 absmax. */
void nf4_nest(const float *absmax, uint64_t blocks, uint8_t *codes, float *scales);

/* Restores the absmax of blocks [begin, begin + count) from the nested codes and scales of the whole tensor.
 * map is the signed dynamic map. */
void nf4_unnest(const float *map, const uint8_t *codes, const float *scales, uint64_t begin, uint64_t count,
                float *absmax);

/* Computes values[count] from codes and absmax, which begin at the same block. */
void nf4_dequantise(const uint8_t *codes, const float *absmax, uint64_t count, float *values);

#endif
