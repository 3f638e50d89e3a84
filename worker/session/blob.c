#include "worker/session/blob.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/digest.h"
#include "common/file.h"
#include "common/http.h"
#include "common/retry.h"
#include "common/upload.h"

enum { IDLE_MS = 60000, CONNECT_MS = 5000 };
#define PATIENCE_NS ((uint64_t)120 * 1000000000u)

struct blobs {
    struct http *http;
    uint64_t patience_ns;
    const atomic_bool *cancel;
    atomic_bool gave_up;
};

int blobs_open(const struct blobs_options *options, struct blobs **out, struct err *err)
{
    struct blobs *blobs = calloc(1, sizeof(*blobs));
    if (!blobs)
        return err_set(err, ERR_NOMEM, "no memory for a client");
    blobs->patience_ns = options->patience_ns ? options->patience_ns : PATIENCE_NS;
    blobs->cancel = options->cancel;
    struct http_options http = {.url = options->api,
                                .bearer = options->token,
                                .ca_file = options->ca,
                                .user_agent = "motley-worker",
                                .connect_ms = CONNECT_MS};
    blobs->http = http_create(&http, err);
    if (!blobs->http) {
        err->code = err->code == ERR_INVALID ? ERR_NODE : err->code; /* the node's agent gave the address */
        free(blobs);
        return -1;
    }
    *out = blobs;
    return 0;
}

void blobs_close(struct blobs *blobs)
{
    if (!blobs)
        return;
    http_destroy(blobs->http);
    free(blobs);
}

void blobs_give_up(struct blobs *blobs)
{
    atomic_store(&blobs->gave_up, true);
}

static bool cancelled(const void *arg)
{
    const struct blobs *blobs = arg;
    return atomic_load(&blobs->gave_up) || (blobs->cancel && atomic_load(blobs->cancel));
}

struct blob_download {
    const struct blobs *blobs;
    struct buf *out;
};

static int blob_take_bytes(void *arg, const void *data, size_t size, struct err *err)
{
    struct blob_download *download = arg;
    if (cancelled(download->blobs))
        return err_set(err, ERR_CANCELLED, "cancelled while it was fetched");
    return buf_append(download->out, data, size, err);
}

/* Downloads the missing rest of a blob that begins at offset `begin` of out. */
static int get_rest(struct blobs *blobs, const char *path, struct buf *out, size_t begin, struct err *err)
{
    char range[64];
    struct blob_download download = {blobs, out};
    struct http_answer answer;
    size_t had = out->size - begin;
    const char *headers[] = {range, NULL};
    snprintf(range, sizeof(range), "Range: bytes=%zu-", had);
    struct http_request request = {.method = "GET",
                                   .path = path,
                                   .headers = had > 0 ? headers : NULL,
                                   .sink = blob_take_bytes,
                                   .sink_arg = &download,
                                   .timeout_ms = UINT32_MAX,
                                   .idle_ms = IDLE_MS};
    int result = http_perform(blobs->http, &request, &answer, err);
    if (had > 0 && answer.status == 200) { /* the server ignored the range and sent the whole blob again */
        memmove(out->data + begin, out->data + begin + had, out->size - begin - had);
        out->size -= had;
    }
    return result;
}

int blobs_get(struct blobs *blobs, const char *sha256, struct buf *out, struct err *err)
{
    char path[96], found[DIGEST_HEX_SIZE];
    struct retry retry = {.patience_ns = blobs->patience_ns, .stopped = cancelled, .arg = blobs};
    size_t begin = out->size;
    snprintf(path, sizeof(path), "/v1/blobs/%.64s", sha256);
    retry_moved(&retry);
    for (size_t before = begin; get_rest(blobs, path, out, begin, err) < 0; before = out->size) {
        if (out->size > before)
            retry_moved(&retry);
        if (retry_pause(&retry, err) < 0)
            return err_wrap(err, "could not fetch %.12s…", sha256);
    }
    if (digest_sha256_hex(out->data + begin, out->size - begin, found, err) < 0)
        return -1;
    if (strcmp(found, sha256) != 0)
        return err_set(err, ERR_PEER, "the artifact store answered other bytes than %.12s…", sha256);
    return 0;
}

struct range_download {
    const struct blobs *blobs;
    uint8_t *dst;
    size_t got, size;
};

static int take_range(void *arg, const void *data, size_t size, struct err *err)
{
    struct range_download *download = arg;
    if (cancelled(download->blobs))
        return err_set(err, ERR_CANCELLED, "cancelled while it was fetched");
    if (size > download->size - download->got)
        return err_set(err, ERR_PEER, "the artifact store sent more than the %zu bytes asked for",
                       download->size);
    memcpy(download->dst + download->got, data, size);
    download->got += size;
    return 0;
}

int blobs_get_range(struct blobs *blobs, const char *sha256, uint64_t offset, size_t size, void *dst,
                    struct err *err)
{
    char path[96];
    struct retry retry = {.patience_ns = blobs->patience_ns, .stopped = cancelled, .arg = blobs};
    struct range_download download = {.blobs = blobs, .dst = dst, .size = size};
    snprintf(path, sizeof(path), "/v1/blobs/%.64s", sha256);
    retry_moved(&retry);
    while (download.got < size) {
        size_t before = download.got;
        struct http_request request = {.method = "GET",
                                       .path = path,
                                       .range_begin = offset + before,
                                       .range_bytes = size - before,
                                       .sink = take_range,
                                       .sink_arg = &download,
                                       .timeout_ms = UINT32_MAX,
                                       .idle_ms = IDLE_MS};
        if (http_perform(blobs->http, &request, NULL, err) == 0)
            continue; /* all bytes asked for have arrived */
        if (download.got > before)
            retry_moved(&retry);
        if (retry_pause(&retry, err) < 0)
            return err_wrap(err, "could not fetch %zu bytes of %.12s…", size, sha256);
    }
    return 0;
}

int blobs_await(struct blobs *blobs, const char *sha256, struct err *err)
{
    uint8_t first;
    struct retry retry = {.patience_ns = blobs->patience_ns, .stopped = cancelled, .arg = blobs};
    retry_moved(&retry);
    while (blobs_get_range(blobs, sha256, 0, 1, &first, err) < 0) {
        bool absent = err->code == ERR_NOT_FOUND;
        if (absent)
            err->code = ERR_BUSY; /* the blob may still come */
        if (retry_pause(&retry, err) < 0) {
            if (absent && err->code == ERR_BUSY)
                err->code = ERR_NOT_FOUND;
            return -1;
        }
    }
    return 0;
}

static int blob_copy_bytes(void *arg, uint64_t offset, void *dst, size_t size, struct err *err)
{
    (void)err;
    memcpy(dst, (const uint8_t *)arg + offset, size);
    return 0;
}

static int session_put(struct blobs *blobs, struct upload_file *file, struct err *err)
{
    file->patience_ns = blobs->patience_ns;
    file->stopped = cancelled;
    file->stopped_arg = blobs;
    return upload_in_parts(blobs->http, file, err) < 0
               ? err_wrap(err, "could not store %llu bytes", (unsigned long long)file->size)
               : 0;
}

int blobs_put(struct blobs *blobs, const void *data, size_t size, char sha256[65], struct err *err)
{
    if (digest_sha256_hex(data, size, sha256, err) < 0)
        return -1;
    struct upload_file file = {
        .sha256 = sha256, .size = size, .read = blob_copy_bytes, .arg = (void *)(uintptr_t)data};
    return session_put(blobs, &file, err);
}

int blobs_put_read(struct blobs *blobs, const char *sha256, uint64_t size, blobs_read_fn *read, void *arg,
                   struct err *err)
{
    struct upload_file file = {.sha256 = sha256, .size = size, .read = read, .arg = arg};
    return session_put(blobs, &file, err);
}

struct local_file {
    const char *path;
    int fd;
};

static int read_bytes(void *arg, uint64_t offset, void *dst, size_t size, struct err *err)
{
    const struct local_file *local = arg;
    return file_pread_all(local->fd, dst, size, offset, local->path, err);
}

int blobs_put_file(struct blobs *blobs, const char *path, char sha256[65], uint64_t *size, struct err *err)
{
    struct local_file local = {.path = path, .fd = open(path, O_RDONLY | O_CLOEXEC)};
    if (local.fd < 0)
        return err_set(err, ERR_IO, "%s cannot be opened", path);
    struct upload_file file = {.sha256 = sha256, .read = read_bytes, .arg = &local};
    int result = file_sha256_hex(path, sha256, size, err);
    file.size = *size;
    if (result == 0)
        result = session_put(blobs, &file, err);
    close(local.fd);
    return result;
}
