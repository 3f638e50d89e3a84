/* Decodes a request's parameters and encodes its answer. */
#include "api/request/wait.h"
#include "api/request/route.h"

#include "api/request/blob_dir.h"
#include "api/http/wrong.h"

#include "common/clock.h"
#include "common/digest.h"
#include "common/json.h"
#include "common/log.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

enum { PACKED_BYTES_MIN = 1024, KEY_BYTES_MAX = 200, LIMIT_RETRY_SECONDS = 60 };

const char *call_query(const struct call *call, const char *name)
{
    for (unsigned i = 0; i < call->query_count; i++)
        if (strcmp(call->query[i].name, name) == 0)
            return call->query[i].value;
    return NULL;
}

int call_query_i64(const struct call *call, const char *name, int64_t min, int64_t max, int64_t missing,
                   int64_t *out, struct err *err)
{
    const char *text = call_query(call, name);
    *out = missing;
    if (!text)
        return 0;
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (!*text || *end || errno || value < min || value > max || *text == ' ' || *text == '+')
        return err_set(err, ERR_INVALID, "%s: \"%.40s\" is not a whole number from %lld to %lld", name, text,
                       (long long)min, (long long)max);
    *out = value;
    return 0;
}

int call_query_time(const struct call *call, const char *name, int64_t *wall_us, struct err *err)
{
    const char *text = call_query(call, name);
    if (!text || (clock_rfc3339_parse(text, wall_us) == 0 && *wall_us > 0))
        return 0;
    return err_set(err, ERR_INVALID, "%s: \"%.40s\" is no time such as 2026-01-31 or 2026-01-31T12:00:00Z",
                   name, text);
}

int call_take_time(struct json_reader *reader, const char *key, const char **text, int64_t *wall_us)
{
    char past[24], now[24];
    const int64_t now_us = clock_wall_us();
    const int got = jr_str(reader, key, JR_OPTIONAL, 1, 64, text);
    if (got > 0 && clock_rfc3339_parse(*text, wall_us) < 0)
        return jr_fail(reader, key, "must be a time such as 2026-01-31T08:00:00Z");
    if (got > 0 && *wall_us < now_us - 60000000)
        return jr_fail(reader, key, "%s is past: it is %s now", clock_words(*text, past),
                       clock_words_us(now_us, now));
    return got;
}

int call_id(struct call *call, unsigned index, const char *noun, int64_t *id)
{
    const char *text = call->params[index];
    char *end = NULL;
    errno = 0;
    long long value = strtoll(text, &end, 10);
    if (*text < '1' || *text > '9' || *end || errno) {
        call_problem(call, 404, "not-found", NULL, "there is no %s \"%.40s\": ids are whole numbers from 1",
                     noun, text);
        return -1;
    }
    *id = value;
    return 0;
}

void call_address(const struct call *call, char text[PRINCIPAL_ADDRESS_BYTES])
{
    uint8_t address[16];
    uid_t uid;
    if (httpd_request_peer(call->request, &uid)) {
        snprintf(text, PRINCIPAL_ADDRESS_BYTES, "unix");
        return;
    }
    httpd_request_address(call->request, address);
    bool v4 = memcmp(address, "\0\0\0\0\0\0\0\0\0\0\xff\xff", 12) == 0;
    if (!inet_ntop(v4 ? AF_INET : AF_INET6, v4 ? address + 12 : address, text, PRINCIPAL_ADDRESS_BYTES))
        text[0] = '\0';
}

void call_reader(struct call *call, struct json_reader *reader, struct err *err)
{
    jr_init(reader, call->body, "", err);
    json_decref(call->errors);
    jr_collect(reader, call->errors = json_array());
}

/* Checks a visibility and a group. A group must be given exactly when the visibility is "group". */
static int take_sharing(const char *visibility, const char *group, enum visibility missing,
                        struct sharing *sharing, struct err *err)
{
    int known = visibility ? visibility_from_name(visibility) : (int)(group ? VISIBLE_GROUP : missing);
    if (known < 0)
        return err_set(err, ERR_INVALID, "visibility: \"%.40s\" is none of mine, group, everyone",
                       visibility);
    if ((known == VISIBLE_GROUP) != (group != NULL))
        return err_set(err, ERR_INVALID, "group: it goes with visibility \"group\", and that with it");
    *sharing = (struct sharing){.visibility = (enum visibility)known, .group = group};
    return 0;
}

int call_sharing(struct json_reader *reader, enum visibility missing, struct sharing *sharing)
{
    const char *visibility = NULL, *group = NULL;
    struct err err = {0};
    if (jr_str(reader, "visibility", JR_OPTIONAL, 1, 16, &visibility) < 0 ||
        jr_str(reader, "group", JR_OPTIONAL, 1, PRINCIPAL_NAME_BYTES - 1, &group) < 0)
        return -1;
    if (take_sharing(visibility, group, missing, sharing, &err) == 0)
        return 0;
    /* The text is split at the colon, because the reader itself puts the key before the reason. */
    char *colon = strchr(err.text, ':');
    *colon = '\0';
    return jr_fail(reader, err.text, "%s", colon + 2);
}

int call_query_sharing(const struct call *call, enum visibility missing, struct sharing *sharing,
                       struct err *err)
{
    return take_sharing(call_query(call, "visibility"), call_query(call, "group"), missing, sharing, err);
}

int call_key(struct call *call, const char **key)
{
    *key = httpd_head_get(httpd_request_head(call->request), "idempotency-key");
    if (!*key)
        return 0;
    size_t size = strlen(*key);
    bool good = size >= 1 && size <= KEY_BYTES_MAX;
    for (size_t i = 0; good && i < size; i++)
        good = (*key)[i] > 0x20 && (*key)[i] < 0x7f;
    if (good)
        return 0;
    call_problem(call, 400, "invalid", NULL, "Idempotency-Key: it is not 1 to %d visible ASCII characters",
                 KEY_BYTES_MAX);
    return -1;
}

void call_count(struct call *call, int status)
{
    struct app_counters *counters = &call->app->counters;
    if (status < 400)
        counters->answers_2xx++;
    else if (status < 500)
        counters->answers_4xx++;
    else
        counters->answers_5xx++;
    if (status >= 500 && status != 503)
        log_event(LOG_LEVEL_ERROR, "request_failed", "request=%s method=%s path=%.200s status=%d",
                  httpd_request_id(call->request),
                  httpd_method_name(httpd_request_head(call->request)->method),
                  httpd_request_head(call->request)->path, status);
}

/* Compresses an answer. Returns NULL when the result would not be smaller, or without memory. */
static char *compress_text(const char *text, size_t size, size_t *packed)
{
    z_stream stream = {.next_in = (unsigned char *)(uintptr_t)text, .avail_in = (unsigned)size};
    if (size < PACKED_BYTES_MIN || size > UINT32_MAX ||
        deflateInit2(&stream, 1, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK)
        return NULL;
    char *out = malloc(size);
    stream.next_out = (unsigned char *)out;
    stream.avail_out = (unsigned)size;
    int rc = out ? deflate(&stream, Z_FINISH) : Z_MEM_ERROR;
    *packed = stream.total_out;
    deflateEnd(&stream);
    if (rc == Z_STREAM_END)
        return out;
    free(out);
    return NULL;
}

int etag_of(const char *text, size_t size, char tag[ETAG_BYTES])
{
    char digest[DIGEST_HEX_SIZE];
    struct err ignored = {0};
    if (digest_sha256_hex(text, size, digest, &ignored) < 0)
        return -1;
    snprintf(tag, ETAG_BYTES, "W/\"%.32s\"", digest);
    return 0;
}

bool etag_fits(const struct call *call, const char *tag)
{
    const char *asked = httpd_head_get(httpd_request_head(call->request), "if-match");
    return !asked || strcmp(asked, "*") == 0 || httpd_list_has(asked, tag);
}

/* Sends a document without header fields of its own. It is compressed if the client accepts that, and has an
 * ETag, so that a client that asks repeatedly gets no body (304) while nothing has changed. */
static void reply_plain(struct call *call, int status, const char *type, const char *text, size_t size)
{
    const struct httpd_head *head = httpd_request_head(call->request);
    const char *accepted = httpd_head_get(head, "accept-encoding");
    const char *known = httpd_head_get(head, "if-none-match");
    char tag[ETAG_BYTES];
    struct httpd_field fields[6] = {{"Vary", "Accept-Encoding"}, {0}};
    size_t packed_size, n = 1;
    if (status == 200 && call->route && call->route->method == HTTP_GET && etag_of(text, size, tag) == 0) {
        fields[n++] = (struct httpd_field){"ETag", tag};
        fields[n++] = (struct httpd_field){"Cache-Control", "private, no-cache"};
        if (known && httpd_list_has(known, tag)) {
            call_count(call, 304);
            httpd_reply(call->request, 304, NULL, fields, NULL, 0);
            return;
        }
    }
    char *packed =
        accepted && httpd_list_has(accepted, "gzip") ? compress_text(text, size, &packed_size) : NULL;
    if (packed)
        fields[n++] = (struct httpd_field){"Content-Encoding", "gzip"};
    call_count(call, status);
    httpd_reply(call->request, status, type, fields, packed ? packed : text, packed ? packed_size : size);
    free(packed);
}

static void reply_text(struct call *call, int status, const char *type, const struct httpd_field *fields,
                       json_t *document)
{
    char *text = json_dumps(document, JSON_COMPACT | JSON_ENCODE_ANY);
    json_decref(document);
    if (!text) {
        static const char fallback[] =
            "{\"type\":\"urn:motley:problem:no-memory\",\"title\":\"Internal Server Error\",\"status\":500,"
            "\"detail\":\"out of memory for the answer\",\"code\":\"no-memory\"}";
        call_count(call, 500);
        httpd_reply(call->request, 500, "application/problem+json", NULL, fallback, sizeof(fallback) - 1);
        return;
    }
    if (call->keep_answer && call->keep_answer(call, status, type, fields, text)) {
        /* counted by who sends it */
    } else if (!fields) {
        reply_plain(call, status, type, text, strlen(text));
    } else {
        call_count(call, status);
        httpd_reply(call->request, status, type, fields, text, strlen(text));
    }
    free(text);
}

/* Whether the request has no If-Match, or one that names the ETag of this answer. */
static bool answer_fits(const struct call *call, const json_t *document)
{
    char tag[ETAG_BYTES];
    char *text = etag_fits(call, "") ? NULL : json_dumps(document, JSON_COMPACT | JSON_ENCODE_ANY);
    const bool fits = !text || (etag_of(text, strlen(text), tag) == 0 && etag_fits(call, tag));
    free(text);
    return fits;
}

void call_json(struct call *call, int status, json_t *document, const struct httpd_field *fields)
{
    if (status == 200 && call->route && call->route->method == HTTP_GET && !answer_fits(call, document)) {
        json_decref(document);
        call_problem(call, 412, "stale", NULL,
                     "If-Match: what is at %.200s has another ETag by now; read it again",
                     httpd_request_head(call->request)->path);
        return;
    }
    reply_text(call, status, "application/json", fields, document);
}

void call_empty(struct call *call, int status)
{
    if (call->keep_answer && call->keep_answer(call, status, NULL, NULL, NULL))
        return; /* counted by who sends it */
    call_count(call, status);
    httpd_reply(call->request, status, NULL, NULL, NULL, 0);
}

static const char *title_of(int status)
{
    switch (status) {
    case 400:
        return "The request is malformed";
    case 401:
        return "A valid token is needed";
    case 403:
        return "Not allowed";
    case 404:
        return "Not found";
    case 405:
        return "Method not allowed";
    case 409:
        return "In conflict with the present state";
    case 413:
        return "Too large";
    case 415:
        return "Unsupported media type";
    case 416:
        return "Range not satisfiable";
    case 422:
        return "The content is not valid";
    case 429:
    case 503:
        return "Try again later";
    case 507:
        return "No space left";
    default:
        return status < 500 ? "The request was refused" : "The server failed";
    }
}

/* Converts the place in the body with which an error's detail begins ("train.batch_rows: …") to a JSON
 * pointer. All parts of the place but the last must exist in the body, since file names and other words may
 * look like a place. Returns the words after the place, or NULL. */
static const char *error_pointer(const json_t *body, const char *detail, char *pointer, size_t size)
{
    static const char in_names[] = "abcdefghijklmnopqrstuvwxyz0123456789_";
    size_t used = 0;
    for (const char *at = detail;;) {
        char name[64];
        size_t length = strspn(at, in_names);
        if (length == 0 || length >= sizeof(name) || used + length + 2 > size ||
            !(json_is_object(body) || json_is_array(body)))
            return NULL;
        memcpy(name, at, length);
        name[length] = '\0';
        used += (size_t)snprintf(pointer + used, size - used, "/%s", name);
        body =
            json_is_array(body) ? json_array_get(body, strtoul(name, NULL, 10)) : json_object_get(body, name);
        at += length + (at[length] == ']');
        if (at[0] == ':' && at[1] == ' ')
            return at + 2;
        if (*at != '.' && *at != '[')
            return NULL;
        at++;
    }
}

/* Adds "errors": all that were found in the body, else one entry, the place in the body and the words, if the
 * detail begins with a place. */
static void add_errors(json_t *document, const struct call *call, int status, const char *detail)
{
    char pointer[256];
    if (status == 422 && json_array_size(call->errors) > 0) {
        json_object_set(document, "errors", call->errors);
        return;
    }
    const char *words = status == 422 ? error_pointer(call->body, detail, pointer, sizeof(pointer)) : NULL;
    if (words)
        json_object_set_new(document, "errors",
                            json_pack("[{s:s, s:s%}]", "pointer", pointer, "detail", words, strlen(words)));
}

static void problem_in(struct call *call, int status, const char *code, json_t *more, const char *detail,
                       unsigned retry_seconds)
{
    const char *title = title_of(status);
    const bool limit = strcmp(code, "limit") == 0;
    json_t *text = json_string(detail);
    call->unsure = strcmp(code, "network") == 0 || strcmp(code, "timeout") == 0;
    if (!text)
        text = json_string("the reason cannot be shown: it is not UTF-8");
    json_t *document =
        json_pack("{s:o, s:s, s:i, s:o, s:s, s:o}", "type", json_sprintf("urn:motley:problem:%s", code),
                  "title", title, "status", status, "detail", text, "code", code, "instance",
                  json_sprintf("urn:motley:request:%s", httpd_request_id(call->request)));
    if (document)
        add_errors(document, call, status, detail);
    if (document && more)
        json_object_update(document, more);
    json_decref(more);
    char retry[16];
    struct httpd_field fields[4] = {{0}};
    int n = 0;
    if (status == 401 && *call->session_end)
        fields[n++] = (struct httpd_field){"Set-Cookie", call->session_end};
    else if (status == 401)
        fields[n++] = (struct httpd_field){"WWW-Authenticate", "Bearer"};
    if (status == 405)
        fields[n++] = (struct httpd_field){"Allow", call->allowed};
    if (status == 503 || status == 429 || limit) {
        snprintf(retry, sizeof(retry), "%u", limit ? LIMIT_RETRY_SECONDS : retry_seconds);
        fields[n++] = (struct httpd_field){"Retry-After", retry};
    }
    reply_text(call, status, "application/problem+json", fields, document);
}

static void problem(struct call *call, int status, const char *code, json_t *more, const char *detail)
{
    problem_in(call, status, code, more, detail, 1);
}

void call_problem(struct call *call, int status, const char *code, json_t *more, const char *fmt, ...)
{
    char detail[640];
    va_list args;
    va_start(args, fmt);
    vsnprintf(detail, sizeof(detail), fmt, args);
    va_end(args);
    problem(call, status, code, more, detail);
}

static int call_status_of(const struct err *err)
{
    switch (err->code) {
    case ERR_INVALID:
        return 400;
    case ERR_NET:
    case ERR_TIMEOUT:
    case ERR_BUSY:
    case ERR_NOMEM:
    case ERR_CANCELLED:
        return 503;
    case ERR_IO:
        return blob_is_full(err) ? 507 : 500;
    case ERR_UNSUPPORTED:
        return 422;
    default:
        return err_http_status(err->code);
    }
}

void call_fail(struct call *call, const struct err *err)
{
    problem(call, call_status_of(err), err_code_name(err->code), NULL, err->text);
}

void call_plain(struct json_reader *reader, const char *key, const char *text)
{
    for (; text && *text; text++)
        if ((unsigned char)*text < 0x20 || *text == 0x7f) {
            jr_fail(reader, key, "it holds a control character");
            return;
        }
}

void call_refuse(struct call *call, const struct err *err)
{
    bool content = err->code == ERR_INVALID || err->code == ERR_UNSUPPORTED || err->code == ERR_NOFIT ||
                   err->code == ERR_CORRUPT || err->code == ERR_TOO_BIG || err->code == ERR_NOT_FINITE;
    problem(call, content ? 422 : call_status_of(err), err_code_name(err->code), NULL, err->text);
}

void call_wrong_token(struct call *call, const struct err *err)
{
    uint8_t address[WRONG_ADDRESS_BYTES];
    char text[INET6_ADDRSTRLEN] = "", detail[160];
    bool first;
    httpd_request_address(call->request, address);
    unsigned wait_s = wrong_note(call->app->wrong, address, clock_mono_ns(), &first);
    call->app->counters.wrong_tokens++;
    if (!wait_s) {
        call_fail(call, err);
        return;
    }
    call->app->counters.late_tokens++;
    if (first)
        log_event(LOG_LEVEL_WARN, "wrong_tokens", "address=%s burst=%d",
                  inet_ntop(AF_INET6, address, text, sizeof(text)), WRONG_BURST);
    snprintf(detail, sizeof(detail), "too many wrong tokens from this address: the next in %u s", wait_s);
    httpd_close_after(call->request);
    problem_in(call, 429, "too-many", NULL, detail, wait_s);
}

void call_answer_doc(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err)
        call_fail(call, err);
    else
        call_json(call, 200, json_incref(doc), NULL);
}

void call_answer_changed(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err)
        call_refuse(call, err);
    else if (doc)
        call_json(call, 200, json_incref(doc), NULL);
    else
        call_empty(call, 204);
}

static void request_handle(void *arg)
{
    struct call *call = arg;
    call->route->handle(call);
}

void call_handle(struct call *call)
{
    struct err err;
    if (wait_run(call->app, request_handle, call, &err) < 0)
        call_fail(call, &err);
}
