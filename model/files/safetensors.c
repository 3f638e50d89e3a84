/* Reads safetensors. The header comes from a stranger, so each of its claims about the file is checked. */
#include "model/files/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "common/json.h"
#include "model/files/by_name.h"
#include "model/files/file_kind.h"
#include "model/files/gguf.h"

struct safetensors {
    struct model_source *source;
    bool own_source;
    uint32_t file;
    char *names; /* all names, one after the other, each NUL-terminated */
    struct safetensors_tensor *tensors;
    struct by_name *by_name;
    uint32_t count;
    json_t *metadata; /* "__metadata__", an object of strings, or NULL */
};

static int safetensors_refuse(struct err *err, const char *name, const char *what)
{
    return err_set(err, ERR_CORRUPT, "safetensors: tensor \"%.200s\": %s", name, what);
}

static int parse_type(const char *text, enum tensor_type *type)
{
    for (int i = 0; i < TENSOR_Q4_0; i++)
        if (strcmp(text, tensor_type_name((enum tensor_type)i)) == 0) {
            *type = (enum tensor_type)i;
            return 0;
        }
    return -1;
}

/* Reads a whole number in [0, 2^53]. */
static int parse_count(const json_t *value, uint64_t *out)
{
    json_int_t n = json_integer_value(value);
    if (!json_is_integer(value) || n < 0 || n > (json_int_t)1 << 53)
        return -1;
    *out = (uint64_t)n;
    return 0;
}

/* Computes a tensor's bytes from shape and dtype; false on overflow. */
static bool shape_bytes(enum tensor_type type, const uint64_t *shape, uint32_t rank, uint64_t *bytes)
{
    uint64_t n = tensor_type_block_bytes(type);
    for (uint32_t i = 0; i < rank; i++)
        if (__builtin_mul_overflow(n, shape[i], &n))
            return false;
    *bytes = n;
    return true;
}

/* Reads one entry of the header. data_bytes is the size of the data behind the header. */
static int safetensors_parse_tensor(const char *name, const json_t *entry, uint64_t data_bytes,
                                    struct safetensors_tensor *t, struct err *err)
{
    const char *type = json_string_value(json_object_get(entry, "dtype"));
    const json_t *shape = json_object_get(entry, "shape"), *offsets = json_object_get(entry, "data_offsets");
    uint64_t begin, end, bytes;
    if (!json_is_object(entry) || !type || !json_is_array(shape) || !json_is_array(offsets) ||
        json_array_size(offsets) != 2 || json_object_size(entry) != 3)
        return safetensors_refuse(err, name, "not an object of exactly dtype, shape and two data_offsets");
    if (parse_type(type, &t->type) < 0)
        return err_set(err, ERR_CORRUPT, "safetensors: tensor \"%.200s\": the dtype \"%.32s\" is not known",
                       name, type);
    if (json_array_size(shape) > SAFETENSORS_DIMS_MAX)
        return safetensors_refuse(err, name, "more than 8 dimensions");
    t->rank = (uint32_t)json_array_size(shape);
    for (uint32_t i = 0; i < t->rank; i++)
        if (parse_count(json_array_get(shape, i), &t->shape[i]) < 0)
            return safetensors_refuse(err, name, "a dimension is no whole number");
    if (parse_count(json_array_get(offsets, 0), &begin) < 0 ||
        parse_count(json_array_get(offsets, 1), &end) < 0 || begin > end)
        return safetensors_refuse(err, name, "data_offsets are no range");
    if (end > data_bytes)
        return err_set(
            err, ERR_CORRUPT,
            "safetensors: tensor \"%.200s\": its data ends at byte %llu, but the file has only %llu", name,
            (unsigned long long)end, (unsigned long long)data_bytes);
    if (!shape_bytes(t->type, t->shape, t->rank, &bytes))
        return safetensors_refuse(err, name, "the shape overflows");
    if (bytes != end - begin)
        return err_set(err, ERR_CORRUPT,
                       "safetensors: tensor \"%.200s\": shape and dtype make %llu bytes, data_offsets %llu",
                       name, (unsigned long long)bytes, (unsigned long long)(end - begin));
    t->name = name;
    t->offset = begin;
    t->size = bytes;
    return 0;
}

static int safetensors_compare_offset(const void *a, const void *b)
{
    const struct safetensors_tensor *x = a, *y = b;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    if (x->size != y->size)
        return x->size < y->size ? -1 : 1;
    return strcmp(x->name, y->name);
}

static int safetensors_index_names(struct safetensors *st, struct err *err)
{
    st->by_name = calloc(st->count ? st->count : 1, sizeof(*st->by_name));
    if (!st->by_name)
        return err_set(err, ERR_NOMEM, "no memory for %u tensors", st->count);
    for (uint32_t i = 0; i < st->count; i++)
        st->by_name[i] = (struct by_name){st->tensors[i].name, i};
    by_name_sort(st->by_name, st->count);
    return 0;
}

/* Checks that ranges follow each other without overlap or hole and end with the file, and makes offsets count
 * from the beginning of the file. */
static int check_layout(struct safetensors *st, uint64_t data_begin, uint64_t data_bytes, struct err *err)
{
    uint64_t at = 0;
    qsort(st->tensors, st->count, sizeof(*st->tensors), safetensors_compare_offset);
    for (uint32_t i = 0; i < st->count; i++) {
        struct safetensors_tensor *t = &st->tensors[i];
        if (t->offset < at)
            return safetensors_refuse(err, t->name, "its data overlaps that of another");
        if (t->offset > at)
            return safetensors_refuse(err, t->name, "there is a hole before its data");
        at += t->size;
        t->offset += data_begin;
    }
    if (at != data_bytes)
        return err_set(err, ERR_CORRUPT,
                       "safetensors: the tensors hold %llu bytes, the file %llu behind its header",
                       (unsigned long long)at, (unsigned long long)data_bytes);
    return 0;
}

static int check_metadata(struct safetensors *st, json_t *object, struct err *err)
{
    const char *key;
    json_t *value;
    if (!json_is_object(object))
        return err_set(err, ERR_CORRUPT, "safetensors: __metadata__ is no object");
    json_object_foreach (object, key, value) {
        if (!json_is_string(value))
            return err_set(err, ERR_CORRUPT, "safetensors: __metadata__.%.100s is no text", key);
    }
    st->metadata = json_incref(object);
    return 0;
}

static int parse_entries(struct safetensors *st, json_t *header, uint64_t data_begin, uint64_t data_bytes,
                         struct err *err)
{
    size_t entries = json_object_size(header), bytes = 0, at = 0;
    const char *key;
    json_t *value;
    if (entries > SAFETENSORS_TENSORS_MAX)
        return err_set(err, ERR_CORRUPT, "safetensors: %zu tensors are beyond the limit of %d", entries,
                       SAFETENSORS_TENSORS_MAX);
    json_object_foreach (header, key, value)
        bytes += strlen(key) + 1;
    st->tensors = calloc(entries ? entries : 1, sizeof(*st->tensors));
    st->names = malloc(bytes ? bytes : 1);
    if (!st->tensors || !st->names)
        return err_set(err, ERR_NOMEM, "no memory for %zu tensors", entries);
    json_object_foreach (header, key, value) {
        if (strcmp(key, "__metadata__") == 0) {
            if (check_metadata(st, value, err) < 0)
                return -1;
            continue;
        }
        size_t length = strlen(key) + 1;
        memcpy(st->names + at, key, length);
        if (safetensors_parse_tensor(st->names + at, value, data_bytes, &st->tensors[st->count], err) < 0)
            return -1;
        at += length;
        st->count++;
    }
    if (check_layout(st, data_begin, data_bytes, err) < 0)
        return -1;
    return safetensors_index_names(st, err);
}

static int safetensors_parse_header(struct safetensors *st, struct err *err)
{
    uint64_t size = model_source_file(st->source, st->file)->size, length = 0;
    uint8_t head[FILE_KIND_BYTES];
    size_t known = size < sizeof(head) ? (size_t)size : sizeof(head);
    if (model_source_read(st->source, st->file, 0, known, head, err) < 0)
        return -1;
    /* The length of a safetensors header may have any bytes, also those of another kind's magic; the object
     * behind it decides. */
    if ((known <= 8 || head[8] != '{') && file_kind_expect(head, known, FILE_KIND_SAFETENSORS, err) < 0)
        return -1;
    if (size < 8)
        return err_set(err, ERR_CORRUPT, "safetensors: a file of %llu bytes has no header",
                       (unsigned long long)size);
    for (int i = 7; i >= 0; i--)
        length = length << 8 | head[i];
    if (length > size - 8 || length > SAFETENSORS_HEADER_MAX || length < 2)
        return err_set(
            err, ERR_CORRUPT,
            "safetensors: a header of %llu bytes is claimed, the file has %llu and the limit is %d",
            (unsigned long long)length, (unsigned long long)size, SAFETENSORS_HEADER_MAX);
    char *text = malloc((size_t)length);
    if (!text)
        return err_set(err, ERR_NOMEM, "no memory for a header of %llu bytes", (unsigned long long)length);
    int status = model_source_read(st->source, st->file, 8, (size_t)length, text, err);
    json_t *header = NULL;
    if (status == 0) {
        header = json_parse_limited(text, (size_t)length, 8, err);
        if (!header || !json_is_object(header)) {
            if (header)
                err_set(err, ERR_CORRUPT, "not an object");
            err->code = ERR_CORRUPT;
            status = err_wrap(err, "safetensors: header");
        } else {
            status = parse_entries(st, header, 8 + length, size - 8 - length, err);
        }
    }
    json_decref(header);
    free(text);
    return status;
}

int safetensors_open(struct model_source *source, uint32_t file, struct safetensors **out, struct err *err)
{
    *out = NULL;
    const struct model_file *f = model_source_file(source, file);
    if (!f)
        return err_set(err, ERR_INTERNAL, "safetensors: no file %u", file);
    struct safetensors *st = calloc(1, sizeof(*st));
    if (!st)
        return err_set(err, ERR_NOMEM, "no memory to open \"%s\"", f->name);
    st->source = source;
    st->file = file;
    if (safetensors_parse_header(st, err) < 0) {
        err_wrap(err, "%s", f->name);
        safetensors_close(st);
        return -1;
    }
    *out = st;
    return 0;
}

int safetensors_open_source(struct model_source *source, struct safetensors **out, struct err *err)
{
    if (safetensors_open(source, 0, out, err) < 0) {
        model_source_close(source);
        return -1;
    }
    (*out)->own_source = true;
    return 0;
}

int safetensors_open_path(const char *path, struct safetensors **out, struct err *err)
{
    struct model_source *source;
    *out = NULL;
    if (model_source_open_local(path, &source, err) < 0)
        return -1;
    if (model_source_file_count(source) != 1) {
        model_source_close(source);
        return err_set(err, ERR_INVALID, "\"%s\" is a folder, not a safetensors file", path);
    }
    return safetensors_open_source(source, out, err);
}

int safetensors_open_memory(const void *data, size_t size, struct safetensors **out, struct err *err)
{
    struct model_source *source;
    *out = NULL;
    if (model_source_open_memory("memory", data, size, &source, err) < 0)
        return -1;
    return safetensors_open_source(source, out, err);
}

void safetensors_close(struct safetensors *st)
{
    if (!st)
        return;
    if (st->own_source)
        model_source_close(st->source);
    json_decref(st->metadata);
    free(st->by_name);
    free(st->tensors);
    free(st->names);
    free(st);
}

uint32_t safetensors_count(const struct safetensors *st)
{
    return st->count;
}

const struct safetensors_tensor *safetensors_at(const struct safetensors *st, uint32_t index)
{
    return index < st->count ? &st->tensors[index] : NULL;
}

const struct safetensors_tensor *safetensors_find(const struct safetensors *st, const char *name)
{
    return safetensors_at(st, by_name_find(st->by_name, st->count, name));
}

const char *safetensors_metadata(const struct safetensors *st, const char *key)
{
    return st->metadata ? json_string_value(json_object_get(st->metadata, key)) : NULL;
}

int safetensors_read(struct safetensors *st, const struct safetensors_tensor *tensor, uint64_t offset,
                     size_t size, void *dst, struct err *err)
{
    if (offset > tensor->size || size > tensor->size - offset)
        return err_set(err, ERR_INVALID, "safetensors: bytes beyond tensor \"%.200s\" were asked for",
                       tensor->name);
    return model_source_read(st->source, st->file, tensor->offset + offset, size, dst, err);
}

int safetensors_read_f32(struct safetensors *st, const struct safetensors_tensor *tensor, float *dst,
                         uint64_t count, struct err *err)
{
    uint32_t width = tensor_type_block_bytes(tensor->type);
    if (tensor->size / width != count)
        return err_set(err, ERR_INVALID, "safetensors: tensor \"%.200s\" has %llu elements, not %llu",
                       tensor->name, (unsigned long long)(tensor->size / width), (unsigned long long)count);
    uint8_t piece[32768];
    for (uint64_t done = 0; done < count;) {
        uint64_t n = sizeof(piece) / width;
        if (n > count - done)
            n = count - done;
        if (safetensors_read(st, tensor, done * width, (size_t)(n * width), piece, err) < 0)
            return -1;
        if (tensor_dequantise(tensor->type, piece, n, dst + done, err) < 0)
            return err_wrap(err, "safetensors: tensor \"%.200s\"", tensor->name);
        done += n;
    }
    return 0;
}
