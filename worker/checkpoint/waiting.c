#include "worker/checkpoint/waiting.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"

enum { INDEX_FILE_BYTES = 4 << 20, INDEX_BYTES_MAX = 16 << 20, HASHED_BYTES = 1 << 20 };

int snapshot_create(const char *dir, uint64_t memory_bytes, struct snapshot **out, struct err *err)
{
    struct snapshot *snapshot = calloc(1, sizeof(*snapshot));
    *out = snapshot;
    if (!snapshot)
        return err_set(err, ERR_NOMEM, "no memory for checkpoints");
    buf_init(&snapshot->index, INDEX_BYTES_MAX);
    snapshot->memory_bytes = memory_bytes;
    if (spool_create(dir, memory_bytes, &snapshot->spool, err) == 0)
        return 0;
    free(snapshot);
    *out = NULL;
    return -1;
}

void snapshot_clear(struct snapshot *snapshot)
{
    spool_clear(snapshot->spool);
    buf_fini(&snapshot->index);
    json_decref(snapshot->blobs);
    snapshot->blobs = NULL;
    snapshot->waiting_count = snapshot->adapter_count = 0;
    snapshot->index_number = 0;
    snapshot->result = 0;
    err_clear(&snapshot->err);
}

void snapshot_destroy(struct snapshot *snapshot)
{
    if (!snapshot)
        return;
    snapshot_clear(snapshot);
    spool_destroy(snapshot->spool);
    free(snapshot->waiting);
    free(snapshot->adapters);
    free(snapshot);
}

int snapshot_wait(struct snapshot *snapshot, struct session *session, const char *name,
                  const struct buf *bytes, struct err *err)
{
    struct err full;
    if (ARRAY_RESERVE(snapshot->waiting, snapshot->waiting_capacity, snapshot->waiting_count + 1, err) < 0)
        return -1;
    struct waiting_file *file = &snapshot->waiting[snapshot->waiting_count];
    file->size = bytes->size;
    snprintf(file->name, sizeof(file->name), "%s", name);
    if (spool_append(snapshot->spool, bytes->data, bytes->size, &file->at, &full) < 0)
        return checkpoint_put(session, snapshot->blobs, name, bytes->data, bytes->size, err);
    snapshot->waiting_count++;
    return 0;
}

int snapshot_index_end(struct snapshot *snapshot, struct session *session, struct err *err)
{
    char name[PIECE_FILE_NAME_MAX];
    if (snapshot->index.size == 0)
        return 0;
    snprintf(name, sizeof(name), "pieces-%u-%u.jsonl", session->assignment->rank, snapshot->index_number++);
    int result = snapshot_wait(snapshot, session, name, &snapshot->index, err);
    buf_fini(&snapshot->index);
    return result;
}

int snapshot_index_add(struct snapshot *snapshot, struct session *session, const void *lines, size_t size,
                       struct err *err)
{
    if (buf_append(&snapshot->index, lines, size, err) < 0)
        return -1;
    return snapshot->index.size < INDEX_FILE_BYTES ? 0 : snapshot_index_end(snapshot, session, err);
}

struct waiting_bytes {
    struct spool *spool;
    uint64_t at;
};

static int waiting_read(void *arg, uint64_t offset, void *dst, size_t size, struct err *err)
{
    const struct waiting_bytes *bytes = arg;
    return spool_read(bytes->spool, bytes->at + offset, dst, size, err);
}

static int waiting_digest(struct waiting_bytes *bytes, uint64_t size, char sha256[DIGEST_HEX_SIZE],
                          struct err *err)
{
    uint8_t sum[DIGEST_SIZE], *part = malloc(HASHED_BYTES);
    struct digest *digest = digest_create(err);
    int result = digest && part ? 0 : err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    for (uint64_t at = 0; at < size && result == 0; at += HASHED_BYTES) {
        size_t count = size - at < HASHED_BYTES ? (size_t)(size - at) : HASHED_BYTES;
        result = waiting_read(bytes, at, part, count, err);
        if (result == 0)
            result = digest_update(digest, part, count, err);
    }
    if (result == 0)
        result = digest_final(digest, sum, err);
    if (result == 0)
        digest_hex(sum, sizeof(sum), sha256);
    digest_destroy(digest);
    free(part);
    return result;
}

int snapshot_put_waiting(struct snapshot *snapshot, struct session *session, struct err *err)
{
    for (size_t f = 0; f < snapshot->waiting_count; f++) {
        const struct waiting_file *file = &snapshot->waiting[f];
        struct waiting_bytes bytes = {snapshot->spool, file->at};
        char sha256[DIGEST_HEX_SIZE];
        if (waiting_digest(&bytes, file->size, sha256, err) < 0 ||
            blobs_put_read(session->blobs, sha256, file->size, waiting_read, &bytes, err) < 0)
            return err_wrap(err, "%s", file->name);
        if (checkpoint_add(snapshot->blobs, file->name, sha256, file->size, err) < 0)
            return -1;
    }
    snapshot->waiting_count = 0;
    return 0;
}

int snapshot_wait_adapter(struct snapshot *snapshot, const struct made_file *file, struct err *err)
{
    struct adapter_file added = {.lines_size = file->lines->size, .size = file->bytes->size};
    uint64_t at;
    if (ARRAY_RESERVE(snapshot->adapters, snapshot->adapter_capacity, snapshot->adapter_count + 1, err) < 0 ||
        spool_append(snapshot->spool, file->lines->data, file->lines->size, &added.at, err) < 0 ||
        spool_append(snapshot->spool, file->bytes->data, file->bytes->size, &at, err) < 0)
        return err_wrap(err, "%s", file->name);
    snapshot->adapters[snapshot->adapter_count++] = added;
    return 0;
}
