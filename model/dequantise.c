/* Stored element types -> fp32, by type. */
#include <string.h>

#include "model/dequantise_blocks.h"
#include "model/gguf.h"

static void (*const decoders[TENSOR_TYPE_COUNT])(const uint8_t *block, float *values) = {
    [TENSOR_F32] = plain_f32,   [TENSOR_F16] = plain_f16,   [TENSOR_BF16] = plain_bf16,
    [TENSOR_F64] = plain_f64,   [TENSOR_Q4_0] = block_q4_0, [TENSOR_Q4_1] = block_q4_1,
    [TENSOR_Q5_0] = block_q5_0, [TENSOR_Q5_1] = block_q5_1, [TENSOR_Q8_0] = block_q8_0,
    [TENSOR_Q4_K] = block_q4_k, [TENSOR_Q5_K] = block_q5_k, [TENSOR_Q6_K] = block_q6_k,
};

int tensor_dequantise(enum tensor_type type, const void *src, uint64_t count, float *dst, struct err *err)
{
    if ((unsigned)type >= TENSOR_TYPE_COUNT || !decoders[type])
        return err_set(err, ERR_UNSUPPORTED, "elements of type %s are no floating-point numbers we read",
                       tensor_type_name(type));
    uint32_t block = tensor_type_block(type), bytes = tensor_type_block_bytes(type);
    if (count % block != 0)
        return err_set(err, ERR_INTERNAL, "%llu elements of type %s are not whole blocks of %u",
                       (unsigned long long)count, tensor_type_name(type), block);
    const uint8_t *p = src;
    if (type == TENSOR_F32) {
        if (count)
            memcpy(dst, src, count * 4);
        return 0;
    }
    for (uint64_t i = 0; i < count / block; i++)
        decoders[type](p + i * bytes, dst + i * block);
    return 0;
}
