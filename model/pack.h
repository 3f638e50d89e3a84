/* How a matrix of frozen weights is kept in memory. */
#ifndef MOTLEY_MODEL_PACK_H
#define MOTLEY_MODEL_PACK_H

/* Value by value in the order of its rows. The blocks of NF4 are bitsandbytes' (64 values under one scale,
 * codes two to a byte, the first in the high half), those of the rest GGUF's, bytes as in the file. */
enum pack_kind {
    PACK_F32,
    PACK_BF16,
    PACK_F16,
    PACK_NF4,        /* absmax f32 [blocks] */
    PACK_NF4_DOUBLE, /* absmax u8 [blocks]: codes of the dynamic map; scales f32 [1 + ceil(blocks / 256)], the
                        offset first */
    PACK_Q4_0,
    PACK_Q4_1,
    PACK_Q8_0,
    PACK_Q4_K,
    PACK_Q5_K,
    PACK_Q6_K,
    PACK_KINDS
};

#endif
