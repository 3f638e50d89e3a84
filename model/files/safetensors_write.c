/* Writes safetensors: equal inputs give equal bytes, and a file is complete under its name or absent. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "model/files/safetensors.h"

enum { PIECE_BYTES = 1 << 20 };

static int item_bytes(const struct safetensors_item *item, uint64_t *bytes, struct err *err)
{
    uint64_t n;
    if ((unsigned)item->type >= TENSOR_Q4_0)
        return err_set(err, ERR_INVALID, "tensor \"%.200s\": a blocked type cannot be written", item->name);
    if (item->rank > SAFETENSORS_DIMS_MAX)
        return err_set(err, ERR_INVALID, "tensor \"%.200s\": %u dimensions are beyond %d", item->name,
                       item->rank, SAFETENSORS_DIMS_MAX);
    n = tensor_type_block_bytes(item->type);
    for (uint32_t i = 0; i < item->rank; i++)
        if (__builtin_mul_overflow(n, item->shape[i], &n) || n > (uint64_t)1 << 53)
            return err_set(err, ERR_INVALID, "tensor \"%.200s\": the shape is too big", item->name);
    if (n && !item->data && !item->fill)
        return err_set(err, ERR_INTERNAL, "tensor \"%.200s\": neither data nor fill", item->name);
    *bytes = n;
    return 0;
}

static int add_item(json_t *header, const struct safetensors_item *item, uint64_t *at, struct err *err)
{
    uint64_t bytes;
    if (item_bytes(item, &bytes, err) < 0)
        return -1;
    if (json_object_get(header, item->name) || strcmp(item->name, "__metadata__") == 0)
        return err_set(err, ERR_INVALID, "tensor \"%.200s\": the name is taken", item->name);
    json_t *shape = json_array(), *entry = json_object();
    for (uint32_t i = 0; i < item->rank; i++)
        json_array_append_new(shape, json_integer((json_int_t)item->shape[i]));
    bool ok = json_object_set_new(entry, "dtype", json_string(tensor_type_name(item->type))) == 0;
    ok = json_object_set_new(entry, "shape", shape) == 0 && ok;
    ok = ok && json_object_set_new(entry, "data_offsets",
                                   json_pack("[II]", (json_int_t)*at, (json_int_t)(*at + bytes))) == 0;
    if (json_object_set_new(header, item->name, entry) < 0 || !ok)
        return err_set(err, ERR_INVALID, "tensor \"%.200s\": the name is no UTF-8, or there is no memory",
                       item->name);
    if (__builtin_add_overflow(*at, bytes, at) || *at > (uint64_t)1 << 53)
        return err_set(err, ERR_INVALID, "tensor \"%.200s\": the file would be too big", item->name);
    return 0;
}

/* Encodes length and header, padded with blanks to 8 bytes so that the data is aligned. */
static int encode_header(const struct safetensors_item *items, uint32_t count,
                         const struct safetensors_meta *meta, uint32_t meta_count, struct buf *out,
                         struct err *err)
{
    static const uint8_t blanks[8] = "        ";
    json_t *header = json_object();
    uint64_t at = 0;
    uint8_t length[8] = {0};
    size_t begin = out->size;
    int status = -1;
    if (!header)
        return err_set(err, ERR_NOMEM, "no memory for a header");
    if (meta_count) {
        json_t *object = json_object();
        for (uint32_t i = 0; i < meta_count; i++)
            if (json_object_set_new(object, meta[i].key, json_string(meta[i].value)) < 0) {
                json_decref(object);
                err_set(err, ERR_INVALID, "metadata \"%.100s\" is no UTF-8", meta[i].key);
                goto out;
            }
        json_object_set_new(header, "__metadata__", object);
    }
    for (uint32_t i = 0; i < count; i++)
        if (add_item(header, &items[i], &at, err) < 0)
            goto out;
    if (buf_append(out, length, 8, err) < 0 || json_print(header, false, out, err) < 0)
        goto out;
    size_t size = out->size - begin - 8, pad = (8 - size % 8) % 8;
    if (buf_append(out, blanks, pad, err) < 0)
        goto out;
    size += pad;
    if (size > SAFETENSORS_HEADER_MAX) {
        err_set(err, ERR_TOO_BIG, "a header of %zu bytes is beyond the limit of %d", size,
                SAFETENSORS_HEADER_MAX);
        goto out;
    }
    for (int i = 0; i < 8; i++)
        out->data[begin + (size_t)i] = (uint8_t)((uint64_t)size >> (8 * i));
    status = 0;
out:
    json_decref(header);
    return status;
}

/* Calls 'take' with an item's bytes in order, a piece at a time. */
static int stream_item(const struct safetensors_item *item, uint8_t *piece,
                       int (*take)(void *arg, const void *data, size_t size, struct err *err), void *arg,
                       struct err *err)
{
    uint64_t bytes;
    if (item_bytes(item, &bytes, err) < 0)
        return -1;
    for (uint64_t at = 0; at < bytes;) {
        size_t n = bytes - at < PIECE_BYTES ? (size_t)(bytes - at) : PIECE_BYTES;
        const void *data = item->data ? (const uint8_t *)item->data + at : piece;
        if (!item->data && item->fill(item->arg, at, n, piece, err) < 0)
            return err_wrap(err, "tensor \"%.200s\"", item->name);
        if (take(arg, data, n, err) < 0)
            return -1;
        at += n;
    }
    return 0;
}

static int take_buf(void *arg, const void *data, size_t size, struct err *err)
{
    return buf_append(arg, data, size, err);
}

static int reserve_items(const struct safetensors_item *items, uint32_t count, struct buf *out,
                         struct err *err)
{
    uint64_t sum = 0, bytes;
    for (uint32_t i = 0; i < count; i++) {
        if (item_bytes(&items[i], &bytes, err) < 0)
            return -1;
        sum += bytes; /* the items' sizes and their sum were checked with the header */
    }
    return buf_reserve(out, sum, err);
}

int safetensors_encode(const struct safetensors_item *items, uint32_t count,
                       const struct safetensors_meta *meta, uint32_t meta_count, struct buf *out,
                       struct err *err)
{
    size_t begin = out->size;
    uint8_t *piece = malloc(PIECE_BYTES);
    int status = piece ? 0 : err_set(err, ERR_NOMEM, "no memory for a piece of %d bytes", PIECE_BYTES);
    if (status == 0)
        status = encode_header(items, count, meta, meta_count, out, err);
    if (status == 0) /* All room is reserved at once, because growing by copying would hold the data twice. */
        status = reserve_items(items, count, out, err);
    for (uint32_t i = 0; status == 0 && i < count; i++)
        status = stream_item(&items[i], piece, take_buf, out, err);
    free(piece);
    if (status < 0)
        out->size = begin;
    return status;
}

/* --- reading what was not written --- */

struct unwritten {
    struct buf header;
    const struct safetensors_item *items;
    uint64_t *ends; /* [1 + count]: where the header and each item end in the file */
};

static int unwritten_read(void *self, uint32_t file, uint64_t offset, size_t size, void *dst, struct err *err)
{
    const struct unwritten *u = self;
    uint32_t i = 0;
    (void)file;
    if (offset < u->ends[0] && offset + size <= u->ends[0]) {
        memcpy(dst, u->header.data + offset, size);
        return 0;
    }
    while (offset >= u->ends[i + 1])
        i++;
    if (offset < u->ends[i] || offset + size > u->ends[i + 1])
        return err_set(err, ERR_INTERNAL, "bytes of more than one tensor are read at once");
    const struct safetensors_item *item = &u->items[i];
    if (!item->data)
        return item->fill(item->arg, offset - u->ends[i], size, dst, err);
    memcpy(dst, (const uint8_t *)item->data + (offset - u->ends[i]), size);
    return 0;
}

static void unwritten_destroy(void *self)
{
    struct unwritten *u = self;
    buf_fini(&u->header);
    free(u->ends);
    free(u);
}

int safetensors_open_items(const struct safetensors_item *items, uint32_t count, struct safetensors **st,
                           struct err *err)
{
    static const struct model_source_ops ops = {.read = unwritten_read, .destroy = unwritten_destroy};
    struct model_file file = {.name = "tensors"};
    struct model_source *source;
    struct unwritten *u = calloc(1, sizeof(*u));
    *st = NULL;
    if (!u)
        return err_set(err, ERR_NOMEM, "no memory for %u tensors", count);
    buf_init(&u->header, SAFETENSORS_HEADER_MAX + 16);
    u->items = items;
    u->ends = calloc((size_t)count + 2, sizeof(*u->ends));
    int status = u->ends ? encode_header(items, count, NULL, 0, &u->header, err)
                         : err_set(err, ERR_NOMEM, "no memory for %u tensors", count);
    for (uint32_t i = 0; status == 0 && i <= count; i++) {
        uint64_t bytes = u->header.size;
        status = i > 0 ? item_bytes(&items[i - 1], &bytes, err) : 0;
        u->ends[i] = file.size += bytes;
    }
    if (status < 0) {
        unwritten_destroy(u);
        return -1;
    }
    u->ends[count + 1] = UINT64_MAX;
    return model_source_create(&ops, u, &file, 1, &source, err) < 0
               ? -1
               : safetensors_open_source(source, st, err);
}

/* --- a file --- */

struct file_taker {
    int fd;
    uint64_t at;
    const char *path;
};

static int safetensors_write_take_file(void *arg, const void *data, size_t size, struct err *err)
{
    struct file_taker *taker = arg;
    if (file_pwrite_all(taker->fd, data, size, taker->at, taker->path, err) < 0)
        return -1;
    taker->at += size;
    return 0;
}

struct writing {
    const struct safetensors_item *items;
    uint32_t count;
    const struct buf *header;
};

static int write_all(void *arg, int fd, const char *path, struct err *err)
{
    const struct writing *writing = arg;
    struct file_taker taker = {.fd = fd, .path = path};
    uint8_t *piece = malloc(PIECE_BYTES);
    if (!piece)
        return err_set(err, ERR_NOMEM, "no memory for a piece of %d bytes", PIECE_BYTES);
    int status = safetensors_write_take_file(&taker, writing->header->data, writing->header->size, err);
    for (uint32_t i = 0; status == 0 && i < writing->count; i++)
        status = stream_item(&writing->items[i], piece, safetensors_write_take_file, &taker, err);
    free(piece);
    return status;
}

int safetensors_write(const char *path, const struct safetensors_item *items, uint32_t count,
                      const struct safetensors_meta *meta, uint32_t meta_count, struct err *err)
{
    struct buf header = {.limit = SAFETENSORS_HEADER_MAX + 64};
    struct writing writing = {items, count, &header};
    int status = encode_header(items, count, meta, meta_count, &header, err);
    if (status == 0)
        status = file_write_by(path, 0644, write_all, &writing, err);
    buf_fini(&header);
    return status;
}
