/* Uploads the parts one after the other. After an error an empty part asks the server how much of the file it
 * has. */
#include "common/upload.h"

#include <stdio.h>

#include "common/buf.h"
#include "common/json.h"
#include "common/retry.h"

enum { PART_BYTES = 8 << 20, IDLE_MS = 60000, ANSWER_BYTES_MAX = 1 << 16 };

struct upload_part {
    const struct upload_file *file;
    uint64_t at, end;
};

static int64_t upload_part_read(void *arg, void *dst, size_t size, struct err *err)
{
    struct upload_part *part = arg;
    const struct upload_file *file = part->file;
    uint64_t left = part->end - part->at;
    if (file->stopped && file->stopped(file->stopped_arg))
        return err_set(err, ERR_CANCELLED, "cancelled while it was sent");
    if (size > left)
        size = (size_t)left;
    if (size > 0 && file->read(file->arg, part->at, dst, size, err) < 0)
        return -1;
    part->at += size;
    return (int64_t)size;
}

/* Reads the body of a 202 answer. */
static int answer_read(const struct buf *answer, uint64_t size, uint64_t *received, bool *busy,
                       struct err *err)
{
    json_t *document = json_parse_limited(buf_str(answer), answer->size, 4, err);
    const json_t *count = json_object_get(document, "received");
    json_int_t value = json_is_integer(count) ? json_integer_value(count) : -1;
    *busy = json_is_true(json_object_get(document, "busy"));
    json_decref(document);
    if (value < 0 || (uint64_t)value > size)
        return err_set(err, ERR_PEER, "the artifact store did not say how much of the file it has");
    *received = (uint64_t)value;
    return 0;
}

/* Sends `bytes` at `offset`. Returns 1 when the server has the whole file; 0 when it has *received bytes,
 * with *busy if another request is adding to it; -1 on error. */
static int upload_part_send(struct http *http, const struct upload_file *file, uint64_t offset,
                            uint64_t bytes, uint64_t *received, bool *busy, struct err *err)
{
    char path[160];
    struct buf text;
    struct upload_part part = {file, offset, offset + bytes};
    struct http_answer answer;
    snprintf(path, sizeof(path), "/v1/blobs/%.64s?offset=%llu&size=%llu", file->sha256,
             (unsigned long long)offset, (unsigned long long)file->size);
    buf_init(&text, ANSWER_BYTES_MAX);
    struct http_request request = {.method = "PUT",
                                   .path = path,
                                   .content_type = "application/octet-stream",
                                   .upload = upload_part_read,
                                   .upload_arg = &part,
                                   .upload_bytes = bytes,
                                   .response = &text,
                                   .timeout_ms = UINT32_MAX,
                                   .idle_ms = IDLE_MS};
    int result = http_perform(http, &request, &answer, err);
    if (result == 0)
        result = answer.status != 202 ? 1 : answer_read(&text, file->size, received, busy, err);
    buf_fini(&text);
    return result;
}

/* Whether to start again, once: the server found the file damaged and dropped its parts (after a crash). */
static bool begins_anew(const struct err *err, uint64_t *at, bool *again)
{
    if (err->code != ERR_CORRUPT || *at == 0 || *again)
        return false;
    *again = true;
    *at = 0;
    return true;
}

int upload_in_parts(struct http *http, const struct upload_file *file, struct err *err)
{
    struct retry retry = {
        .patience_ns = file->patience_ns, .stopped = file->stopped, .arg = file->stopped_arg};
    uint64_t at = 0;
    bool asks = false, again = false;
    retry_moved(&retry);
    for (;;) {
        uint64_t left = file->size - at, received = at;
        uint64_t bytes = asks ? 0 : left < PART_BYTES ? left : PART_BYTES;
        bool busy = false;
        int result = upload_part_send(http, file, at, bytes, &received, &busy, err);
        if (result > 0)
            return 0;
        asks = result < 0 ? !begins_anew(err, &at, &again) : busy;
        if (result < 0 && !asks)
            continue;
        if (result == 0) {
            bool moved = received > at;
            at = received;
            if (moved)
                retry_moved(&retry);
            if (!busy && (moved || bytes == 0))
                continue;
            err_set(err, ERR_BUSY, "%s at byte %llu of %llu",
                    busy ? "another request is sending the same file" : "the artifact store took nothing",
                    (unsigned long long)at, (unsigned long long)file->size);
        }
        if (retry_pause(&retry, err) < 0)
            return -1;
    }
}
