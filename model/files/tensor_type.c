/* The types of stored tensors, with their names and the sizes of their blocks. */
#include "model/files/safetensors.h"

static const struct type_entry {
    const char *name;
    uint32_t block, block_bytes;
} types[TENSOR_TYPE_COUNT] = {
    [TENSOR_F32] = {"F32", 1, 4},         [TENSOR_F16] = {"F16", 1, 2},
    [TENSOR_BF16] = {"BF16", 1, 2},       [TENSOR_F64] = {"F64", 1, 8},
    [TENSOR_I64] = {"I64", 1, 8},         [TENSOR_I32] = {"I32", 1, 4},
    [TENSOR_I16] = {"I16", 1, 2},         [TENSOR_I8] = {"I8", 1, 1},
    [TENSOR_U8] = {"U8", 1, 1},           [TENSOR_BOOL] = {"BOOL", 1, 1},
    [TENSOR_U16] = {"U16", 1, 2},         [TENSOR_U32] = {"U32", 1, 4},
    [TENSOR_U64] = {"U64", 1, 8},         [TENSOR_F8_E4M3] = {"F8_E4M3", 1, 1},
    [TENSOR_F8_E5M2] = {"F8_E5M2", 1, 1}, [TENSOR_Q4_0] = {"Q4_0", 32, 18},
    [TENSOR_Q4_1] = {"Q4_1", 32, 20},     [TENSOR_Q5_0] = {"Q5_0", 32, 22},
    [TENSOR_Q5_1] = {"Q5_1", 32, 24},     [TENSOR_Q8_0] = {"Q8_0", 32, 34},
    [TENSOR_Q4_K] = {"Q4_K", 256, 144},   [TENSOR_Q5_K] = {"Q5_K", 256, 176},
    [TENSOR_Q6_K] = {"Q6_K", 256, 210},   [TENSOR_MXFP4] = {"MXFP4", 32, 17},
};

const char *tensor_type_name(enum tensor_type type)
{
    return (unsigned)type < TENSOR_TYPE_COUNT ? types[type].name : "unknown";
}

uint32_t tensor_type_block(enum tensor_type type)
{
    return types[type].block;
}

uint32_t tensor_type_block_bytes(enum tensor_type type)
{
    return types[type].block_bytes;
}
