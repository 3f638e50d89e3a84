/* Chunks are taken from the nearest place that has them: memory, a local path, the node's cache, the artifact
 * store. Each is compared with its hash when it enters memory. */
#include "model/files/fetch.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/file.h"
#include "common/http.h"
#include "common/json.h"
#include "common/retry.h"
#include "model/files/chunk_cache.h"
#include "model/files/manifest.h"

enum { RESIDENT_DEFAULT = 4, RESIDENT_MAX = 256, WRONG_CHUNKS_MAX = 3 };

struct resident {
    uint32_t file, chunk;
    size_t size; /* bytes; 0 when no chunk is loaded */
    uint64_t used;
    uint8_t *data; /* room for MANIFEST_CHUNK_BYTES */
};

struct fetched_file {
    char name[MODEL_FILE_NAME_MAX + 1];
    char sha256[DIGEST_HEX_SIZE];
    int fd; /* the open local file, or -1 */
    struct manifest manifest;
};

struct fetch {
    pthread_mutex_t lock; /* guards the members below */
    struct fetch_transport transport;
    uint64_t patience_ns;
    const atomic_bool *stop;
    struct chunk_cache *cache;
    struct fetched_file *files;
    uint32_t file_count;
    struct resident *resident;
    uint32_t resident_count;
    uint64_t clock;
    struct model_source_stats stats;
};

static void fetch_destroy(void *self)
{
    struct fetch *f = self;
    for (uint32_t i = 0; f->files && i < f->file_count; i++) {
        if (f->files[i].fd >= 0)
            close(f->files[i].fd);
        manifest_fini(&f->files[i].manifest);
    }
    for (uint32_t i = 0; f->resident && i < f->resident_count; i++)
        free(f->resident[i].data);
    free(f->files);
    free(f->resident);
    chunk_cache_close(f->cache);
    if (f->transport.destroy)
        f->transport.destroy(f->transport.self);
    pthread_mutex_destroy(&f->lock);
    free(f);
}

static size_t fetch_chunk_size(const struct fetched_file *file, uint32_t chunk)
{
    uint64_t left = file->manifest.size - (uint64_t)chunk * MANIFEST_CHUNK_BYTES;
    return left < MANIFEST_CHUNK_BYTES ? (size_t)left : MANIFEST_CHUNK_BYTES;
}

static bool verified(struct fetch *f, const struct fetched_file *file, uint32_t chunk, const void *data,
                     size_t size, struct err *err)
{
    f->stats.verified_chunks++;
    return manifest_verify_chunk(&file->manifest, chunk, data, size, err) == 0;
}

/* Loads a chunk from the local path. A file that changed since it was registered is treated as absent. */
static bool load_local(struct fetch *f, const struct fetched_file *file, uint32_t chunk, uint8_t *dst,
                       size_t size)
{
    struct err ignored;
    return file->fd >= 0 &&
           file_pread_all(file->fd, dst, size, (uint64_t)chunk * MANIFEST_CHUNK_BYTES, file->name,
                          &ignored) == 0 &&
           verified(f, file, chunk, dst, size, &ignored);
}

static bool load_cached(struct fetch *f, const struct fetched_file *file, uint32_t chunk, uint8_t *dst,
                        size_t size)
{
    struct err ignored;
    const uint8_t *hash = file->manifest.chunks[chunk];
    if (!f->cache || !chunk_cache_get(f->cache, hash, dst, size))
        return false;
    if (verified(f, file, chunk, dst, size, &ignored)) {
        f->stats.cached_chunks++;
        return true;
    }
    chunk_cache_drop(f->cache, hash);
    return false;
}

static bool files_is_stopped(const void *arg)
{
    const struct fetch *f = arg;
    return f->stop && atomic_load(f->stop);
}

/* Calls the transport again, for as long as options.patience_s allows, while the failure may pass. */
static int get_patiently(struct fetch *f, const char *path, uint64_t offset, uint64_t size, uint64_t limit,
                         struct buf *out, struct err *err)
{
    struct retry retry = {.patience_ns = f->patience_ns, .stopped = files_is_stopped, .arg = f};
    size_t before = out->size;
    retry_moved(&retry);
    while (f->transport.get(f->transport.self, path, offset, size, limit, out, err) < 0) {
        if (out->size > before)
            retry_moved(&retry);
        out->size = before;
        if (retry_pause(&retry, err) < 0)
            return -1;
    }
    return 0;
}

/* Fetches a chunk from the store, verifies it and appends it to body. */
static int get_chunk(struct fetch *f, const struct fetched_file *file, uint32_t chunk, size_t size,
                     struct buf *body, struct err *err)
{
    char path[128];
    if (file_path(path, sizeof(path), err, "/v1/blobs/%s", file->sha256) < 0 ||
        get_patiently(f, path, (uint64_t)chunk * MANIFEST_CHUNK_BYTES, size, size, body, err) < 0)
        return -1;
    if (body->size != size)
        return err_set(err, ERR_PEER, "chunk %u: %zu bytes came where %zu were asked for", chunk, body->size,
                       size);
    f->stats.fetched_bytes += size;
    f->stats.fetched_chunks++;
    if (verified(f, file, chunk, body->data, size, err))
        return 0;
    /* The store's answer is wrong, not the model's manifest, so another attempt may succeed. */
    err->code = ERR_PEER;
    return -1;
}

static int load_remote(struct fetch *f, const struct fetched_file *file, uint32_t chunk, uint8_t *dst,
                       size_t size, struct err *err)
{
    struct buf body = {.limit = size};
    int status = -1;
    for (int tries = 1; status < 0; tries++) {
        buf_clear(&body);
        status = get_chunk(f, file, chunk, size, &body, err);
        if (status < 0 && (err->code != ERR_PEER || f->patience_ns == 0 || tries == WRONG_CHUNKS_MAX))
            break;
    }
    if (status == 0) {
        memcpy(dst, body.data, size);
        if (f->cache)
            chunk_cache_put(f->cache, file->manifest.chunks[chunk], dst, size);
    }
    buf_fini(&body);
    return status < 0 ? err_wrap(err, "%s", file->name) : 0;
}

/* Returns the chunk in memory; if need be it is loaded in place of the least recently used one. */
static int need_chunk(struct fetch *f, uint32_t file, uint32_t chunk, const struct resident **out,
                      struct err *err)
{
    struct resident *oldest = &f->resident[0];
    for (uint32_t i = 0; i < f->resident_count; i++) {
        struct resident *r = &f->resident[i];
        if (r->size && r->file == file && r->chunk == chunk) {
            r->used = ++f->clock;
            *out = r;
            return 0;
        }
        if (r->used < oldest->used)
            oldest = r;
    }
    const struct fetched_file *from = &f->files[file];
    size_t size = fetch_chunk_size(from, chunk);
    if (!oldest->data)
        oldest->data = malloc(MANIFEST_CHUNK_BYTES);
    if (!oldest->data)
        return err_set(err, ERR_NOMEM, "no memory for a chunk of %d bytes", MANIFEST_CHUNK_BYTES);
    oldest->size = 0;
    if (!load_local(f, from, chunk, oldest->data, size) && !load_cached(f, from, chunk, oldest->data, size) &&
        load_remote(f, from, chunk, oldest->data, size, err) < 0)
        return -1;
    *oldest = (struct resident){
        .file = file, .chunk = chunk, .size = size, .used = ++f->clock, .data = oldest->data};
    *out = oldest;
    return 0;
}

static int fetch_read(void *self, uint32_t file, uint64_t offset, size_t size, void *dst, struct err *err)
{
    struct fetch *f = self;
    uint8_t *to = dst;
    int status = 0;
    pthread_mutex_lock(&f->lock);
    while (size > 0 && status == 0) {
        const struct resident *r = NULL;
        uint32_t chunk = (uint32_t)(offset / MANIFEST_CHUNK_BYTES);
        size_t at = (size_t)(offset % MANIFEST_CHUNK_BYTES);
        status = need_chunk(f, file, chunk, &r, err);
        if (status < 0)
            break;
        size_t n = size < r->size - at ? size : r->size - at;
        memcpy(to, r->data + at, n);
        to += n;
        offset += n;
        size -= n;
    }
    pthread_mutex_unlock(&f->lock);
    return status;
}

static void fetch_stats(void *self, struct model_source_stats *stats)
{
    struct fetch *f = self;
    pthread_mutex_lock(&f->lock);
    *stats = f->stats;
    pthread_mutex_unlock(&f->lock);
}

static const struct model_source_ops fetch_ops = {
    .read = fetch_read, .stats = fetch_stats, .destroy = fetch_destroy};

static int load_manifest(struct fetch *f, const struct fetch_file *wanted, struct fetched_file *file,
                         struct err *err)
{
    char path[128];
    struct buf body = {.limit = (size_t)MANIFEST_CHUNKS_MAX * 72 + 4096};
    json_t *document = NULL;
    uint8_t sha256[DIGEST_SIZE];
    int status = -1;
    if (strlen(wanted->name) > MODEL_FILE_NAME_MAX || digest_unhex(wanted->sha256, sha256, DIGEST_SIZE) < 0)
        return err_set(err, ERR_INVALID, "a model's file needs a name of at most %d bytes and 64 hex digits",
                       MODEL_FILE_NAME_MAX);
    memcpy(file->name, wanted->name, strlen(wanted->name) + 1);
    digest_hex(sha256, DIGEST_SIZE, file->sha256);
    if (file_path(path, sizeof(path), err, "/v1/blobs/%s/manifest", file->sha256) < 0 ||
        get_patiently(f, path, 0, 0, body.limit, &body, err) < 0)
        goto out;
    f->stats.fetched_bytes += body.size;
    document = json_parse_limited((const char *)body.data, body.size, JSON_DEPTH_MAX, err);
    if (!document || manifest_parse(document, &file->manifest, err) < 0)
        goto out;
    if ((wanted->size != FETCH_SIZE_ANY && file->manifest.size != wanted->size) ||
        !digest_equal(file->manifest.sha256, sha256, DIGEST_SIZE)) {
        err_set(err, ERR_CORRUPT, "the manifest is of another file (%llu bytes where %llu were announced)",
                (unsigned long long)file->manifest.size, (unsigned long long)wanted->size);
        goto out;
    }
    if (wanted->path)
        file->fd = open(wanted->path, O_RDONLY | O_CLOEXEC);
    status = 0;
out:
    json_decref(document);
    buf_fini(&body);
    return status < 0 ? err_wrap(err, "%.255s", wanted->name) : 0;
}

static int check_content(struct fetch *f, const char *content, struct err *err)
{
    uint8_t wanted[DIGEST_SIZE], found[DIGEST_SIZE];
    const char **names = calloc(f->file_count + 1, sizeof(*names));
    struct manifest *manifests = calloc(f->file_count + 1, sizeof(*manifests));
    int status = -1;
    if (!names || !manifests) {
        err_set(err, ERR_NOMEM, "no memory for %u files", f->file_count);
        goto out;
    }
    for (uint32_t i = 0; i < f->file_count; i++) {
        names[i] = f->files[i].name;
        manifests[i] = f->files[i].manifest; /* a shallow copy: f->files[i] still owns the hashes */
    }
    if (digest_unhex(content, wanted, DIGEST_SIZE) < 0)
        err_set(err, ERR_INVALID, "a content id is 64 hex digits");
    else if (manifest_content_id(names, manifests, f->file_count, found, err) == 0)
        status = digest_equal(wanted, found, DIGEST_SIZE)
                     ? 0
                     : err_set(err, ERR_CORRUPT, "the manifests do not add up to the model's content id");
out:
    free(names);
    free(manifests);
    return status;
}

static int fetch_fill(struct fetch *f, const struct fetch_options *options, struct model_file *files,
                      struct err *err)
{
    f->resident_count = options->resident_chunks ? options->resident_chunks : RESIDENT_DEFAULT;
    if (f->resident_count > RESIDENT_MAX)
        return err_set(err, ERR_INVALID, "%u resident chunks are beyond the limit of %d", f->resident_count,
                       RESIDENT_MAX);
    f->resident = calloc(f->resident_count, sizeof(*f->resident));
    f->files = calloc(options->file_count + 1, sizeof(*f->files));
    if (!f->resident || !f->files)
        return err_set(err, ERR_NOMEM, "no memory for %u files", options->file_count);
    for (uint32_t i = 0; i < options->file_count; i++)
        f->files[i].fd = -1;
    f->file_count = options->file_count;
    if (options->cache_dir &&
        chunk_cache_open(options->cache_dir, options->cache_limit_bytes, &f->cache, err) < 0) {
        if (err->code == ERR_INVALID)
            return -1;
        f->cache = NULL; /* the source works without a cache when its folder cannot be written */
    }
    for (uint32_t i = 0; i < options->file_count; i++) {
        if (load_manifest(f, &options->files[i], &f->files[i], err) < 0)
            return -1;
        memcpy(files[i].name, f->files[i].name, sizeof(files[i].name));
        files[i].size = f->files[i].manifest.size;
    }
    return options->content ? check_content(f, options->content, err) : 0;
}

int model_source_open_fetched(const struct fetch_options *options, struct fetch_transport *transport,
                              struct model_source **source, struct err *err)
{
    struct model_file *files = NULL;
    *source = NULL;
    struct fetch *f = calloc(1, sizeof(*f));
    if (!f) {
        if (transport->destroy)
            transport->destroy(transport->self);
        return err_set(err, ERR_NOMEM, "no memory to open a model");
    }
    pthread_mutex_init(&f->lock, NULL);
    f->transport = *transport;
    f->patience_ns = options->patience_s > 0 ? (uint64_t)(options->patience_s * 1e9) : 0;
    f->stop = options->stop;
    if (options->file_count > MODEL_FILES_MAX) {
        err_set(err, ERR_TOO_BIG, "a model of %u files is beyond the limit of %d", options->file_count,
                MODEL_FILES_MAX);
        goto fail;
    }
    files = calloc(options->file_count + 1, sizeof(*files));
    if (!files) {
        err_set(err, ERR_NOMEM, "no memory for %u files", options->file_count);
        goto fail;
    }
    if (fetch_fill(f, options, files, err) < 0)
        goto fail;
    int status = model_source_create(&fetch_ops, f, files, options->file_count, source, err);
    free(files);
    return status;
fail:
    free(files);
    fetch_destroy(f);
    return -1;
}

struct http_transport {
    struct http *http;
    uint32_t idle_ms;
};

static int transport_get(void *self, const char *path, uint64_t offset, uint64_t size, uint64_t limit,
                         struct buf *out, struct err *err)
{
    struct http_transport *t = self;
    struct http_request request = {
        .method = "GET", .path = path, .response = out, .timeout_ms = UINT32_MAX, .idle_ms = t->idle_ms};
    if (size > 0) {
        request.range_begin = offset;
        request.range_bytes = size;
    }
    out->limit = (size_t)limit;
    return http_perform(t->http, &request, NULL, err);
}

static void transport_destroy(void *self)
{
    struct http_transport *t = self;
    http_destroy(t->http);
    free(t);
}

int fetch_transport_http(const char *base_url, const char *token, const char *ca_file, double idle_s,
                         struct fetch_transport *transport, struct err *err)
{
    struct http_options options = {.url = base_url, .bearer = token, .ca_file = ca_file};
    struct http_transport *t = calloc(1, sizeof(*t));
    if (!t)
        return err_set(err, ERR_NOMEM, "no memory for a connection");
    t->idle_ms = idle_s > 0 && idle_s < 4e6 ? (uint32_t)(idle_s * 1000) : 60000;
    t->http = http_create(&options, err);
    if (!t->http) {
        free(t);
        return -1;
    }
    *transport = (struct fetch_transport){.get = transport_get, .destroy = transport_destroy, .self = t};
    return 0;
}
