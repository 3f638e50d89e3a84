/* Describes and reads matrices of experts out of tensors in which rows alternate. A row that is a column of
 * the stored matrix is read with its neighbours, a stretch of each stored row at a time. */
#include "model/shape/tensors_fused.h"

#include <stdio.h>
#include <string.h>

#include "model/files/gguf.h"

enum {
    PIECE_BYTES = 16 << 10, /* bytes of a stored row that are read at once */
    BLOCK = 32,             /* values of an MXFP4 block, CODES bytes in safetensors and CODES + 1 in GGUF */
    CODES = 16,
    ROW_BLOCKS = PIECE_BYTES / CODES /* blocks of a row that are read at once */
};

static bool is_suffix(const struct fused_stored *stored, const char *suffix)
{
    return strcmp(stored->suffix, suffix) == 0;
}

bool fused_is_scales(const struct fused_stored *stored)
{
    return is_suffix(stored, "_scales");
}

int fused_describe(const struct fused_stored *stored, uint32_t experts, uint32_t parts,
                   struct model_tensor *tensor, struct err *err)
{
    bool codes = is_suffix(stored, "_blocks"), bias = is_suffix(stored, "_bias"), plain = !codes && !bias;
    uint32_t rank = codes ? 4 : bias ? 2 : 3;
    const uint64_t *shape = stored->shape;
    if (stored->rank != rank || shape[0] != experts || shape[plain ? 2 : 1] % parts != 0 ||
        (codes && (shape[3] != CODES || stored->type != TENSOR_U8)))
        return err_set(err, ERR_INVALID,
                       "the tensor \"%.200s\" has not %u experts of %u matrices%s, as gpt-oss keeps them",
                       stored->name, experts, parts, codes ? " in blocks of 16 bytes" : "");
    tensor->rank = bias ? 1 : 2;
    tensor->rows = shape[plain ? 2 : 1] / parts;
    tensor->cols = codes ? shape[2] * BLOCK : bias ? 1 : shape[1];
    tensor->type = codes ? TENSOR_MXFP4 : stored->type;
    tensor->fused.step = parts;
    return 0;
}

void fused_scales_name(const char *codes, char name[ARCH_NAME_MAX])
{
    snprintf(name, ARCH_NAME_MAX, "%.*s_scales", (int)(strlen(codes) - strlen("_blocks")), codes);
}

/* Reads columns of the stored matrix [cols, step * rows]. */
static int columns_read(struct model_source *source, const struct model_tensor *t, uint64_t row,
                        uint64_t rows, bool packed, void *dst, struct err *err)
{
    uint8_t piece[PIECE_BYTES], *bytes = dst;
    float values[PIECE_BYTES / 2];
    uint64_t size = tensor_type_block_bytes(t->type), step = t->fused.step;
    uint64_t across = step * t->rows, first = step * row + t->fused.first, most = PIECE_BYTES / size / step;
    for (uint64_t column = 0; column < t->cols; column++)
        for (uint64_t done = 0; done < rows; done += most) {
            uint64_t n = rows - done < most ? rows - done : most, span = (n - 1) * step + 1;
            uint64_t at = column * across + first + done * step;
            if (model_source_read(source, t->file, t->offset + at * size, (size_t)(span * size), piece, err) <
                    0 ||
                (!packed && tensor_dequantise(t->type, piece, span, values, err) < 0))
                return -1;
            for (uint64_t i = 0; i < n; i++) {
                uint64_t to = (done + i) * t->cols + column;
                if (packed)
                    memcpy(bytes + to * size, piece + i * step * size, size);
                else
                    ((float *)dst)[to] = values[i * step];
            }
        }
    return 0;
}

/* Makes a block of GGUF from one of safetensors, whose codes are in the order of the values. */
static void block_make(uint8_t scale, const uint8_t codes[CODES], uint8_t block[CODES + 1])
{
    block[0] = scale;
    for (uint32_t j = 0; j < CODES; j++) {
        uint32_t low = codes[j / 2] >> j % 2 * 4 & 15u, high = codes[CODES / 2 + j / 2] >> j % 2 * 4 & 15u;
        block[1 + j] = (uint8_t)(low | high << 4);
    }
}

/* Reads rows of MXFP4. A scale of 255 stands for NaN. */
static int tensors_fused_blocks_read(struct model_source *source, const struct model_tensor *t, uint64_t row,
                                     uint64_t rows, bool packed, void *dst, struct err *err)
{
    uint8_t codes[PIECE_BYTES], scales[ROW_BLOCKS], block[CODES + 1], *bytes = dst;
    float *values = dst;
    uint64_t across = t->cols / BLOCK;
    for (uint64_t i = 0; i < rows; i++)
        for (uint64_t done = 0; done < across; done += ROW_BLOCKS) {
            uint64_t n = across - done < ROW_BLOCKS ? across - done : ROW_BLOCKS;
            uint64_t at = (t->fused.step * (row + i) + t->fused.first) * across + done;
            if (model_source_read(source, t->file, t->offset + at * CODES, (size_t)(n * CODES), codes, err) <
                    0 ||
                model_source_read(source, t->fused.scales.file, t->fused.scales.offset + at, (size_t)n,
                                  scales, err) < 0)
                return -1;
            for (uint64_t b = 0; b < n; b++) {
                uint64_t to = i * across + done + b;
                uint8_t *place = packed ? bytes + to * sizeof(block) : block;
                block_make(scales[b], codes + b * CODES, place);
                if (!packed && tensor_dequantise(TENSOR_MXFP4, block, BLOCK, values + to * BLOCK, err) < 0)
                    return -1;
            }
        }
    return 0;
}

int fused_read(struct model_source *source, const struct model_tensor *tensor, uint64_t row, uint64_t rows,
               bool packed, void *dst, struct err *err)
{
    return tensor->type == TENSOR_MXFP4
               ? tensors_fused_blocks_read(source, tensor, row, rows, packed, dst, err)
               : columns_read(source, tensor, row, rows, packed, dst, err);
}
