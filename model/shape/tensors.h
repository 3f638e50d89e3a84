/* An open model: its config and every tensor under its Hugging Face name, whatever the file. Experts have one
 * tensor each, even where the file has one for all of a layer.
 *
 * Opening reads headers only. model_open() checks that every tensor the config calls for is there with the
 * right shape and a type we can turn into fp32. After it a model is immutable: many threads may read.
 */
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

struct model_tensor {
    const char *name;             /* "model.layers.0.self_attn.q_proj.weight"; borrowed until close */
    enum tensor_type type;        /* as stored */
    uint32_t rank;                /* 1 or 2 for every tensor the config calls for */
    uint64_t rows;                /* shape[0] */
    uint64_t cols;                /* product of the other dimensions; 1 for vectors */
    uint32_t file;                /* of the source */
    uint64_t offset, size;        /* bytes in that file */
    uint32_t permuted_heads;      /* GGUF q/k: rows of each of so many heads are interleaved; 0: as named */
    const struct nf4_places *nf4; /* saved as NF4 with bitsandbytes (nf4_stored.h): type is that of its codes;
                                     or NULL */
    float offset_added; /* GGUF: the file's values have the norms' offset in them (Gemma: 1); else 0 */
};

/* Open. A folder's config says by then what its file holds: where tie_word_embeddings is true and the file
 * has a head of other values than the embedding, the model is not tied. Takes 'source' (closed with the
 * model, or at once on error). Errors: ERR_NOT_FOUND (no config or no weights; a tensor the config calls
 * for), ERR_CORRUPT, ERR_UNSUPPORTED, ERR_INVALID. */
int model_open(struct model_source *source, struct model **model, struct err *err);
/* model_source_open_local() and model_open(). */
int model_open_path(const char *path, struct model **model, struct err *err);
void model_close(struct model *model);

/* Borrowed until close, both. */
const struct model_config *model_get_config(const struct model *model);
/* What of the files counted otherwise than somebody might think, for a job's log; "": nothing. */
const char *model_get_note(const struct model *model);
/* For reading files beside the weights, and for its counters. */
struct model_source *model_get_source(const struct model *model);
/* The GGUF metadata when the model is one, else NULL: for the tokenizer. */
const struct gguf *model_get_gguf(const struct model *model);

/* A file beside the weights ("tokenizer.json"), appended to 'out'; ERR_NOT_FOUND, ERR_TOO_BIG. */
int model_read_file(struct model *model, const char *name, uint64_t limit, struct buf *out, struct err *err);

/* Tensors in order of name, by index (NULL beyond the count). */
uint32_t model_tensor_count(const struct model *model);
/* Borrowed until close. */
const struct model_tensor *model_tensor_at(const struct model *model, uint32_t index);
/* By Hugging Face name. "lm_head.weight" of a tied model finds the embedding. NULL: none. */
const struct model_tensor *model_tensor_find(const struct model *model, const char *name);

/* Read rows [row_begin, row_end) as fp32 into dst [row_end - row_begin, cols]: dequantised, in Hugging Face's
 * row order, as Hugging Face's file would hold them, reading only the bytes of those rows (of their heads,
 * for permuted ones). */
int model_tensor_read_f32(struct model *model, const struct model_tensor *tensor, uint64_t row_begin,
                          uint64_t row_end, float *dst, struct err *err);

/* Read the bytes of rows [row_begin, row_end) as the file has them, values or whole blocks (pack.h), in
 * Hugging Face's row order. offset_added is not looked at. */
int model_tensor_read_packed(struct model *model, const struct model_tensor *tensor, uint64_t row_begin,
                             uint64_t row_end, uint8_t *dst, struct err *err);

/* True when the model's bits are bf16 or fp16 already (a base kept in bf16 then loses nothing for BF16). */
bool model_tensor_is_16bit(const struct model_tensor *tensor);

/* A byte range of a file of the source. */
struct model_range {
    uint32_t file;
    uint64_t offset, size; /* bytes */
};

/* Which bytes blocks [block_begin, block_end) need: tensor data only (headers are read by model_open),
 * ascending, neighbours merged. With a tied head the embedding belongs to block 0 and to block L+1.
 * Allocates *ranges with malloc; the caller frees. */
int model_block_ranges(const struct model *model, uint32_t block_begin, uint32_t block_end,
                       struct model_range **ranges, uint32_t *count, struct err *err);

#endif
