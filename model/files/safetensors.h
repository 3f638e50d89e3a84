/* Reads and writes the safetensors format; every claim of a header is checked.
 *
 * A file consists of: 8 bytes little-endian length of the header, the header, the data. The header is a JSON
 * object name -> {dtype, shape, data_offsets [begin, end) into the data}, and "__metadata__": string ->
 * string. Refused with ERR_CORRUPT naming the tensor are: a header longer than the file or 64 MiB, a name
 * that occurs twice, an unknown key or dtype, a shape whose product overflows or differs from its bytes,
 * ranges that overlap, leave holes, or do not end where the file ends. */
#ifndef MOTLEY_MODEL_FILES_SAFETENSORS_H
#define MOTLEY_MODEL_FILES_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/files/source.h"

enum {
    SAFETENSORS_HEADER_MAX = 64 << 20, /* bytes of the header */
    SAFETENSORS_TENSORS_MAX = 1 << 20,
    SAFETENSORS_DIMS_MAX = 8
};

/* Element types of tensors, in safetensors and GGUF files. */
enum tensor_type {
    TENSOR_F32,
    TENSOR_F16,
    TENSOR_BF16,
    TENSOR_F64,
    TENSOR_I64,
    TENSOR_I32,
    TENSOR_I16,
    TENSOR_I8,
    TENSOR_U8,
    TENSOR_BOOL,
    TENSOR_U16,
    TENSOR_U32,
    TENSOR_U64,
    TENSOR_F8_E4M3,
    TENSOR_F8_E5M2,
    /* the block types of GGUF */
    TENSOR_Q4_0,
    TENSOR_Q4_1,
    TENSOR_Q5_0,
    TENSOR_Q5_1,
    TENSOR_Q8_0,
    TENSOR_Q4_K,
    TENSOR_Q5_K,
    TENSOR_Q6_K,
    TENSOR_MXFP4, /* safetensors keep its scales and codes as two tensors of U8 */
    TENSOR_TYPE_COUNT
};

/* Returns the type's name: "F32", "Q4_K" …; never NULL for a value of the enum. */
const char *tensor_type_name(enum tensor_type type);
/* These functions return the elements and the bytes of one block of the type. A type without blocks has
 * blocks of 1 element. */
uint32_t tensor_type_block(enum tensor_type type);
uint32_t tensor_type_block_bytes(enum tensor_type type);

struct safetensors_tensor {
    const char *name; /* borrowed until close */
    enum tensor_type type;
    uint32_t rank; /* dimensions; 0 is a scalar */
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t offset; /* bytes from the beginning of the file */
    uint64_t size;   /* bytes */
};

struct safetensors;

/* Reads and checks the header of file 'file' of a source, which is borrowed and must outlive the result. */
int safetensors_open(struct model_source *source, uint32_t file, struct safetensors **st, struct err *err);
/* Opens a local file by path; the result owns the mapping. */
int safetensors_open_path(const char *path, struct safetensors **st, struct err *err);
/* Opens a file that lies in memory [size], borrowed until close. */
int safetensors_open_memory(const void *data, size_t size, struct safetensors **st, struct err *err);
/* Opens the first file of a source, which is taken, also on error. */
int safetensors_open_source(struct model_source *source, struct safetensors **st, struct err *err);
void safetensors_close(struct safetensors *st);

/* Returns the number of tensors. */
uint32_t safetensors_count(const struct safetensors *st);
/* Returns a tensor by its index in order of offset. */
const struct safetensors_tensor *safetensors_at(const struct safetensors *st, uint32_t index);
/* Returns a tensor by name, or NULL. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);
/* Returns the value of a "__metadata__" key, or NULL. Borrowed until close. */
const char *safetensors_metadata(const struct safetensors *st, const char *key);

/* Reads bytes [offset, offset + size) of a tensor without conversion. */
int safetensors_read(struct safetensors *st, const struct safetensors_tensor *tensor, uint64_t offset,
                     size_t size, void *dst, struct err *err);
/* Reads a whole tensor of F32, F16, BF16 or F64 as fp32. 'count' must be the tensor's number of elements; dst
 * has room for them. */
int safetensors_read_f32(struct safetensors *st, const struct safetensors_tensor *tensor, float *dst,
                         uint64_t count, struct err *err);

/* One tensor to write. Either data is not NULL, or fill() is called with increasing offsets until it has
 * given size bytes. */
struct safetensors_item {
    const char *name;
    enum tensor_type type; /* a type without blocks */
    uint32_t rank;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    const void *data; /* little-endian elements in row order, or NULL */
    int (*fill)(void *arg, uint64_t offset, size_t size, void *dst, struct err *err);
    void *arg;
};

/* Opens the file that the items would be written as, without writing it: data is borrowed, and fill() called
 * for what is read, in any order. Items and their args are borrowed until close. */
int safetensors_open_items(const struct safetensors_item *items, uint32_t count, struct safetensors **st,
                           struct err *err);

struct safetensors_meta {
    const char *key, *value;
};

/* Writes items in the given order to 'path': the file is complete (synced, then renamed into place) or
 * absent. Equal inputs give equal bytes. Errors: ERR_INVALID (a name occurs twice, a shape is too big),
 * ERR_IO (disk full …). */
int safetensors_write(const char *path, const struct safetensors_item *items, uint32_t count,
                      const struct safetensors_meta *meta, uint32_t meta_count, struct err *err);
/* Encodes items as safetensors_write() does, but appends the file's bytes to 'out'. */
int safetensors_encode(const struct safetensors_item *items, uint32_t count,
                       const struct safetensors_meta *meta, uint32_t meta_count, struct buf *out,
                       struct err *err);

#endif
