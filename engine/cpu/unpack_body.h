/* Unpacking, once per instruction set: the blocks of model/dequantise_blocks.h, with UNPACKERS as the table's
 * name and UNPACK_NF4 as what does NF4. Included by unpack_*.c, which are compiled with its flags and without
 * contraction.
 */
#ifndef MOTLEY_ENGINE_CPU_UNPACK_BODY_H
#define MOTLEY_ENGINE_CPU_UNPACK_BODY_H

#include "engine/cpu/unpack.h"
#include "model/dequantise_blocks.h"

#define UNPACK(name, block, values, bytes)                                                                   \
    static void name(const uint8_t *restrict x, uint64_t blocks, float *restrict y)                          \
    {                                                                                                        \
        for (uint64_t i = 0; i < blocks; i++)                                                                \
            block(x + i * (bytes), y + i * (values));                                                        \
    }

UNPACK(unpack_q4_0, block_q4_0, 32, 18)
UNPACK(unpack_q4_1, block_q4_1, 32, 20)
UNPACK(unpack_q8_0, block_q8_0, 32, 34)
UNPACK(unpack_q4_k, block_q4_k, 256, 144)
UNPACK(unpack_q5_k, block_q5_k, 256, 176)
UNPACK(unpack_q6_k, block_q6_k, 256, 210)

const struct unpackers UNPACKERS = {
    .blocks = {[PACK_Q4_0] = unpack_q4_0,
               [PACK_Q4_1] = unpack_q4_1,
               [PACK_Q8_0] = unpack_q8_0,
               [PACK_Q4_K] = unpack_q4_k,
               [PACK_Q5_K] = unpack_q5_k,
               [PACK_Q6_K] = unpack_q6_k},
    .nf4 = UNPACK_NF4,
};

#endif
