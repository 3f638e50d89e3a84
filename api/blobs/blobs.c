/* PUT, GET and HEAD of files by their SHA-256, and their chunk manifests.
 *
 * The body of an upload is streamed: arriving bytes are passed to a pool task that writes and hashes them;
 * while a task is busy and enough bytes wait, reading from the client pauses. A file is not visible before
 * its last byte was verified and synced. If the file exists but the sender may not read it, the sent bytes
 * are verified and answered as if the file were new, and only then may the sender read it. An upload in parts
 * (?offset=&size=) keeps the bytes that arrived, even of a request that was cut off: the answer says how many
 * bytes of the file are stored, and the next part begins there.
 */
#include "api/request/route.h"

#include "api/people/access.h"
#include "api/request/blob_dir.h"
#include "common/buf.h"
#include "common/digest.h"
#include "store/models.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    UPLOAD_PENDING_BYTES_MAX = 2 << 20,
    DOWNLOAD_PIECE_BYTES = 1 << 20,
};

/* ---- uploads ---- */

struct upload {
    struct pool_task task; /* must come first: a pointer to the task is cast to the upload */
    LIST_ENTRY(upload) link;
    struct app *app;
    struct call *call; /* NULL once the request was answered */
    char sha256[65];
    struct blob_writer *writer;
    struct evbuffer *pending; /* used by the loop thread */
    struct evbuffer *working; /* used by the task while busy */
    bool busy, ended, gone, there, finishing, finished;
    /* in_parts: the body is a part of a file; elsewhere: this part does not begin where the stored bytes end,
     * so it is not kept */
    bool in_parts, elsewhere;
    bool over; /* too many bytes came: the upload is refused as soon as no task works on it */
    int64_t owner;
    uint64_t kept; /* bytes that the sender has stored on this server already */
    uint64_t most; /* most bytes that this body may have */
    /* received: bytes of the file received so far, by all parts of the upload */
    uint64_t bytes, offset, size, received;
    struct manifest manifest;
    struct err err;
};

static void upload_free(struct upload *upload)
{
    LIST_REMOVE(upload, link);
    if (upload->pending)
        evbuffer_free(upload->pending);
    if (upload->working)
        evbuffer_free(upload->working);
    blob_writer_destroy(upload->writer);
    manifest_fini(&upload->manifest);
    free(upload);
}

static void upload_fail(struct upload *upload)
{
    struct call *call = upload->call;
    if (blob_is_full(&upload->err))
        err_wrap(&upload->err, "the file %s was not kept", upload->sha256);
    if (upload->err.code == ERR_CORRUPT)
        call_refuse(call, &upload->err);
    else
        call_fail(call, &upload->err);
    upload_free(upload);
}

/* Sets the error that a person's files exceed user_bytes_max. */
static int upload_refuse(const struct upload *upload, uint64_t kept, struct err *err)
{
    return err_set(err, ERR_TOO_BIG,
                   "the file was not kept: %s may have %llu bytes of files here, and has %llu (also those on "
                   "their way)",
                   upload->call->principal.name, (unsigned long long)upload->app->config->user_bytes_max,
                   (unsigned long long)kept);
}

/* Answers an upload whose body is too long. */
static void upload_over(struct upload *upload)
{
    if (upload->there)
        err_set(&upload->err, ERR_TOO_BIG, "the file %s has %llu bytes, and more were sent", upload->sha256,
                (unsigned long long)upload->most);
    else
        upload_refuse(upload, upload->kept, &upload->err);
    upload_fail(upload);
}

static int upload_open(struct upload *upload)
{
    bool limited = upload->in_parts && upload->call->principal.kind == PRINCIPAL_USER;
    uint64_t parts = limited ? blob_parts_bytes(upload->app->blobs, upload->owner, upload->sha256) : 0;
    if (limited && upload->kept + parts + upload->size > upload->app->config->user_bytes_max)
        return upload_refuse(upload, upload->kept + parts, &upload->err);
    if (!upload->in_parts)
        return blob_writer_create(upload->app->blobs, &upload->writer, &upload->err);
    if (blob_writer_resume(upload->app->blobs, upload->owner, upload->sha256, &upload->writer,
                           &upload->received, &upload->err) < 0)
        return -1;
    upload->elsewhere = !upload->writer || upload->received != upload->offset;
    return 0;
}

static void upload_work(struct pool_task *task)
{
    struct upload *upload = (struct upload *)task;
    if (!upload->writer && !upload->elsewhere && upload_open(upload) < 0)
        return;
    if (upload->elsewhere) {
        evbuffer_drain(upload->working, evbuffer_get_length(upload->working));
        return;
    }
    while (evbuffer_get_length(upload->working)) {
        size_t size = evbuffer_get_contiguous_space(upload->working);
        if (!size)
            size = evbuffer_get_length(upload->working);
        unsigned char *data = evbuffer_pullup(upload->working, (ev_ssize_t)size);
        if (blob_writer_add(upload->writer, data, size, &upload->err) < 0)
            return;
        evbuffer_drain(upload->working, size);
        upload->received += size;
    }
    if (upload->finishing && (!upload->in_parts || upload->received == upload->size) &&
        blob_writer_finish(upload->writer, upload->sha256, &upload->manifest, &upload->err) == 0)
        upload->finished = true;
}

static void answer_blob(struct call *call, int status, const char *sha256, uint64_t size)
{
    json_t *document = json_pack("{s:s, s:I}", "sha256", sha256, "size", (json_int_t)size);
    call_json(call, status, document, NULL);
}

static void upload_recorded(void *arg, const struct err *err)
{
    struct upload *upload = arg;
    if (err) {
        upload->err = *err;
        upload_fail(upload);
        return;
    }
    answer_blob(upload->call, 201, upload->sha256, upload->manifest.size);
    upload_free(upload);
}

static void upload_record(struct upload *upload)
{
    json_t *manifest = manifest_to_json(&upload->manifest, &upload->err);
    struct store_blob blob = {
        .sha256 = upload->sha256, .size = (int64_t)upload->manifest.size, .manifest = manifest};
    if (!manifest || store_blob_put(upload->app->store, &upload->call->principal, &blob, upload_recorded,
                                    upload, &upload->err) < 0)
        upload_fail(upload);
    json_decref(manifest);
}

/* Answers a part of a file: how many bytes are stored, whether or not this part was the one that was due. */
static void upload_partly(struct upload *upload)
{
    json_t *document =
        json_pack("{s:s, s:I, s:I, s:b}", "sha256", upload->sha256, "size", (json_int_t)upload->size,
                  "received", (json_int_t)upload->received, "busy", (int)(!upload->writer));
    call_json(upload->call, 202, document, NULL);
    upload_free(upload);
}

static void upload_step(struct upload *upload);

static void upload_done(struct pool_task *task)
{
    struct upload *upload = (struct upload *)task;
    upload->busy = false;
    pool_ran(task, &upload->err);
    if (upload->over) {
        upload_over(upload);
        return;
    }
    if (upload->err.code) {
        upload_fail(upload);
        return;
    }
    if (upload->finished) {
        upload_record(upload);
        return;
    }
    if (upload->finishing) {
        upload_partly(upload);
        return;
    }
    upload_step(upload);
}

/* Passes the waiting bytes to the pool, or ends the upload. Only this function decides how an upload
 * continues. */
static void upload_step(struct upload *upload)
{
    if (upload->busy)
        return;
    bool waits = evbuffer_get_length(upload->pending) > 0;
    if (upload->gone && !(upload->in_parts && waits)) {
        call_problem(upload->call, 400, "invalid", NULL, "the body ended early: the file was not kept");
        upload_free(upload);
        return;
    }
    if (!upload->ended && !waits) {
        httpd_body_resume(upload->call->request);
        return;
    }
    evbuffer_add_buffer(upload->working, upload->pending);
    upload->finishing = upload->ended;
    upload->task.work = upload_work;
    upload->task.done = upload_done;
    if (pool_run(upload->app->pool, &upload->task, &upload->err) < 0) {
        upload_fail(upload);
        return;
    }
    upload->busy = true;
    if (!upload->ended && !upload->gone)
        httpd_body_resume(upload->call->request);
}

static void upload_data(struct httpd_request *request, struct evbuffer *input, void *arg)
{
    struct upload *upload = arg;
    size_t size = evbuffer_get_length(input);
    upload->bytes += size;
    upload->app->counters.upload_bytes += size;
    if (upload->bytes > upload->most) {
        evbuffer_drain(input, size);
        upload->over = true;
        if (upload->busy)
            httpd_body_pause(request);
        else
            upload_over(upload);
        return;
    }
    if (upload->there) { /* the file exists: its bytes are ignored */
        evbuffer_drain(input, size);
        return;
    }
    evbuffer_add_buffer(upload->pending, input);
    if (evbuffer_get_length(upload->pending) >= UPLOAD_PENDING_BYTES_MAX)
        httpd_body_pause(request);
    if (!upload->busy && evbuffer_get_length(upload->pending) >= UPLOAD_PENDING_BYTES_MAX / 4)
        upload_step(upload);
}

static void upload_end(struct httpd_request *request, void *arg)
{
    (void)request;
    struct upload *upload = arg;
    upload->ended = true;
    if (upload->there) {
        answer_blob(upload->call, 200, upload->sha256, upload->bytes);
        upload_free(upload);
        return;
    }
    upload_step(upload);
}

static void upload_gone(struct httpd_request *request, void *arg)
{
    (void)request;
    struct upload *upload = arg;
    upload->gone = true;
    upload_step(upload);
}

static const struct httpd_sink upload_sink = {.data = upload_data, .end = upload_end, .gone = upload_gone};

static void upload_accept(struct upload *upload)
{
    httpd_accept_stream(upload->call->request, upload->app->config->upload_bytes_max, &upload_sink, upload);
}

/* Returns the bytes that the other uploads of the same person will add, as far as their lengths are known. */
static uint64_t bytes_on_their_way(const struct upload *mine)
{
    uint64_t bytes = 0;
    const struct upload *upload;
    LIST_FOREACH (upload, &mine->app->uploads, link) {
        uint64_t length = httpd_request_head(upload->call->request)->content_bytes;
        if (upload != mine && !upload->there && upload->call->principal.id == mine->call->principal.id)
            bytes += length > upload->bytes ? length : upload->bytes;
    }
    return bytes;
}

static void upload_counted(void *arg, const struct err *err, int64_t sent)
{
    struct upload *upload = arg;
    uint64_t most = upload->app->config->user_bytes_max;
    if (err) {
        upload->err = *err;
        upload_fail(upload);
        return;
    }
    upload->kept = (uint64_t)sent + bytes_on_their_way(upload);
    upload->most = most > upload->kept ? most - upload->kept : 0;
    if (httpd_request_head(upload->call->request)->content_bytes > upload->most)
        upload_over(upload);
    else
        upload_accept(upload);
}

static void upload_begin(void *arg, const struct err *err, json_t *doc)
{
    struct upload *upload = arg;
    struct call *call = upload->call;
    const struct httpd_head *head = httpd_request_head(call->request);
    if (err && err->code != ERR_NOT_FOUND) {
        upload->err = *err;
        upload_fail(upload);
        return;
    }
    char path[BLOB_PATH_MAX];
    blob_path(upload->app->blobs, upload->sha256, path);
    upload->there = !err && (json_is_string(json_object_get(doc, "path")) || access(path, R_OK) == 0);
    if (upload->there && head->expect_continue) {
        answer_blob(call, 200, upload->sha256, (uint64_t)json_integer_value(json_object_get(doc, "size")));
        upload_free(upload);
        return;
    }
    uint64_t free_bytes = blob_dir_free_bytes(upload->app->blobs);
    if (!upload->there &&
        (upload->in_parts ? upload->size - upload->offset : head->content_bytes) > free_bytes) {
        call_problem(call, 507, "io", NULL,
                     "no space left for files on the server: %llu bytes asked for, %llu free",
                     (unsigned long long)head->content_bytes, (unsigned long long)free_bytes);
        upload_free(upload);
        return;
    }
    upload->most = upload->there ? (uint64_t)json_integer_value(json_object_get(doc, "size")) : UINT64_MAX;
    if (upload->there || call->principal.kind != PRINCIPAL_USER)
        upload_accept(upload);
    else if (store_sent_bytes(call->app->store, call->principal.id, NULL, upload_counted, upload,
                              &upload->err) < 0)
        upload_fail(upload);
}

/* Reads ?offset=&size=, which say that the body is a part of a file of that size. Returns -1 when the call
 * was answered. */
static int take_part(struct call *call, struct upload *upload)
{
    struct err err = {0};
    int64_t offset, size, most = (int64_t)call->app->config->upload_bytes_max;
    if (call_query_i64(call, "offset", 0, most, -1, &offset, &err) < 0 ||
        call_query_i64(call, "size", 0, most, -1, &size, &err) < 0) {
        call_fail(call, &err);
        return -1;
    }
    uint64_t bytes = httpd_request_head(call->request)->content_bytes;
    if (offset < 0 && size < 0)
        return 0;
    if (offset < 0 || size < 0 || httpd_request_head(call->request)->chunked || offset > size ||
        bytes > (uint64_t)(size - offset)) {
        call_problem(call, 400, "invalid", NULL,
                     "a part needs offset, size and Content-Length, and ends within the file: %llu bytes at "
                     "%lld of %lld",
                     (unsigned long long)bytes, (long long)offset, (long long)size);
        return -1;
    }
    upload->in_parts = true;
    upload->owner = access_owner(&call->principal);
    upload->offset = (uint64_t)offset;
    upload->size = (uint64_t)size;
    return 0;
}

static int take_sha256(struct call *call, char sha256[65])
{
    if (!blob_name_valid(call->params[0])) {
        call_problem(call, 400, "invalid", NULL, "\"%.80s\" is not 64 lower-case hex digits",
                     call->params[0]);
        return -1;
    }
    memcpy(sha256, call->params[0], 65);
    return 0;
}

void blobs_put(struct call *call)
{
    char sha256[65];
    const struct httpd_head *head = httpd_request_head(call->request);
    if (take_sha256(call, sha256) < 0)
        return;
    if (!head->chunked && !head->has_length) {
        call_problem(call, 411, "invalid", NULL, "an upload needs Content-Length or chunks");
        return;
    }
    if (head->content_bytes > call->app->config->upload_bytes_max) {
        call_problem(call, 413, "too-big", NULL, "the file has %llu bytes; the limit is %llu",
                     (unsigned long long)head->content_bytes,
                     (unsigned long long)call->app->config->upload_bytes_max);
        return;
    }
    struct upload *upload = calloc(1, sizeof(*upload));
    struct err err = {0};
    if (upload) {
        upload->pending = evbuffer_new();
        upload->working = evbuffer_new();
    }
    if (!upload || !upload->pending || !upload->working) {
        if (upload && upload->pending)
            evbuffer_free(upload->pending);
        if (upload && upload->working)
            evbuffer_free(upload->working);
        free(upload);
        err_set(&err, ERR_NOMEM, "out of memory for an upload");
        call_fail(call, &err);
        return;
    }
    LIST_INSERT_HEAD(&call->app->uploads, upload, link);
    upload->app = call->app;
    upload->call = call;
    memcpy(upload->sha256, sha256, sizeof(sha256));
    if (take_part(call, upload) < 0) {
        upload_free(upload);
        return;
    }
    if (store_blob_hold(call->app->store, &call->principal, sha256, upload_begin, upload, &upload->err) < 0)
        upload_fail(upload);
}

/* ---- downloads ---- */

struct blob_answer {
    struct pool_task task; /* must come first: a pointer to the task is cast to the download */
    struct call *call;
    int fd;
    bool busy, begun, ranged;
    uint64_t offset, left, size;
    size_t filled;
    char path[BLOB_PATH_MAX];
    char etag[80];
    struct err err;
    char piece[DOWNLOAD_PIECE_BYTES];
};

static void download_free(struct blob_answer *download)
{
    if (download->fd >= 0)
        close(download->fd);
    free(download);
}

static void download_work(struct pool_task *task)
{
    struct blob_answer *download = (struct blob_answer *)task;
    if (download->fd < 0) {
        download->fd = open(download->path, O_RDONLY | O_CLOEXEC);
        struct stat st;
        if (download->fd < 0 || fstat(download->fd, &st) < 0 || !S_ISREG(st.st_mode) ||
            (uint64_t)st.st_size != download->size) {
            err_set(&download->err, ERR_NOT_FOUND, "the file's bytes are gone from the server");
            return;
        }
    }
    size_t want = download->left < DOWNLOAD_PIECE_BYTES ? (size_t)download->left : DOWNLOAD_PIECE_BYTES;
    download->filled = 0;
    while (download->filled < want) {
        ssize_t n = pread(download->fd, download->piece + download->filled, want - download->filled,
                          (off_t)(download->offset + download->filled));
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            err_set(&download->err, ERR_IO, "could not read a file on the server: %s",
                    n < 0 ? strerror(errno) : "it became shorter");
            return;
        }
        download->filled += (size_t)n;
    }
}

static void download_more(struct httpd_request *request, void *arg);

static void download_reply(struct blob_answer *download)
{
    struct call *call = download->call;
    bool whole = !download->ranged; /* a range that covers the whole file is still answered as a range */
    char range[96];
    snprintf(range, sizeof(range), "bytes %llu-%llu/%llu", (unsigned long long)download->offset,
             (unsigned long long)(download->offset + download->left - 1), (unsigned long long)download->size);
    struct httpd_field fields[] = {
        {"Accept-Ranges", "bytes"},
        {"ETag", download->etag},
        /* The name of a job's file may stand for other content after the job was resumed, so clients ask
         * again each time. */
        {"Cache-Control", "private, no-cache"},
        {"Content-Disposition", "attachment"},
        {"Content-Security-Policy", "sandbox; default-src 'none'"},
        {whole ? NULL : "Content-Range", range},
        {NULL, NULL},
    };
    call_count(call, whole ? 200 : 206);
    download->begun = true;
    httpd_stream_begin(call->request, whole ? 200 : 206, "application/octet-stream", fields,
                       (int64_t)download->left, download_more, download);
}

static void download_done(struct pool_task *task)
{
    struct blob_answer *download = (struct blob_answer *)task;
    struct call *call = download->call;
    download->busy = false;
    pool_ran(task, &download->err);
    if (download->err.code && !download->begun) {
        call_fail(call, &download->err);
        download_free(download);
        return;
    }
    if (!download->begun)
        download_reply(download);
    bool broken = download->err.code != 0;
    bool head = httpd_request_head(call->request)->method == HTTP_HEAD;
    if (!broken && !head && httpd_stream_write(call->request, download->piece, download->filled) < 0)
        broken = true;
    download->offset += download->filled;
    download->left -= download->filled;
    call->app->counters.download_bytes += download->filled;
    if (broken || head || download->left == 0) {
        httpd_stream_end(call->request, broken);
        download_free(download);
    }
}

static void download_more(struct httpd_request *request, void *arg)
{
    struct blob_answer *download = arg;
    if (download->busy)
        return;
    if (httpd_gone(request) || pool_run(download->call->app->pool, &download->task, &download->err) < 0) {
        httpd_stream_end(request, true);
        download_free(download);
        return;
    }
    download->busy = true;
}

static void download_begin(void *arg, const struct err *err, json_t *doc)
{
    struct blob_answer *download = arg;
    struct call *call = download->call;
    if (err) {
        call_fail(call, err);
        download_free(download);
        return;
    }
    const char *sha256 = json_string_value(json_object_get(doc, "sha256"));
    const char *path = json_string_value(json_object_get(doc, "path"));
    if (path)
        snprintf(download->path, sizeof(download->path), "%s", path);
    else
        blob_path(call->app->blobs, sha256, download->path);
    snprintf(download->etag, sizeof(download->etag), "\"%s\"", sha256);
    download->size = (uint64_t)json_integer_value(json_object_get(doc, "size"));
    download->left = download->size;
    const struct httpd_head *head = httpd_request_head(call->request);
    const char *match = httpd_head_get(head, "if-none-match");
    if (match && strstr(match, download->etag)) {
        struct httpd_field fields[] = {{"ETag", download->etag}, {NULL, NULL}};
        call_count(call, 304);
        httpd_reply(call->request, 304, NULL, fields, NULL, 0);
        download_free(download);
        return;
    }
    if (!etag_fits(call, download->etag)) {
        call_problem(call, 412, "stale", NULL, "If-Match: the file's ETag is %s", download->etag);
        download_free(download);
        return;
    }
    int asked =
        httpd_range_parse(httpd_head_get(head, "range"), download->size, &download->offset, &download->left);
    download->ranged = asked == 0;
    if (asked < 0) {
        call_problem(call, 416, "invalid", NULL, "the range \"%.80s\" lies outside the file's %llu bytes",
                     httpd_head_get(head, "range"), (unsigned long long)download->size);
        download_free(download);
        return;
    }
    download->task.work = download_work;
    download->task.done = download_done;
    if (pool_run(call->app->pool, &download->task, &download->err) < 0) {
        call_fail(call, &download->err);
        download_free(download);
        return;
    }
    download->busy = true;
}

void blob_stream(struct call *call, const char *sha256)
{
    struct err err = {0};
    struct blob_answer *download = malloc(sizeof(*download));
    if (!download) {
        err_set(&err, ERR_NOMEM, "out of memory for a download");
        call_fail(call, &err);
        return;
    }
    memset(download, 0, offsetof(struct blob_answer, piece));
    download->call = call;
    download->fd = -1;
    if (store_blob_get(call->app->store, &call->principal, sha256, download_begin, download, &err) < 0) {
        call_fail(call, &err);
        download_free(download);
    }
}

void blobs_get(struct call *call)
{
    char sha256[65];
    if (take_sha256(call, sha256) == 0)
        blob_stream(call, sha256);
}

static void manifest_got(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    json_t *manifest = err ? NULL : json_object_get(doc, "manifest");
    if (err)
        call_fail(call, err);
    else if (!json_is_object(manifest))
        call_problem(call, 404, "not-found", NULL, "the file has no manifest");
    else
        call_json(call, 200, json_incref(manifest), NULL);
}

void blobs_manifest(struct call *call)
{
    char sha256[65];
    struct err err = {0};
    if (take_sha256(call, sha256) == 0 &&
        store_blob_get(call->app->store, &call->principal, sha256, manifest_got, call, &err) < 0)
        call_fail(call, &err);
}
