/* Experts as gpt-oss's files have them: one tensor of all experts, in which the rows of gate and up
 * alternate, and an expert's matrix is transposed, or in blocks of MXFP4 with their scales in a tensor beside
 * it. */
#ifndef MOTLEY_MODEL_SHAPE_TENSORS_FUSED_H
#define MOTLEY_MODEL_SHAPE_TENSORS_FUSED_H

#include "model/shape/arch.h"
#include "model/shape/tensors.h"

/* A tensor of all experts as its file describes it: [experts, columns, rows] (transposed), [experts, rows]
 * (biases), [experts, rows, columns / 32, 16] (codes of MXFP4) or [experts, rows, columns / 32] (scales). */
struct fused_stored {
    const char *name, *suffix; /* the suffix begins behind "gate_up_proj" or "down_proj" */
    enum tensor_type type;
    uint32_t rank;
    const uint64_t *shape;
};

/* Returns true for the tensor that holds the scales of another one. */
bool fused_is_scales(const struct fused_stored *stored);
/* Fills rank, rows, cols, type and fused.step of *tensor for each of `parts` matrices of each expert.
 * ERR_INVALID where the shape is not that of `experts` experts. */
int fused_describe(const struct fused_stored *stored, uint32_t experts, uint32_t parts,
                   struct model_tensor *tensor, struct err *err);
/* Writes the name of the scales of codes that are stored as `codes`. */
void fused_scales_name(const char *codes, char name[ARCH_NAME_MAX]);

/* Reads rows [row, row + rows) of a tensor with fused.step > 0: as fp32, or with `packed` values of the
 * file's type, or MXFP4 blocks in GGUF's order. */
int fused_read(struct model_source *source, const struct model_tensor *tensor, uint64_t row, uint64_t rows,
               bool packed, void *dst, struct err *err);

#endif
