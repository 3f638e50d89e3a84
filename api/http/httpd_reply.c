/* Sends whole and streamed answers. */
#include "api/http/httpd_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/release.h"

/* If a request is answered before its body was read, a body of up to this size is skipped. With a larger one
 * the connection is closed. */
enum { SKIP_BYTES_MAX = 64 * 1024 };

const struct httpd_head *httpd_request_head(const struct httpd_request *request)
{
    return &request->head;
}

const char *httpd_request_body(const struct httpd_request *request, size_t *size)
{
    *size = request->body_size;
    return request->body ? request->body : "";
}

void httpd_request_set_data(struct httpd_request *request, void *data, void (*release)(void *data))
{
    request->data = data;
    request->release = release;
}

void *httpd_request_data(const struct httpd_request *request)
{
    return request->data;
}

void httpd_request_address(const struct httpd_request *request, uint8_t address[16])
{
    memcpy(address, request->address, 16);
}

void httpd_request_set_id(struct httpd_request *request, const char *id)
{
    snprintf(request->id, sizeof(request->id), "%s", id);
}

const char *httpd_request_id(const struct httpd_request *request)
{
    return request->id;
}

void httpd_close_after(struct httpd_request *request)
{
    request->close_after = true;
}

bool httpd_gone(const struct httpd_request *request)
{
    return !request->conn;
}

bool httpd_request_peer(const struct httpd_request *request, uid_t *uid)
{
    *uid = request->uid;
    return request->is_unix;
}

bool httpd_request_is_tls(const struct httpd_request *request)
{
    return request->is_tls;
}

static const char *reason(int status)
{
    static const struct {
        int status;
        const char *text;
    } reasons[] = {
        {200, "OK"},
        {201, "Created"},
        {202, "Accepted"},
        {204, "No Content"},
        {206, "Partial Content"},
        {304, "Not Modified"},
        {400, "Bad Request"},
        {401, "Unauthorized"},
        {403, "Forbidden"},
        {404, "Not Found"},
        {405, "Method Not Allowed"},
        {406, "Not Acceptable"},
        {408, "Request Timeout"},
        {409, "Conflict"},
        {411, "Length Required"},
        {412, "Precondition Failed"},
        {413, "Content Too Large"},
        {414, "URI Too Long"},
        {415, "Unsupported Media Type"},
        {416, "Range Not Satisfiable"},
        {417, "Expectation Failed"},
        {422, "Unprocessable Content"},
        {426, "Upgrade Required"},
        {429, "Too Many Requests"},
        {431, "Request Header Fields Too Large"},
        {500, "Internal Server Error"},
        {501, "Not Implemented"},
        {503, "Service Unavailable"},
        {504, "Gateway Timeout"},
        {505, "HTTP Version Not Supported"},
        {507, "Insufficient Storage"},
    };
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++)
        if (reasons[i].status == status)
            return reasons[i].text;
    return "Status";
}

/* Decides whether the connection closes when a request is answered before its body was read: it does unless
 * the rest of the body is short enough to be skipped. */
static void decide_close(struct httpd_request *request)
{
    const struct httpd_conn *conn = request->conn;
    if (!request->head.keep_alive || request->server->stopping)
        request->close_after = true;
    bool held = conn->state == CONN_HELD;
    if (!held && conn->state != CONN_BODY)
        return;
    uint64_t left = held ? request->head.content_bytes : request->body_left;
    if (request->head.chunked || left > SKIP_BYTES_MAX || (request->head.expect_continue && left))
        request->close_after = true;
}

static void write_head(struct httpd_request *request, int status, const char *type,
                       const struct httpd_field *fields, int64_t bytes)
{
    struct evbuffer *out = bufferevent_get_output(request->conn->bev);
    char text[1024], release[RELEASE_TEXT_BYTES];
    int n = snprintf(text, sizeof(text), "HTTP/1.1 %d %s\r\nDate: %s\r\n", status, reason(status),
                     request->server->date);
    if (type)
        n += snprintf(text + n, sizeof(text) - (size_t)n, "Content-Type: %.128s\r\n", type);
    if (bytes >= 0 && status != 204 && status != 304)
        n += snprintf(text + n, sizeof(text) - (size_t)n, "Content-Length: %lld\r\n", (long long)bytes);
    else if (request->chunked_reply)
        n += snprintf(text + n, sizeof(text) - (size_t)n, "Transfer-Encoding: chunked\r\n");
    if (request->close_after)
        n += snprintf(text + n, sizeof(text) - (size_t)n, "Connection: close\r\n");
    else if (!request->head.is_11)
        n += snprintf(text + n, sizeof(text) - (size_t)n, "Connection: keep-alive\r\n");
    evbuffer_add(out, text, (size_t)n);
    if (*request->id)
        evbuffer_add_printf(out, "X-Request-Id: %s\r\n", request->id);
    for (; fields && fields->name; fields++)
        evbuffer_add_printf(out, "%s: %s\r\n", fields->name, fields->value);
    evbuffer_add_printf(out, RELEASE_HEADER ": %s\r\n", release_text(release));
    evbuffer_add(out, "X-Content-Type-Options: nosniff\r\n\r\n", 35);
}

void httpd_reply(struct httpd_request *request, int status, const char *type,
                 const struct httpd_field *fields, const void *body, size_t size)
{
    request->answered = true;
    if (request->conn) {
        decide_close(request);
        write_head(request, status, type, fields, (int64_t)size);
        if (size && request->head.method != HTTP_HEAD && status != 204 && status != 304)
            evbuffer_add(bufferevent_get_output(request->conn->bev), body, size);
    }
    httpd_request_finish(request);
}

void httpd_stream_begin(struct httpd_request *request, int status, const char *type,
                        const struct httpd_field *fields, int64_t bytes,
                        void (*drained)(struct httpd_request *request, void *arg), void *arg)
{
    request->answered = true;
    request->streaming = true;
    request->drained = drained;
    request->drained_arg = arg;
    request->reply_left = bytes;
    request->no_body = request->head.method == HTTP_HEAD;
    request->chunked_reply = bytes < 0 && request->head.is_11;
    if (bytes < 0 && !request->head.is_11)
        request->close_after = true;
    if (!request->conn)
        return;
    decide_close(request);
    write_head(request, status, type, fields, bytes);
}

int httpd_stream_write(struct httpd_request *request, const void *data, size_t size)
{
    if (!request->conn)
        return -1;
    if (!size || request->no_body)
        return 0;
    struct evbuffer *out = bufferevent_get_output(request->conn->bev);
    if (evbuffer_get_length(out) > request->server->limits.pending_bytes_max)
        return -1;
    if (evbuffer_get_length(out) == 0)
        httpd_conn_deadline(request->conn, request->server->limits.idle_seconds_max);
    if (request->chunked_reply)
        evbuffer_add_printf(out, "%zx\r\n", size);
    evbuffer_add(out, data, size);
    if (request->chunked_reply)
        evbuffer_add(out, "\r\n", 2);
    if (request->reply_left >= 0)
        request->reply_left -= (int64_t)size;
    return 0;
}

size_t httpd_stream_unsent(const struct httpd_request *request)
{
    return request->conn ? evbuffer_get_length(bufferevent_get_output(request->conn->bev)) : 0;
}

void httpd_stream_end(struct httpd_request *request, bool broken)
{
    request->drained = NULL;
    if (request->conn) {
        if (!request->no_body && request->reply_left > 0)
            broken = true;
        if (broken) {
            struct httpd_conn *conn = request->conn;
            conn->request = NULL;
            request->conn = NULL;
            httpd_conn_gone(conn);
            httpd_request_free(request);
            return;
        }
        if (request->chunked_reply && !request->no_body)
            evbuffer_add(bufferevent_get_output(request->conn->bev), "0\r\n\r\n", 5);
    }
    httpd_request_finish(request);
}
