/* A table of the storage kinds: their tensor types in files, and where a block has its fp16 scales. */
#include "model/files/pack.h"

#include "model/files/nf4.h"

static const struct pack_entry {
    enum tensor_type type;
    uint32_t halves, at; /* number of adjacent fp16 scales in a block, and their offset in bytes */
} entries[PACK_KINDS] = {
    [PACK_F32] = {TENSOR_F32, 0, 0},   [PACK_BF16] = {TENSOR_BF16, 0, 0}, [PACK_F16] = {TENSOR_F16, 0, 0},
    [PACK_Q4_0] = {TENSOR_Q4_0, 1, 0}, [PACK_Q4_1] = {TENSOR_Q4_1, 2, 0}, [PACK_Q8_0] = {TENSOR_Q8_0, 1, 0},
    [PACK_Q4_K] = {TENSOR_Q4_K, 2, 0}, [PACK_Q5_K] = {TENSOR_Q5_K, 2, 0}, [PACK_Q6_K] = {TENSOR_Q6_K, 1, 208},
    [PACK_Q5_0] = {TENSOR_Q5_0, 1, 0}, [PACK_Q5_1] = {TENSOR_Q5_1, 2, 0}, [PACK_MXFP4] = {TENSOR_MXFP4, 0, 0},
};

enum tensor_type pack_type(enum pack_kind pack)
{
    return entries[pack].type;
}

static bool pack_is_nf4(enum pack_kind pack)
{
    return pack == PACK_NF4 || pack == PACK_NF4_DOUBLE;
}

uint32_t pack_block(enum pack_kind pack)
{
    return pack_is_nf4(pack) ? NF4_BLOCK : tensor_type_block(entries[pack].type);
}

uint64_t pack_bytes(enum pack_kind pack, uint64_t count)
{
    if (pack_is_nf4(pack))
        return nf4_code_bytes(count);
    return count / pack_block(pack) * tensor_type_block_bytes(entries[pack].type);
}

enum pack_kind pack_of_type(enum tensor_type type)
{
    for (int pack = PACK_F32; pack < PACK_KINDS; pack++)
        if (!pack_is_nf4((enum pack_kind)pack) && entries[pack].type == type)
            return (enum pack_kind)pack;
    return PACK_F32;
}

bool pack_finite(enum pack_kind pack, const uint8_t *blocks, uint64_t count)
{
    enum {
        HIGH_EXPONENT = 0x7c, /* the exponent bits in the upper byte of an fp16; all set: infinity or NaN */
        MXFP4_MOST = 252      /* with a greater scale, 6 times it is beyond fp32; 255 is NaN */
    };
    const struct pack_entry *entry = &entries[pack];
    uint32_t bytes = tensor_type_block_bytes(entry->type);
    for (uint64_t i = 0; i < count && pack == PACK_MXFP4; i++)
        if (blocks[i * bytes] > MXFP4_MOST)
            return false;
    for (uint64_t i = 0; i < count; i++)
        for (uint32_t h = 0; h < entry->halves; h++)
            if ((blocks[i * bytes + entry->at + 2 * h + 1] & HIGH_EXPONENT) == HIGH_EXPONENT)
                return false;
    return true;
}
