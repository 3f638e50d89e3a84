/* How a matrix of frozen weights is stored in memory. */
#ifndef MOTLEY_MODEL_FILES_PACK_H
#define MOTLEY_MODEL_FILES_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "model/files/safetensors.h"

/* The storage kinds; values are stored in the order of rows. NF4's blocks are those of bitsandbytes (64
 * values under one scale, codes two to a byte, the first in the high half). All others are GGUF's blocks,
 * with the bytes of the file. */
enum pack_kind {
    PACK_F32,
    PACK_BF16,
    PACK_F16,
    PACK_NF4, /* codes with absmax, f32 [blocks] */
    /* codes with absmax, u8 [blocks], as codes of the dynamic map, and scales, f32 [1 + ceil(blocks / 256)],
     * of which the first is the offset */
    PACK_NF4_DOUBLE,
    PACK_Q4_0, /* this and all following kinds have the file's bytes */
    PACK_Q4_1,
    PACK_Q8_0,
    PACK_Q4_K,
    PACK_Q5_K,
    PACK_Q6_K,
    PACK_Q5_0,
    PACK_Q5_1,
    PACK_MXFP4,
    PACK_KINDS
};

/* pack_type() is the tensor type of a kind (not NF4), pack_block() the number of values in a block,
 * pack_bytes() the bytes of the blocks (NF4: of the codes) that `count` values fill. */
enum tensor_type pack_type(enum pack_kind pack);
uint32_t pack_block(enum pack_kind pack);
uint64_t pack_bytes(enum pack_kind pack, uint64_t count);

/* Returns true for a kind whose bytes are copied block by block from a file. */
static inline bool pack_from_file(enum pack_kind pack)
{
    return pack >= PACK_Q4_0;
}
/* Returns the kind that stores a tensor of this type unchanged, or PACK_F32 for types that have none. */
enum pack_kind pack_of_type(enum tensor_type type);
/* Returns true when every scale in `count` blocks of a kind from a file is finite; all values then are
 * finite, too. */
bool pack_finite(enum pack_kind pack, const uint8_t *blocks, uint64_t count);

#endif
