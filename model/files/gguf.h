/* A reader of GGUF version 2 and 3 (little-endian) that checks every count, length and offset.
 *
 * A file consists of: magic "GGUF", version, tensor count, metadata count, metadata (key, type, value),
 * tensor infos (name, dims, type, offset), padding to the alignment, data. Refused with ERR_CORRUPT naming
 * the key or tensor are: counts and lengths beyond the file or the limits below, unknown value types, arrays
 * of arrays, a name that occurs twice, shapes that overflow, rows that are not whole blocks, data that
 * overlaps, is not aligned or lies outside the file.
 *
 * GGUF lists the fastest dimension first: a matrix of Hugging Face shape [rows, cols] has dims {cols, rows}
 * in the file. This header's shapes are [rows, cols]. */
#ifndef MOTLEY_MODEL_FILES_GGUF_H
#define MOTLEY_MODEL_FILES_GGUF_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/files/safetensors.h"
#include "model/files/source.h"

enum {
    GGUF_HEADER_MAX = 256 << 20, /* bytes of metadata and tensor infos together */
    GGUF_KEYS_MAX = 65536,
    GGUF_TENSORS_MAX = 65536,
    GGUF_DIMS_MAX = 4
};

struct gguf;

struct gguf_tensor {
    char name[65]; /* the name in the file: "blk.0.attn_q.weight" */
    enum tensor_type type;
    uint32_t rank;
    uint64_t shape[GGUF_DIMS_MAX]; /* the slowest dimension first */
    uint64_t offset;               /* bytes from the beginning of the file */
    uint64_t size;                 /* bytes */
};

enum gguf_kind { GGUF_NONE, GGUF_UINT, GGUF_INT, GGUF_FLOAT, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY };

/* Reads and checks the header of file 'file' of a source, which is borrowed for the call. gguf_close()
 * releases the result. */
int gguf_open(struct model_source *source, uint32_t file, struct gguf **gguf, struct err *err);
void gguf_close(struct gguf *gguf);

/* Returns the format's version, 2 or 3. */
uint32_t gguf_version(const struct gguf *gguf);
/* Tensors are sorted by offset and found by index (NULL beyond the count) or by the file's own name (NULL
 * when there is none). */
uint32_t gguf_tensor_count(const struct gguf *gguf);
/* The result is borrowed until gguf_close(). */
const struct gguf_tensor *gguf_tensor_at(const struct gguf *gguf, uint32_t index);
/* The result is borrowed until gguf_close(). */
const struct gguf_tensor *gguf_tensor_find(const struct gguf *gguf, const char *name);

/* These functions read metadata. gguf_kind() returns GGUF_NONE for a key that is not in the file. Getters
 * return false when the key is missing or of another kind (gguf_i64 takes integers of any width and sign
 * whose value fits, gguf_f64 takes any number). Strings are not NUL-terminated, may hold any bytes, and are
 * borrowed until gguf_close(). */
enum gguf_kind gguf_kind(const struct gguf *gguf, const char *key);
bool gguf_i64(const struct gguf *gguf, const char *key, int64_t *value);
bool gguf_f64(const struct gguf *gguf, const char *key, double *value);
bool gguf_bool(const struct gguf *gguf, const char *key, bool *value);
bool gguf_string(const struct gguf *gguf, const char *key, const char **text, size_t *size);
/* gguf_array() gives the elements' kind and number; the others read one element by index in constant time. */
bool gguf_array(const struct gguf *gguf, const char *key, enum gguf_kind *kind, uint64_t *count);
/* Takes truth values, too, as 0 and 1. */
bool gguf_array_i64(const struct gguf *gguf, const char *key, uint64_t index, int64_t *value);
bool gguf_array_f64(const struct gguf *gguf, const char *key, uint64_t index, double *value);
bool gguf_array_string(const struct gguf *gguf, const char *key, uint64_t index, const char **text,
                       size_t *size);
/* These functions return the number of metadata keys, and the key with a given index. */
uint32_t gguf_key_count(const struct gguf *gguf);
const char *gguf_key_at(const struct gguf *gguf, uint32_t index);

/* Turns 'count' elements of a row, which are whole blocks, into fp32. src holds count / tensor_type_block *
 * tensor_type_block_bytes bytes and may have any alignment. Integer types are ERR_UNSUPPORTED. The formats
 * follow ggml's public description of its block types. */
int tensor_dequantise(enum tensor_type type, const void *src, uint64_t count, float *dst, struct err *err);

#endif
