/* Feeds requests with bodies, mostly chunked ones, to a connection, whole and cut into pieces: the same bytes
 * must give the same requests with the same bodies. */
#include "fuzz/fuzz.h"

#include "api/http/httpd_private.h"
#include "common/buf.h"

#include <stdlib.h>
#include <string.h>

enum { BODY_MAX = 5000 };

static struct event_base *base;
static struct httpd_server *server;
static struct buf told, streamed; /* log of what the server reported; body of the present stream */

static void tell(char what, const void *bytes, size_t size)
{
    struct err err;
    if (size > BODY_MAX || buf_append(&told, &what, 1, &err) < 0 ||
        buf_append(&told, &size, sizeof(size), &err) < 0 || buf_append(&told, bytes, size, &err) < 0)
        abort();
}

static void answer(struct httpd_request *request)
{
    httpd_reply(request, 200, "text/plain", NULL, "", 0);
}

static void ready(struct httpd_request *request, void *arg)
{
    size_t size;
    const char *body = httpd_request_body(request, &size);
    (void)arg;
    tell('b', body ? body : "", size);
    answer(request);
}

static void malformed(struct httpd_request *request, int status, const char *why, void *arg)
{
    (void)arg;
    tell('m', &status, sizeof(status));
    httpd_reply(request, status, "text/plain", NULL, why, strlen(why));
}

static void stream_data(struct httpd_request *request, struct evbuffer *input, void *arg)
{
    struct err err;
    size_t size = evbuffer_get_length(input);
    (void)request, (void)arg;
    if (buf_append(&streamed, evbuffer_pullup(input, -1), size, &err) < 0)
        abort();
    evbuffer_drain(input, size);
}

static void stream_end(struct httpd_request *request, void *arg)
{
    (void)arg;
    tell('s', streamed.data, streamed.size);
    buf_clear(&streamed);
    answer(request);
}

static void stream_gone(struct httpd_request *request, void *arg)
{
    (void)arg;
    buf_clear(&streamed);
    answer(request);
}

static void head(struct httpd_request *request, void *arg)
{
    static const struct httpd_sink sink = {stream_data, stream_end, stream_gone};
    const char *path = httpd_request_head(request)->path;
    (void)arg;
    tell('h', path, strlen(path) < BODY_MAX ? strlen(path) : BODY_MAX);
    if (strcmp(path, "/stream") == 0)
        httpd_accept_stream(request, BODY_MAX, &sink, NULL);
    else if (strcmp(path, "/unread") == 0)
        answer(request);
    else
        httpd_accept_body(request, BODY_MAX);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    httpd_conn_process(arg);
}

static void on_written(struct bufferevent *bev, void *arg)
{
    struct httpd_conn *conn = arg;
    (void)bev;
    if (conn->state == CONN_HEAD)
        httpd_conn_process(conn);
}

static void turn(struct bufferevent *client)
{
    struct evbuffer *answers = bufferevent_get_input(client);
    event_base_loop(base, EVLOOP_NONBLOCK);
    evbuffer_drain(answers, evbuffer_get_length(answers));
    event_base_loop(base, EVLOOP_NONBLOCK);
}

/* Sends these bytes over one connection, 'piece' at a time. */
static void bring(const uint8_t *data, size_t size, size_t piece)
{
    struct bufferevent *pair[2];
    struct httpd_conn *conn = calloc(1, sizeof(*conn));
    if (!conn || bufferevent_pair_new(base, BEV_OPT_DEFER_CALLBACKS, pair) < 0 ||
        !address_take(&server->addresses, conn->address, 1))
        abort();
    conn->server = server;
    conn->bev = pair[0];
    TAILQ_INSERT_TAIL(&server->conns, conn, link);
    server->conn_count++;
    bufferevent_setcb(pair[0], on_read, on_written, NULL, conn);
    bufferevent_enable(pair[0], EV_READ | EV_WRITE);
    bufferevent_enable(pair[1], EV_READ | EV_WRITE);
    for (size_t at = 0; at < size && !TAILQ_EMPTY(&server->conns); at += piece) {
        bufferevent_write(pair[1], data + at, size - at < piece ? size - at : piece);
        turn(pair[1]);
    }
    if (!TAILQ_EMPTY(&server->conns))
        httpd_conn_gone(TAILQ_FIRST(&server->conns));
    bufferevent_free(pair[1]);
    event_base_loop(base, EVLOOP_NONBLOCK);
    buf_clear(&streamed);
    if (server->conn_count || server->request_count)
        __builtin_trap();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const struct httpd_limits limits = {.connections_max = 8,
                                               .connections_per_address_max = 8,
                                               .head_seconds_max = 1000,
                                               .idle_seconds_max = 1000,
                                               .bytes_per_second_min = 1,
                                               .pending_bytes_max = 1 << 20};
    static const struct httpd_hooks hooks = {head, ready, malformed, NULL};
    struct err err;
    struct buf whole;
    if (!base) {
        buf_init(&told, 64 << 20);
        buf_init(&streamed, 1 << 20);
        base = event_base_new();
        server = base ? httpd_server_create(base, "127.0.0.1", 0, NULL, &limits, &hooks, &err) : NULL;
    }
    if (!server)
        abort();
    if (size < 1 || size > 1 << 13)
        return 0;
    bring(data + 1, size - 1, size);
    whole = told;
    buf_init(&told, 64 << 20);
    bring(data + 1, size - 1, 1 + data[0] % 64u);
    if (whole.size != told.size || (told.size && memcmp(whole.data, told.data, told.size) != 0))
        __builtin_trap();
    buf_fini(&whole);
    buf_clear(&told);
    return 0;
}
