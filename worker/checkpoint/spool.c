#include "worker/checkpoint/spool.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/file.h"

struct spool {
    char *dir;
    struct buf memory; /* bytes [0, memory.size) */
    uint64_t size;     /* bytes in all; those from memory.size on are in the file */
    int fd;            /* -1: there is no file */
};

int spool_create(const char *dir, uint64_t memory_bytes, struct spool **out, struct err *err)
{
    struct spool *spool = calloc(1, sizeof(*spool));
    char *copy = dir ? strdup(dir) : NULL;
    *out = spool;
    if (!spool || (dir && !copy)) {
        free(spool);
        free(copy);
        *out = NULL;
        return err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    }
    spool->dir = copy;
    spool->fd = -1;
    buf_init(&spool->memory, memory_bytes);
    return 0;
}

void spool_clear(struct spool *spool)
{
    buf_fini(&spool->memory);
    if (spool->fd >= 0)
        close(spool->fd);
    spool->fd = -1;
    spool->size = 0;
}

void spool_destroy(struct spool *spool)
{
    if (!spool)
        return;
    spool_clear(spool);
    free(spool->dir);
    free(spool);
}

static int spool_file_open(struct spool *spool, struct err *err)
{
    char path[1024];
    if (!spool->dir)
        return err_set(err, ERR_IO, "no folder for a checkpoint of more than %zu bytes", spool->memory.limit);
    if (file_mkdirs(spool->dir, 0700, err) < 0 ||
        file_path(path, sizeof(path), err, "%s/checkpoint-XXXXXX", spool->dir) < 0)
        return -1;
    spool->fd = mkstemp(path);
    if (spool->fd < 0)
        return err_set(err, ERR_IO, "no file can be made in %s", spool->dir);
    (void)unlink(path);
    return 0;
}

int spool_append(struct spool *spool, const void *data, size_t size, uint64_t *at, struct err *err)
{
    *at = spool->size;
    bool in_memory = spool->size == spool->memory.size && size <= spool->memory.limit - spool->memory.size;
    if (in_memory) {
        if (buf_append(&spool->memory, data, size, err) < 0)
            return -1;
    } else {
        uint64_t offset = spool->size - spool->memory.size;
        if (spool->fd < 0 && spool_file_open(spool, err) < 0)
            return -1;
        if (file_pwrite_all(spool->fd, data, size, offset, spool->dir, err) < 0) {
            (void)!ftruncate(spool->fd, (off_t)offset); /* frees what was written before the disk was full */
            return -1;
        }
    }
    spool->size += size;
    return 0;
}

int spool_read(struct spool *spool, uint64_t at, void *dst, size_t size, struct err *err)
{
    if (at > spool->size || size > spool->size - at)
        return err_set(err, ERR_INTERNAL, "bytes %llu to %llu of a checkpoint of %llu",
                       (unsigned long long)at, (unsigned long long)(at + size),
                       (unsigned long long)spool->size);
    if (at >= spool->memory.size)
        return file_pread_all(spool->fd, dst, size, at - spool->memory.size, spool->dir, err);
    size_t held = spool->memory.size - at < size ? (size_t)(spool->memory.size - at) : size;
    memcpy(dst, spool->memory.data + at, held);
    return held == size ? 0
                        : file_pread_all(spool->fd, (uint8_t *)dst + held, size - held, 0, spool->dir, err);
}
