/* An open model: its config and every tensor under its Hugging Face name, whatever the file's format. Each
 * expert has tensors of its own, even where the file has one for all experts of a layer.
 *
 * Opening reads headers only. model_open() checks that every tensor of the config is present with the right
 * shape and a type that can be converted to fp32. An open model is immutable, so many threads may read it. */
#ifndef MOTLEY_MODEL_SHAPE_TENSORS_H
#define MOTLEY_MODEL_SHAPE_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/shape/config.h"
#include "model/files/gguf.h"
#include "model/files/nf4_stored.h"
#include "model/files/safetensors.h"
#include "model/files/source.h"

struct model;

/* How a tensor of all experts, in which rows alternate, has a matrix of one expert (tensors_fused.h): row r
 * is number step * r + first among the rows of MXFP4's codes, or else among the columns of the stored matrix.
 */
struct fused_place {
    uint32_t step, first;    /* step 0: the tensor is stored as it is */
    uint32_t expert;         /* of which `offset` and `size` have the whole stored matrix */
    struct nf4_place scales; /* MXFP4: the expert's scales */
};

struct model_tensor {
    const char *name;      /* "model.layers.0.self_attn.q_proj.weight"; borrowed until close */
    const char *stored;    /* its name in the file, of which it may be a part; borrowed until close */
    enum tensor_type type; /* type in the file */
    uint32_t rank;         /* 1 or 2 for every tensor the config calls for */
    uint64_t rows;         /* shape[0] */
    uint64_t cols;         /* product of the other dimensions; 1 for vectors */
    uint32_t file;         /* number of the file in the source */
    uint64_t offset, size; /* the tensor's data: offset in the file and size, bytes */
    /* GGUF q/k: number of heads, within each of which the rows are interleaved; 0: the rows are in Hugging
     * Face's order */
    uint32_t permuted_heads;
    const struct nf4_places *nf4; /* set for a tensor saved as NF4 by bitsandbytes (nf4_stored.h), whose type
                                   * is that of its codes; else NULL */
    struct fused_place fused;
    bool unused;        /* the language model has no use for it (images) */
    float offset_added; /* GGUF: offset that the file's values of a norm include (Gemma: 1); else 0 */
};

/* Opens a model. Takes 'source' (closed with the model, or at once on error). Where tie_word_embeddings is
 * true but a folder's file has a head that differs from the embedding, the model's config says untied.
 * Errors: ERR_NOT_FOUND (no config or no weights, or a tensor of the config is missing), ERR_CORRUPT,
 * ERR_UNSUPPORTED, ERR_INVALID. */
int model_open(struct model_source *source, struct model **model, struct err *err);
/* Calls model_source_open_local() and model_open(). */
int model_open_path(const char *path, struct model **model, struct err *err);
void model_close(struct model *model);

/* The results of this and the next function are borrowed until close. */
const struct model_config *model_get_config(const struct model *model);
/* Returns a note for the job's log on files that were read in a way that may surprise; "" when there
 * is none. */
const char *model_get_note(const struct model *model);
/* Returns the source, for reading files beside the weights and for its counters. */
struct model_source *model_get_source(const struct model *model);
/* Returns the GGUF metadata for the tokenizer, or NULL when the model is not a GGUF. */
const struct gguf *model_get_gguf(const struct model *model);

/* Appends a file beside the weights ("tokenizer.json") to 'out'. Errors: ERR_NOT_FOUND, ERR_TOO_BIG. */
int model_read_file(struct model *model, const char *name, uint64_t limit, struct buf *out, struct err *err);

/* Tensors are in order of name; an index beyond the count gives NULL. */
uint32_t model_tensor_count(const struct model *model);
/* The result is borrowed until close. */
const struct model_tensor *model_tensor_at(const struct model *model, uint32_t index);
/* Finds a tensor by its Hugging Face name, or returns NULL. "lm_head.weight" of a tied model finds the
 * embedding. */
const struct model_tensor *model_tensor_find(const struct model *model, const char *name);

/* Reads rows [row_begin, row_end) as fp32 into dst [row_end - row_begin, cols]: dequantised, in the order and
 * with the values of a Hugging Face file. Only the bytes of those rows are read, or of their heads for
 * permuted tensors. */
int model_tensor_read_f32(struct model *model, const struct model_tensor *tensor, uint64_t row_begin,
                          uint64_t row_end, float *dst, struct err *err);

/* Reads the bytes of rows [row_begin, row_end) unchanged, values or whole blocks (pack.h; MXFP4's are put
 * together), in Hugging Face's row order. offset_added is not subtracted. */
int model_tensor_read_packed(struct model *model, const struct model_tensor *tensor, uint64_t row_begin,
                             uint64_t row_end, uint8_t *dst, struct err *err);

/* Returns a tensor of a safetensors file with its own name and shape; NULL for one of a GGUF. Borrowed until
 * close. */
const struct safetensors_tensor *model_tensor_stored(const struct model *model,
                                                     const struct model_tensor *tensor);
/* Reads bytes [offset, offset + size) of a tensor as they are in its file. */
int model_tensor_read_bytes(struct model *model, const struct model_tensor *tensor, uint64_t offset,
                            size_t size, void *dst, struct err *err);

/* Returns true when the file's values are bf16 or fp16. Files that are made from the model then store 16
 * bits, too. */
bool model_tensor_is_16bit(const struct model_tensor *tensor);

/* A range of bytes in a file of the source. */
struct model_range {
    uint32_t file;
    uint64_t offset, size; /* bytes */
};

/* Finds the bytes of tensor data that blocks [block_begin, block_end) need, ascending and with neighbours
 * merged (model_open() has read the headers). With a tied head the embedding belongs to block 0 and to block
 * L+1. Allocates *ranges with malloc; the caller frees it. */
int model_block_ranges(const struct model *model, uint32_t block_begin, uint32_t block_end,
                       struct model_range **ranges, uint32_t *count, struct err *err);

#endif
