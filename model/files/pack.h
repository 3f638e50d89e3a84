/* How a matrix of frozen weights is kept in memory. */
#ifndef MOTLEY_MODEL_FILES_PACK_H
#define MOTLEY_MODEL_FILES_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "model/files/safetensors.h"

/* Value by value in the order of its rows. The blocks of NF4 are bitsandbytes' (64 values under one scale,
 * codes two to a byte, the first in the high half), those of the rest GGUF's, bytes as in the file. */
enum pack_kind {
    PACK_F32,
    PACK_BF16,
    PACK_F16,
    PACK_NF4,        /* absmax f32 [blocks] */
    PACK_NF4_DOUBLE, /* absmax u8 [blocks]: codes of the dynamic map; scales f32 [1 + ceil(blocks / 256)], the
                        offset first */
    PACK_Q4_0,       /* from here on as the file has them */
    PACK_Q4_1,
    PACK_Q8_0,
    PACK_Q4_K,
    PACK_Q5_K,
    PACK_Q6_K,
    PACK_Q5_0,
    PACK_Q5_1,
    PACK_KINDS
};

/* How GGUF's and safetensors' types name a kind (not NF4); values of one block, and bytes of the blocks (NF4:
 * codes) that `count` values fill. */
enum tensor_type pack_type(enum pack_kind pack);
uint32_t pack_block(enum pack_kind pack);
uint64_t pack_bytes(enum pack_kind pack, uint64_t count);

/* A kind whose bytes are a file's, block by block. */
static inline bool pack_from_file(enum pack_kind pack)
{
    return pack >= PACK_Q4_0;
}
/* The kind that keeps a tensor of this type as it is; types that have none are kept in fp32. */
enum pack_kind pack_of_type(enum tensor_type type);
/* True when every scale in so many blocks of a kind from a file is finite; then all values are. */
bool pack_finite(enum pack_kind pack, const uint8_t *blocks, uint64_t count);

#endif
