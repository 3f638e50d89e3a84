#include "model/files/manifest.h"

#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/json.h"

static int manifest_alloc(struct manifest *manifest, uint64_t size, struct err *err)
{
    uint64_t count = size / MANIFEST_CHUNK_BYTES + (size % MANIFEST_CHUNK_BYTES != 0);
    memset(manifest, 0, sizeof(*manifest));
    if (count > MANIFEST_CHUNKS_MAX)
        return err_set(err, ERR_TOO_BIG, "a file of %llu bytes is beyond the limit of %d chunks of %d bytes",
                       (unsigned long long)size, MANIFEST_CHUNKS_MAX, MANIFEST_CHUNK_BYTES);
    manifest->size = size;
    manifest->chunk_count = (uint32_t)count;
    manifest->chunks = calloc(count ? count : 1, sizeof(*manifest->chunks));
    if (!manifest->chunks)
        return err_set(err, ERR_NOMEM, "no memory for a manifest of %llu chunks", (unsigned long long)count);
    return 0;
}

void manifest_fini(struct manifest *manifest)
{
    free(manifest->chunks);
    memset(manifest, 0, sizeof(*manifest));
}

int manifest_make(struct model_source *source, uint32_t file, struct manifest *manifest, struct err *err)
{
    const struct model_file *f = model_source_file(source, file);
    int status = -1;
    memset(manifest, 0, sizeof(*manifest));
    if (!f)
        return err_set(err, ERR_INTERNAL, "a manifest of a file that the model does not have");
    if (manifest_alloc(manifest, f->size, err) < 0)
        return err_wrap(err, "%s", f->name);
    struct digest *whole = digest_create(err);
    uint8_t *chunk = malloc(MANIFEST_CHUNK_BYTES);
    if (!whole || !chunk) {
        if (!chunk)
            err_set(err, ERR_NOMEM, "no memory for a chunk of %d bytes", MANIFEST_CHUNK_BYTES);
        goto out;
    }
    for (uint32_t i = 0; i < manifest->chunk_count; i++) {
        uint64_t offset = (uint64_t)i * MANIFEST_CHUNK_BYTES;
        uint64_t left = f->size - offset;
        size_t size = left < MANIFEST_CHUNK_BYTES ? (size_t)left : MANIFEST_CHUNK_BYTES;
        if (model_source_read(source, file, offset, size, chunk, err) < 0 ||
            digest_update(whole, chunk, size, err) < 0 ||
            digest_sha256(chunk, size, manifest->chunks[i], err) < 0)
            goto out;
    }
    status = digest_final(whole, manifest->sha256, err);
out:
    digest_destroy(whole);
    free(chunk);
    if (status < 0)
        manifest_fini(manifest);
    return status;
}

int manifest_parse(const json_t *document, struct manifest *manifest, struct err *err)
{
    struct json_reader r;
    int64_t size = 0;
    uint32_t chunk_bytes = 0;
    const char *sha256 = NULL;
    const json_t *chunks = NULL;
    memset(manifest, 0, sizeof(*manifest));
    jr_init(&r, document, "manifest", err);
    jr_i64(&r, "size", JR_REQUIRED, 0, INT64_MAX, &size);
    jr_str(&r, "sha256", JR_REQUIRED, 64, 64, &sha256);
    jr_u32(&r, "chunk_bytes", JR_REQUIRED, MANIFEST_CHUNK_BYTES, MANIFEST_CHUNK_BYTES, &chunk_bytes);
    jr_array(&r, "chunks", JR_REQUIRED, 0, MANIFEST_CHUNKS_MAX, &chunks);
    if (jr_finish_loose(&r) < 0)
        return -1;
    if (manifest_alloc(manifest, (uint64_t)size, err) < 0)
        return err_wrap(err, "manifest");
    int status = 0;
    if (json_array_size(chunks) != manifest->chunk_count)
        status = err_set(err, ERR_INVALID, "manifest.chunks: %zu hashes for %u chunks",
                         json_array_size(chunks), manifest->chunk_count);
    else if (digest_unhex(sha256, manifest->sha256, DIGEST_SIZE) < 0)
        status = err_set(err, ERR_INVALID, "manifest.sha256: not 64 hex digits");
    for (uint32_t i = 0; status == 0 && i < manifest->chunk_count; i++) {
        const char *hex = json_string_value(json_array_get(chunks, i));
        if (!hex || digest_unhex(hex, manifest->chunks[i], DIGEST_SIZE) < 0)
            status = err_set(err, ERR_INVALID, "manifest.chunks[%u]: not 64 hex digits", i);
    }
    if (status < 0)
        manifest_fini(manifest);
    return status;
}

json_t *manifest_to_json(const struct manifest *manifest, struct err *err)
{
    char hex[DIGEST_HEX_SIZE];
    json_t *out = json_object(), *chunks = json_array();
    bool ok = out && chunks;
    digest_hex(manifest->sha256, DIGEST_SIZE, hex);
    ok = ok && json_object_set_new(out, "size", json_integer((json_int_t)manifest->size)) == 0 &&
         json_object_set_new(out, "sha256", json_string(hex)) == 0 &&
         json_object_set_new(out, "chunk_bytes", json_integer(MANIFEST_CHUNK_BYTES)) == 0;
    for (uint32_t i = 0; ok && i < manifest->chunk_count; i++) {
        digest_hex(manifest->chunks[i], DIGEST_SIZE, hex);
        ok = json_array_append_new(chunks, json_string(hex)) == 0;
    }
    ok = ok && json_object_set(out, "chunks", chunks) == 0;
    json_decref(chunks);
    if (ok)
        return out;
    json_decref(out);
    err_set(err, ERR_NOMEM, "no memory for a manifest");
    return NULL;
}

int manifest_verify_chunk(const struct manifest *manifest, uint32_t chunk, const void *data, size_t size,
                          struct err *err)
{
    uint8_t hash[DIGEST_SIZE];
    if (chunk >= manifest->chunk_count)
        return err_set(err, ERR_INTERNAL, "chunk %u of a file of %u chunks", chunk, manifest->chunk_count);
    if (digest_sha256(data, size, hash, err) < 0)
        return -1;
    if (!digest_equal(hash, manifest->chunks[chunk], DIGEST_SIZE))
        return err_set(err, ERR_CORRUPT, "chunk %u (bytes %llu..) does not hash as the manifest says", chunk,
                       (unsigned long long)chunk * MANIFEST_CHUNK_BYTES);
    return 0;
}

static void order_of(const char *const *names, uint32_t count, uint32_t *order)
{
    for (uint32_t i = 0; i < count; i++) {
        uint32_t k = i;
        for (; k > 0 && strcmp(names[order[k - 1]], names[i]) > 0; k--)
            order[k] = order[k - 1];
        order[k] = i;
    }
}

int manifest_content_id(const char *const *names, const struct manifest *manifests, uint32_t count,
                        uint8_t content[32], struct err *err)
{
    int status = -1;
    if (count > MODEL_FILES_MAX)
        return err_set(err, ERR_TOO_BIG, "a model of %u files is beyond the limit of %d", count,
                       MODEL_FILES_MAX);
    uint32_t *order = malloc((count ? count : 1) * sizeof(*order));
    struct digest *digest = digest_create(err);
    if (!order)
        err_set(err, ERR_NOMEM, "no memory for a content id");
    if (!order || !digest)
        goto out;
    order_of(names, count, order);
    for (uint32_t i = 0; i < count; i++) {
        const struct manifest *m = &manifests[order[i]];
        const char *name = names[order[i]];
        uint8_t size[8];
        for (int k = 0; k < 8; k++)
            size[k] = (uint8_t)(m->size >> (8 * k));
        if (digest_update(digest, name, strlen(name) + 1, err) < 0 ||
            digest_update(digest, size, sizeof(size), err) < 0 ||
            digest_update(digest, m->chunks, (size_t)m->chunk_count * DIGEST_SIZE, err) < 0)
            goto out;
    }
    status = digest_final(digest, content, err);
out:
    digest_destroy(digest);
    free(order);
    return status;
}
