/* The safetensors format, read and written with every claim of the header checked.
 *
 * A file is: 8 bytes little-endian length of the header, the header (a JSON object name -> {dtype, shape,
 * data_offsets [begin, end) into the data that follows}, and "__metadata__": string -> string), the data.
 * Refused with ERR_CORRUPT naming the tensor: a header longer than the file or 64 MiB, a name twice, an
 * unknown key, a dtype we do not know, a shape whose product overflows or differs from its bytes, ranges that
 * overlap, leave holes, or do not end where the file ends.
 */
#ifndef MOTLEY_MODEL_FILES_SAFETENSORS_H
#define MOTLEY_MODEL_FILES_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/files/source.h"

enum {
    SAFETENSORS_HEADER_MAX = 64 << 20, /* bytes */
    SAFETENSORS_TENSORS_MAX = 1 << 20,
    SAFETENSORS_DIMS_MAX = 8
};

/* Element types of tensors, in files of either format. */
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
    /* GGUF blocks */
    TENSOR_Q4_0,
    TENSOR_Q4_1,
    TENSOR_Q5_0,
    TENSOR_Q5_1,
    TENSOR_Q8_0,
    TENSOR_Q4_K,
    TENSOR_Q5_K,
    TENSOR_Q6_K,
    TENSOR_TYPE_COUNT
};

/* "F32", "Q4_K" …; never NULL for a value of the enum. */
const char *tensor_type_name(enum tensor_type type);
/* Elements and bytes of one block of the type (1 element where it is not blocked). */
uint32_t tensor_type_block(enum tensor_type type);
uint32_t tensor_type_block_bytes(enum tensor_type type);

struct safetensors_tensor {
    const char *name; /* borrowed until close */
    enum tensor_type type;
    uint32_t rank; /* dimensions; 0 is a scalar */
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    uint64_t offset; /* in the file, bytes */
    uint64_t size;   /* bytes */
};

struct safetensors;

/* Read and check the header of file 'file' of a source (borrowed: must outlive the result). */
int safetensors_open(struct model_source *source, uint32_t file, struct safetensors **st, struct err *err);
/* A local file by path; the result owns its mapping. */
int safetensors_open_path(const char *path, struct safetensors **st, struct err *err);
/* A file in memory [size]; borrowed until close. */
int safetensors_open_memory(const void *data, size_t size, struct safetensors **st, struct err *err);
void safetensors_close(struct safetensors *st);

/* Number of tensors. */
uint32_t safetensors_count(const struct safetensors *st);
/* In order of offset. */
const struct safetensors_tensor *safetensors_at(const struct safetensors *st, uint32_t index);
/* By name, or NULL. */
const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name);
/* Value of a "__metadata__" key, or NULL. Borrowed until close. */
const char *safetensors_metadata(const struct safetensors *st, const char *key);

/* Read bytes [offset, offset + size) of a tensor, as they are. */
int safetensors_read(struct safetensors *st, const struct safetensors_tensor *tensor, uint64_t offset,
                     size_t size, void *dst, struct err *err);
/* Read a whole tensor of F32, F16, BF16 or F64 as fp32; dst holds 'count' elements, which must be its number.
 */
int safetensors_read_f32(struct safetensors *st, const struct safetensors_tensor *tensor, float *dst,
                         uint64_t count, struct err *err);

/* One tensor to write. Either data is not NULL, or fill() is called with increasing offsets until size bytes
 * are out. */
struct safetensors_item {
    const char *name;
    enum tensor_type type; /* unblocked */
    uint32_t rank;
    uint64_t shape[SAFETENSORS_DIMS_MAX];
    const void *data; /* little-endian elements in row order, or NULL */
    int (*fill)(void *arg, uint64_t offset, size_t size, void *dst, struct err *err);
    void *arg;
};

struct safetensors_meta {
    const char *key, *value;
};

/* Write items in the given order to 'path': complete (synced, renamed into place) or not there at all.
 * Equal inputs give equal bytes. Errors: ERR_INVALID (a name twice, a shape too big), ERR_IO (disk full …).
 */
int safetensors_write(const char *path, const struct safetensors_item *items, uint32_t count,
                      const struct safetensors_meta *meta, uint32_t meta_count, struct err *err);
/* The same, appended to 'out'. */
int safetensors_encode(const struct safetensors_item *items, uint32_t count,
                       const struct safetensors_meta *meta, uint32_t meta_count, struct buf *out,
                       struct err *err);

#endif
