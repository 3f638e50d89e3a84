/* A source's list of files, and the checks before every call of an implementation. */
#include "model/files/source.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct model_source {
    const struct model_source_ops *ops;
    void *self;
    struct model_file *files;
    uint32_t file_count;
    _Atomic uint64_t read_bytes;
};

int model_source_create(const struct model_source_ops *ops, void *self, const struct model_file *files,
                        uint32_t file_count, struct model_source **source, struct err *err)
{
    struct model_source *s = NULL;
    *source = NULL;
    if (file_count > MODEL_FILES_MAX) {
        err_set(err, ERR_TOO_BIG, "a model of %u files is beyond the limit of %d", file_count,
                MODEL_FILES_MAX);
        goto fail;
    }
    s = calloc(1, sizeof(*s));
    if (s)
        s->files = calloc(file_count ? file_count : 1, sizeof(*files));
    if (!s || !s->files) {
        err_set(err, ERR_NOMEM, "no memory for a model's list of files");
        goto fail;
    }
    if (file_count)
        memcpy(s->files, files, file_count * sizeof(*files));
    s->file_count = file_count;
    s->ops = ops;
    s->self = self;
    *source = s;
    return 0;
fail:
    free(s);
    ops->destroy(self);
    return -1;
}

/* --- one file in memory --- */

struct memory {
    const uint8_t *data;
};

static int source_memory_read(void *self, uint32_t file, uint64_t offset, size_t size, void *dst,
                              struct err *err)
{
    const struct memory *memory = self;
    (void)file;
    (void)err;
    memcpy(dst, memory->data + offset, size);
    return 0;
}

int model_source_open_memory(const char *name, const void *data, size_t size, struct model_source **source,
                             struct err *err)
{
    static const struct model_source_ops ops = {.read = source_memory_read, .destroy = free};
    struct model_file file = {.size = size};
    struct memory *memory = malloc(sizeof(*memory));
    *source = NULL;
    if (!memory)
        return err_set(err, ERR_NOMEM, "no memory to open %s", name);
    memory->data = data;
    snprintf(file.name, sizeof(file.name), "%s", name);
    return model_source_create(&ops, memory, &file, 1, source, err);
}

uint32_t model_source_file_count(const struct model_source *source)
{
    return source->file_count;
}

const struct model_file *model_source_file(const struct model_source *source, uint32_t file)
{
    return file < source->file_count ? &source->files[file] : NULL;
}

int model_source_find(const struct model_source *source, const char *name)
{
    for (uint32_t i = 0; i < source->file_count; i++)
        if (strcmp(source->files[i].name, name) == 0)
            return (int)i;
    return -1;
}

int model_source_read(struct model_source *source, uint32_t file, uint64_t offset, size_t size, void *dst,
                      struct err *err)
{
    if (file >= source->file_count)
        return err_set(err, ERR_INTERNAL, "file %u of a model of %u files was asked for", file,
                       source->file_count);
    const struct model_file *f = &source->files[file];
    if (offset > f->size || size > f->size - offset)
        return err_set(err, ERR_INVALID, "%s: bytes %llu..%llu were asked for, but the file has %llu",
                       f->name, (unsigned long long)offset, (unsigned long long)(offset + size),
                       (unsigned long long)f->size);
    if (size == 0)
        return 0;
    atomic_fetch_add_explicit(&source->read_bytes, size, memory_order_relaxed);
    return source->ops->read(source->self, file, offset, size, dst, err);
}

int model_source_read_file(struct model_source *source, const char *name, uint64_t limit, struct buf *out,
                           struct err *err)
{
    int file = model_source_find(source, name);
    if (file < 0)
        return err_set(err, ERR_NOT_FOUND, "the model has no file \"%s\"", name);
    uint64_t size = source->files[file].size;
    if (size > limit)
        return err_set(err, ERR_TOO_BIG, "%s: %llu bytes are beyond the limit of %llu", name,
                       (unsigned long long)size, (unsigned long long)limit);
    if (buf_reserve(out, (size_t)size, err) < 0)
        return -1;
    if (model_source_read(source, (uint32_t)file, 0, (size_t)size, out->data + out->size, err) < 0)
        return -1;
    out->size += (size_t)size;
    return buf_append(out, "", 0, err);
}

void model_source_stats(const struct model_source *source, struct model_source_stats *stats)
{
    memset(stats, 0, sizeof(*stats));
    if (source->ops->stats)
        source->ops->stats(source->self, stats);
    stats->read_bytes = atomic_load_explicit(&source->read_bytes, memory_order_relaxed);
}

void model_source_close(struct model_source *source)
{
    if (!source)
        return;
    source->ops->destroy(source->self);
    free(source->files);
    free(source);
}
