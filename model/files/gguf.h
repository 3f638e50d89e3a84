/* GGUF version 2 and 3 (little-endian), read with every count, length and offset checked.
 *
 * A file is: magic "GGUF", version, tensor count, metadata count, metadata (key, type, value), tensor infos
 * (name, dims, type, offset), padding to the alignment, data. Refused with ERR_CORRUPT naming the key or
 * tensor: counts and lengths beyond the file or the limits below, unknown value types, arrays of arrays, a
 * name twice, shapes that overflow, rows that are not whole blocks, data that overlaps, is not aligned or
 * leaves the file.
 *
 * GGUF counts dimensions from the fastest: a matrix of Hugging Face shape [rows, cols] has dims {cols, rows}
 * there. Here shapes are [rows, cols].
 */
#ifndef MOTLEY_MODEL_FILES_GGUF_H
#define MOTLEY_MODEL_FILES_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/files/safetensors.h"
#include "model/files/source.h"

enum {
    GGUF_HEADER_MAX = 256 << 20, /* bytes of metadata and tensor infos */
    GGUF_KEYS_MAX = 65536,
    GGUF_TENSORS_MAX = 65536,
    GGUF_DIMS_MAX = 4
};

struct gguf;

struct gguf_tensor {
    char name[65]; /* as the file has it: "blk.0.attn_q.weight" */
    enum tensor_type type;
    uint32_t rank;
    uint64_t shape[GGUF_DIMS_MAX]; /* slowest first */
    uint64_t offset;               /* in the file, bytes */
    uint64_t size;                 /* bytes */
};

enum gguf_kind { GGUF_NONE, GGUF_UINT, GGUF_INT, GGUF_FLOAT, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY };

/* Read and check the header of file 'file' of a source (borrowed for the call). gguf_close() releases. */
int gguf_open(struct model_source *source, uint32_t file, struct gguf **gguf, struct err *err);
void gguf_close(struct gguf *gguf);

/* 2 or 3. */
uint32_t gguf_version(const struct gguf *gguf);
/* Tensors in order of offset, by index (NULL beyond the count) or by the file's own name (NULL: none). */
uint32_t gguf_tensor_count(const struct gguf *gguf);
/* Borrowed until close. */
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint32_t index);
/* Borrowed until close. */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name);

/* Metadata. kind GGUF_NONE: no such key. Getters return false when the key is not there or of another kind
 * (integers of any width and sign serve gguf_i64 where they fit, any number serves gguf_f64). Strings are not
 * NUL-terminated, may hold any bytes, and are borrowed until close. */
enum gguf_kind gguf_kind(const struct gguf *gguf, const char *key);
bool gguf_i64(const struct gguf *gguf, const char *key, int64_t *value);
bool gguf_f64(const struct gguf *gguf, const char *key, double *value);
bool gguf_bool(const struct gguf *gguf, const char *key, bool *value);
bool gguf_string(const struct gguf *gguf, const char *key, const char **text, size_t *size);
/* Arrays: kind of the elements and their number; then elements by index (constant time each). */
bool gguf_array(const struct gguf *gguf, const char *key, enum gguf_kind *kind, uint64_t *count);
bool gguf_array_i64(const struct gguf *gguf, const char *key, uint64_t index, int64_t *value);
bool gguf_array_f64(const struct gguf *gguf, const char *key, uint64_t index, double *value);
bool gguf_array_string(const struct gguf *gguf, const char *key, uint64_t index, const char **text,
                       size_t *size);
/* Number of metadata keys, and key by index. */
uint32_t gguf_key_count(const struct gguf *gguf);
const char *gguf_key_at(const struct gguf *gguf, uint32_t index);

/* Turn 'count' elements (whole blocks) of a row into fp32. src holds
 * count / tensor_type_block * tensor_type_block_bytes bytes, any alignment. ERR_UNSUPPORTED for integer
 * types. Formats as ggml's public description of its block types has them. */
int tensor_dequantise(enum tensor_type type, const void *src, uint64_t count, float *dst, struct err *err);

#endif
