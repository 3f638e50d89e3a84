/* Listens, reads heads and bodies, and manages connections. Answers are in httpd_reply.c.
 *
 * Invariants: conn->request is non-NULL exactly in HELD, BODY and RUN. A request whose conn is NULL belongs
 * to its handler alone until the handler answers. httpd_conn_process is the only function that advances a
 * connection, and it never runs twice on one stack: code that changes the state inside it just returns.
 */
#include "api/http/httpd_private.h"
#include "common/clock.h"

#include <arpa/inet.h>
#include <errno.h>
#include <event2/bufferevent_ssl.h>
#include <event2/bufferevent_struct.h>
#include <event2/listener.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    READ_BYTES_MAX = 512 * 1024, /* input bytes that are buffered per connection */
    /* Bytes that are read and dropped before the connection closes, so that a client that first sends
     * everything and then reads gets its answer. */
    LINGER_BYTES_MAX = 64 << 20,
    LINGER_SECONDS_MAX = 5,
    PRIORITY_HANDSHAKE = 2, /* other events have priority 1, which is served first */
    HANDSHAKES_AT_ONCE = 4, /* number of handshakes that are served before other events are checked again */
    /* If the client has not taken this many bytes of answers, no further request is read. */
    UNREAD_BYTES_MAX = 256 * 1024,
    CHUNK_LINE_BYTES_MAX = 256,
    TRAILER_BYTES_MAX = 8192, /* all fields after the last chunk together */
    TICK_SECONDS = 1,
};

void httpd_conn_deadline(struct httpd_conn *conn, int seconds)
{
    conn->deadline_ns = seconds ? clock_mono_ns() + (uint64_t)seconds * 1000000000u : 0;
}

void httpd_conn_moved(struct httpd_conn *conn, uint64_t bytes)
{
    const struct httpd_limits *limits = &conn->server->limits;
    if (!conn->deadline_ns || !bytes)
        return;
    uint64_t latest_ns = clock_mono_ns() + (uint64_t)limits->idle_seconds_max * 1000000000u;
    uint64_t bought_ns = (uint64_t)((double)bytes * 1e9 / (double)limits->bytes_per_second_min);
    conn->deadline_ns = bought_ns < latest_ns - conn->deadline_ns ? conn->deadline_ns + bought_ns : latest_ns;
}

void httpd_request_free(struct httpd_request *request)
{
    if (request->release)
        request->release(request->data);
    if (request->sink_input)
        evbuffer_free(request->sink_input);
    request->server->request_count--;
    free(request->body);
    free(request->text);
    free(request);
}

static void conn_free(struct httpd_conn *conn)
{
    TAILQ_REMOVE(&conn->server->conns, conn, link);
    conn->server->conn_count--;
    address_release(&conn->server->addresses, conn->address);
    bufferevent_free(conn->bev);
    free(conn);
}

static void conn_close(struct httpd_conn *conn)
{
    if (conn->processing)
        conn->dead = true;
    else
        conn_free(conn);
}

void httpd_conn_gone(struct httpd_conn *conn)
{
    struct httpd_request *request = conn->request;
    enum conn_state state = conn->state;
    conn->request = NULL;
    conn->state = CONN_LINGER;
    bufferevent_disable(conn->bev, EV_READ | EV_WRITE);
    if (request) {
        request->conn = NULL;
        if (state == CONN_BODY && !request->answered && request->sink)
            request->sink->gone(request, request->sink_arg);
        /* No handler holds the request, since hooks.ready was not called. */
        else if (state == CONN_BODY && !request->answered)
            httpd_request_free(request);
        else if (request->streaming && request->drained)
            request->drained(request, request->drained_arg);
    }
    conn_close(conn);
}

/* ---- bodies ---- */

static void refuse_body(struct httpd_request *request, int status, const char *why)
{
    request->close_after = true;
    /* The sink's owner still holds data for the request, so it gives the answer. */
    if (request->sink) {
        struct httpd_conn *conn = request->conn;
        request->body_done = true;
        conn->state = CONN_RUN;
        request->sink->gone(request, request->sink_arg);
        return;
    }
    request->conn->state = CONN_RUN;
    request->server->hooks.malformed(request, status, why, request->server->hooks.arg);
}

static int body_store(struct httpd_request *request, struct evbuffer *input, size_t size)
{
    if (request->sink)
        return evbuffer_remove_buffer(input, request->sink_input, size) < 0 ? -1 : 0;
    if (request->body_size + size + 1 > request->body_capacity) {
        size_t capacity = request->body_capacity ? request->body_capacity : 1024;
        while (capacity < request->body_size + size + 1)
            capacity *= 2;
        char *grown = realloc(request->body, capacity);
        if (!grown)
            return -1;
        request->body = grown;
        request->body_capacity = capacity;
    }
    evbuffer_remove(input, request->body + request->body_size, size);
    request->body_size += size;
    request->body[request->body_size] = '\0';
    return 0;
}

/* Takes the body's bytes that have arrived, at most body_left. Returns 0, or -1 without memory. */
static int body_take(struct httpd_request *request, struct evbuffer *input)
{
    size_t size = evbuffer_get_length(input);
    if (size > request->body_left)
        size = (size_t)request->body_left;
    if (size && body_store(request, input, size) < 0)
        return -1;
    request->body_left -= size;
    request->body_seen += size;
    return 0;
}

/* Takes one line of chunk framing from 'input'. Returns 1; 0 when the line is not complete; -1 when it is too
 * long or has a control character, by which another server could end it elsewhere. */
static int chunk_line(struct evbuffer *input, char line[CHUNK_LINE_BYTES_MAX])
{
    struct evbuffer_ptr end = evbuffer_search(input, "\r\n", 2, NULL);
    if (end.pos < 0)
        return evbuffer_get_length(input) >= CHUNK_LINE_BYTES_MAX ? -1 : 0;
    if (end.pos >= CHUNK_LINE_BYTES_MAX)
        return -1;
    evbuffer_remove(input, line, (size_t)end.pos);
    line[end.pos] = '\0';
    evbuffer_drain(input, 2);
    for (ev_ssize_t i = 0; i < end.pos; i++)
        if (((unsigned char)line[i] < ' ' && line[i] != '\t') || line[i] == 0x7f)
            return -1;
    return 1;
}

static int httpd_server_chunk_size(const char *line, uint64_t *bytes)
{
    uint64_t value = 0;
    int digits = 0;
    for (; *line && !strchr("; \t", *line); line++, digits++) {
        int d = *line >= '0' && *line <= '9'   ? *line - '0'
                : *line >= 'a' && *line <= 'f' ? *line - 'a' + 10
                : *line >= 'A' && *line <= 'F' ? *line - 'A' + 10
                                               : -1;
        if (d < 0 || digits == 15)
            return -1;
        value = value * 16 + (uint64_t)d;
    }
    *bytes = value;
    line += strspn(line, " \t");
    return digits && (!*line || *line == ';') ? 0 : -1;
}

/* Continues reading a chunked body. Returns 0 when it needs more bytes or body_done is set, else the status
 * with which the request is refused. */
static int body_read_chunked(struct httpd_request *request, struct evbuffer *input, const char **why)
{
    char line[CHUNK_LINE_BYTES_MAX];
    for (;;) {
        if (request->chunk == CHUNK_DATA) {
            if (body_take(request, input) < 0)
                return *why = "out of memory", 503;
            if (request->body_left)
                return 0;
            request->chunk = CHUNK_END;
        }
        int got = chunk_line(input, line);
        if (got == 0)
            return 0;
        if (got < 0)
            return *why = "the chunked body is malformed", 400;
        if (request->chunk == CHUNK_TRAILER) {
            request->trailer_bytes += (uint32_t)strlen(line);
            if (request->trailer_bytes > TRAILER_BYTES_MAX)
                return *why = "the fields after the body are longer than 8192 bytes", 431;
            if (*line)
                continue; /* the fields after the last chunk (trailers) are ignored */
            request->body_done = true;
            return 0;
        }
        if (request->chunk == CHUNK_END) {
            if (*line)
                return *why = "a chunk is longer than its size", 400;
            request->chunk = CHUNK_SIZE;
            continue;
        }
        if (httpd_server_chunk_size(line, &request->body_left) < 0)
            return *why = "a chunk's size is not a number", 400;
        if (request->body_left > request->body_max - request->body_seen)
            return *why = "the body is over this route's limit", 413;
        request->chunk = request->body_left ? CHUNK_DATA : CHUNK_TRAILER;
    }
}

static void body_complete(struct httpd_request *request)
{
    struct httpd_conn *conn = request->conn;
    conn->state = CONN_RUN;
    httpd_conn_deadline(conn, 0);
    if (request->sink)
        request->sink->end(request, request->sink_arg);
    else
        request->server->hooks.ready(request, request->server->hooks.arg);
}

/* Reads a request's body. Returns true when the connection's state changed and processing should continue. */
static bool body_read(struct httpd_conn *conn)
{
    struct httpd_request *request = conn->request;
    struct evbuffer *input = bufferevent_get_input(conn->bev);
    const char *why = "out of memory";
    int status = 0;
    if (request->paused)
        return false;
    if (!request->body_done) {
        uint64_t before = request->body_seen;
        if (request->head.chunked)
            status = body_read_chunked(request, input, &why);
        else if (body_take(request, input) < 0)
            status = 503;
        else
            request->body_done = request->body_left == 0;
        httpd_conn_moved(conn, request->body_seen - before);
    }
    if (status) {
        refuse_body(request, status, why);
        return true;
    }
    if (request->sink && evbuffer_get_length(request->sink_input)) {
        request->sink->data(request, request->sink_input, request->sink_arg);
        if (conn->request != request || request->paused)
            return conn->request != request;
    }
    if (!request->body_done || (request->sink && evbuffer_get_length(request->sink_input)))
        return false;
    body_complete(request);
    return true;
}

static void accept_any(struct httpd_request *request, uint64_t bytes_max)
{
    struct httpd_conn *conn = request->conn;
    request->body_max = bytes_max;
    request->body_left = request->head.content_bytes;
    request->chunk = CHUNK_SIZE;
    request->body_done = !request->head.chunked && request->body_left == 0;
    if (!conn) {
        if (request->sink)
            request->sink->gone(request, request->sink_arg);
        else
            httpd_request_free(request);
        return;
    }
    conn->state = CONN_BODY;
    if (request->body_left > bytes_max) {
        request->body_done = true;
        refuse_body(request, 413, "the body is over this route's limit");
        return;
    }
    if (request->head.expect_continue && !request->body_done &&
        evbuffer_get_length(bufferevent_get_input(conn->bev)) == 0)
        evbuffer_add_printf(bufferevent_get_output(conn->bev), "HTTP/1.1 100 Continue\r\n\r\n");
    httpd_conn_deadline(conn, request->server->limits.idle_seconds_max);
    httpd_conn_process(conn);
}

void httpd_accept_body(struct httpd_request *request, uint64_t bytes_max)
{
    accept_any(request, bytes_max);
}

void httpd_accept_stream(struct httpd_request *request, uint64_t bytes_max, const struct httpd_sink *sink,
                         void *arg)
{
    request->sink = sink;
    request->sink_arg = arg;
    request->sink_input = evbuffer_new();
    if (!request->sink_input) {
        request->sink = NULL;
        request->close_after = true;
        request->server->hooks.malformed(request, 503, "out of memory", request->server->hooks.arg);
        return;
    }
    accept_any(request, bytes_max);
}

void httpd_body_pause(struct httpd_request *request)
{
    request->paused = true;
    if (request->conn) {
        bufferevent_disable(request->conn->bev, EV_READ);
        httpd_conn_deadline(request->conn, 0);
    }
}

void httpd_body_resume(struct httpd_request *request)
{
    if (!request->paused)
        return;
    request->paused = false;
    if (!request->conn)
        return;
    bufferevent_enable(request->conn->bev, EV_READ);
    httpd_conn_deadline(request->conn, request->server->limits.idle_seconds_max);
    httpd_conn_process(request->conn);
}

/* ---- heads ---- */

static struct httpd_request *request_create(struct httpd_conn *conn, size_t head_bytes)
{
    struct httpd_request *request = calloc(1, sizeof(*request));
    char *text = malloc(head_bytes + 1);
    if (!request || !text) {
        free(request);
        free(text);
        return NULL;
    }
    evbuffer_remove(bufferevent_get_input(conn->bev), text, head_bytes);
    text[head_bytes] = '\0';
    request->text = text;
    request->server = conn->server;
    request->conn = conn;
    conn->request = request;
    conn->server->request_count++;
    return request;
}

/* Reads a request's head. Returns true when a request was made and processing should continue. */
static bool head_read(struct httpd_conn *conn)
{
    struct evbuffer *input = bufferevent_get_input(conn->bev);
    size_t size = evbuffer_get_length(input);
    unsigned char first[2];
    /* A client that sends requests without reading the answers must wait; on_written continues. */
    if (evbuffer_get_length(bufferevent_get_output(conn->bev)) > UNREAD_BYTES_MAX)
        return false;
    if (size >= 2 && evbuffer_copyout(input, first, 2) == 2 && first[0] == '\r' && first[1] == '\n') {
        evbuffer_drain(input, 2); /* RFC 9112 2.2: an empty line before a request line is skipped */
        return true;
    }
    if (!size) {
        if (conn->server->stopping)
            httpd_conn_gone(conn);
        return false;
    }
    struct evbuffer_ptr end = evbuffer_search(input, "\r\n\r\n", 4, NULL);
    if (end.pos < 0 && size < HTTP_HEAD_BYTES_MAX) {
        if (!conn->deadline_ns || conn->lingered_bytes == 0)
            httpd_conn_deadline(conn, conn->server->limits.head_seconds_max);
        conn->lingered_bytes = 1; /* a head has begun: its deadline is not extended */
        return false;
    }
    bool too_long = end.pos < 0 || end.pos + 4 > HTTP_HEAD_BYTES_MAX;
    struct httpd_request *request = request_create(conn, too_long ? 0 : (size_t)end.pos + 4);
    if (!request) {
        httpd_conn_gone(conn);
        return false;
    }
    conn->lingered_bytes = 0;
    conn->state = CONN_HELD;
    httpd_conn_deadline(conn, 0);
    const char *why = "the head is longer than 32768 bytes";
    int status = too_long ? 431 : httpd_head_parse(request->text, (size_t)end.pos + 4, &request->head, &why);
    httpd_forwarded_read(request);
    if (status) {
        request->close_after = true;
        request->head.keep_alive = false;
        if (!request->head.path)
            request->head.path = request->head.query = request->text + (too_long ? 0 : (size_t)end.pos + 4);
        conn->server->hooks.malformed(request, status, why, conn->server->hooks.arg);
        return true;
    }
    conn->server->hooks.head(request, conn->server->hooks.arg);
    return true;
}

/* ---- connections ---- */

static bool skip_read(struct httpd_conn *conn)
{
    struct evbuffer *input = bufferevent_get_input(conn->bev);
    size_t size = evbuffer_get_length(input);
    if (size > conn->lingered_bytes)
        size = (size_t)conn->lingered_bytes;
    evbuffer_drain(input, size);
    conn->lingered_bytes -= size;
    if (conn->lingered_bytes)
        return false;
    conn->state = CONN_HEAD;
    return true;
}

static bool linger_read(struct httpd_conn *conn)
{
    struct evbuffer *input = bufferevent_get_input(conn->bev);
    conn->lingered_bytes += evbuffer_get_length(input);
    evbuffer_drain(input, evbuffer_get_length(input));
    if (conn->lingered_bytes > LINGER_BYTES_MAX)
        httpd_conn_gone(conn);
    return false;
}

void httpd_conn_process(struct httpd_conn *conn)
{
    if (conn->processing)
        return;
    conn->processing = true;
    bool on = true;
    while (on && !conn->dead) {
        switch (conn->state) {
        case CONN_HEAD:
            on = head_read(conn);
            break;
        case CONN_BODY:
            on = body_read(conn);
            break;
        case CONN_SKIP:
            on = skip_read(conn);
            break;
        case CONN_LINGER:
            on = linger_read(conn);
            break;
        case CONN_HELD:
        case CONN_RUN:
            on = false;
            break;
        }
    }
    conn->processing = false;
    if (conn->dead)
        conn_free(conn);
}

void httpd_request_finish(struct httpd_request *request)
{
    struct httpd_conn *conn = request->conn;
    if (!conn) {
        httpd_request_free(request);
        return;
    }
    bool unread = conn->state == CONN_HELD || conn->state == CONN_BODY;
    uint64_t left = request->head.chunked      ? UINT64_MAX
                    : conn->state == CONN_HELD ? request->head.content_bytes
                                               : request->body_left;
    bool close_after = request->close_after;
    conn->request = NULL;
    request->conn = NULL;
    httpd_request_free(request);
    bufferevent_enable(conn->bev, EV_READ);
    if (close_after) {
        conn->state = CONN_LINGER;
        conn->lingered_bytes = 0;
        httpd_conn_deadline(conn, conn->server->limits.idle_seconds_max);
        if (evbuffer_get_length(bufferevent_get_output(conn->bev)) == 0)
            httpd_conn_deadline(conn, LINGER_SECONDS_MAX);
    } else {
        conn->state = unread && left ? CONN_SKIP : CONN_HEAD;
        conn->lingered_bytes = conn->state == CONN_SKIP ? left : 0;
        httpd_conn_deadline(conn, conn->server->limits.idle_seconds_max);
    }
    httpd_conn_process(conn);
}

static void on_read(struct bufferevent *bev, void *arg)
{
    (void)bev;
    httpd_conn_process(arg);
}

static void on_written(struct bufferevent *bev, void *arg)
{
    struct httpd_conn *conn = arg;
    if (conn->state == CONN_LINGER) {
        evutil_socket_t fd = bufferevent_getfd(bev);
        if (!conn->is_tls && fd >= 0)
            shutdown(fd, SHUT_WR);
        httpd_conn_deadline(conn, LINGER_SECONDS_MAX);
        return;
    }
    if (conn->state == CONN_HEAD) {
        httpd_conn_process(conn);
        return;
    }
    struct httpd_request *request = conn->request;
    if (request && request->streaming) {
        httpd_conn_deadline(conn, 0);
        if (request->drained)
            request->drained(request, request->drained_arg);
    }
}

/* Called when the client took some bytes: its slow reading does not count as idleness, unless it is slower
 * than bytes_per_second_min. */
static void on_taken(struct evbuffer *output, const struct evbuffer_cb_info *info, void *arg)
{
    struct httpd_conn *conn = arg;
    if (evbuffer_get_length(output))
        httpd_conn_moved(conn, info->n_deleted);
}

static void httpd_server_on_event(struct bufferevent *bev, short what, void *arg)
{
    (void)bev;
    if (what & (BEV_EVENT_EOF | BEV_EVENT_ERROR))
        httpd_conn_gone(arg);
}

static void httpd_server_address_read(const struct sockaddr *from, uint8_t to[ADDRESS_BYTES])
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};
    if (from->sa_family == AF_INET6) {
        memcpy(to, &((const struct sockaddr_in6 *)(const void *)from)->sin6_addr, 16);
    } else if (from->sa_family == AF_INET) {
        memcpy(to, mapped, sizeof(mapped));
        memcpy(to + sizeof(mapped), &((const struct sockaddr_in *)(const void *)from)->sin_addr, 4);
    }
}

struct event_base *httpd_event_base(struct err *err)
{
    struct event_config *config = event_config_new();
    struct event_base *base = NULL;
    if (config &&
        event_config_set_max_dispatch_interval(config, NULL, HANDSHAKES_AT_ONCE, PRIORITY_HANDSHAKE) == 0)
        base = event_base_new_with_config(config);
    if (config)
        event_config_free(config);
    if (base && event_base_priority_init(base, PRIORITY_HANDSHAKE + 1) == 0)
        return base;
    if (base)
        event_base_free(base);
    err_set(err, ERR_NOMEM, "out of memory for an event loop");
    return NULL;
}

/* Gives a connection lower priority until its TLS handshake is over. After the handshake libevent makes new
 * events, which have the ordinary priority. */
static void prefer_others(struct bufferevent *bev)
{
    if (event_base_get_npriorities(bufferevent_get_base(bev)) > PRIORITY_HANDSHAKE) {
        event_priority_set(&bev->ev_read, PRIORITY_HANDSHAKE);
        event_priority_set(&bev->ev_write, PRIORITY_HANDSHAKE);
    }
}

/* Makes the buffers of an accepted socket. Returns false without memory; the socket is then closed. */
static bool conn_open(struct httpd_server *server, struct httpd_conn *conn, evutil_socket_t fd)
{
    int one = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof(one));
    conn->server = server;
    conn->is_tls = server->tls && !conn->is_unix;
    if (conn->is_tls) {
        SSL *ssl = SSL_new(server->tls);
        conn->bev = ssl ? bufferevent_openssl_socket_new(server->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                                         BEV_OPT_CLOSE_ON_FREE)
                        : NULL;
        if (conn->bev) {
            bufferevent_openssl_set_allow_dirty_shutdown(conn->bev, 1);
            prefer_others(conn->bev);
        }
    } else {
        conn->bev = bufferevent_socket_new(server->base, fd, BEV_OPT_CLOSE_ON_FREE);
    }
    if (conn->bev && evbuffer_add_cb(bufferevent_get_output(conn->bev), on_taken, conn))
        return true;
    if (conn->bev)
        bufferevent_free(conn->bev); /* this also closes its socket */
    else
        close(fd);
    return false;
}

static void on_accept(struct evconnlistener *listener, evutil_socket_t fd, struct sockaddr *address, int size,
                      void *arg)
{
    (void)size;
    struct httpd_server *server = arg;
    struct ucred peer = {.uid = (uid_t)-1};
    socklen_t peer_size = sizeof(peer);
    const bool is_unix = listener == server->unix_listener;
    uint8_t from[ADDRESS_BYTES] = {0};
    httpd_server_address_read(address, from);
    const int most = httpd_is_proxy(&server->limits, from) ? server->limits.connections_max
                                                           : server->limits.connections_per_address_max;
    if (is_unix && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_size) < 0) {
        close(fd);
        return;
    }
    if (server->conn_count >= server->limits.connections_max || server->stopping ||
        !address_take(&server->addresses, from, most)) {
        server->refused++;
        close(fd);
        return;
    }
    struct httpd_conn *conn = calloc(1, sizeof(*conn));
    if (!conn)
        close(fd);
    else
        *conn = (struct httpd_conn){.is_unix = is_unix, .uid = peer.uid};
    if (!conn || !conn_open(server, conn, fd)) {
        address_release(&server->addresses, from);
        free(conn);
        return;
    }
    memcpy(conn->address, from, sizeof(from));
    TAILQ_INSERT_TAIL(&server->conns, conn, link);
    server->conn_count++;
    httpd_conn_deadline(conn, server->limits.head_seconds_max);
    bufferevent_setwatermark(conn->bev, EV_READ, 0, READ_BYTES_MAX);
    bufferevent_setcb(conn->bev, on_read, on_written, httpd_server_on_event, conn);
    bufferevent_enable(conn->bev, EV_READ | EV_WRITE);
}

void httpd_server_date(struct httpd_server *server)
{
    time_t now = time(NULL);
    struct tm tm;
    gmtime_r(&now, &tm);
    strftime(server->date, sizeof(server->date), "%a, %d %b %Y %H:%M:%S GMT", &tm);
}

static void httpd_server_on_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct httpd_server *server = arg;
    uint64_t now = clock_mono_ns();
    httpd_server_date(server);
    struct httpd_conn *next;
    for (struct httpd_conn *conn = TAILQ_FIRST(&server->conns); conn; conn = next) {
        next = TAILQ_NEXT(conn, link);
        if (conn->deadline_ns && now > conn->deadline_ns)
            httpd_conn_gone(conn);
    }
}

struct httpd_server *httpd_server_create(struct event_base *base, const char *host, uint16_t port,
                                         SSL_CTX *tls, const struct httpd_limits *limits,
                                         const struct httpd_hooks *hooks, struct err *err)
{
    struct httpd_server *server = calloc(1, sizeof(*server));
    if (!server) {
        err_set(err, ERR_NOMEM, "out of memory for the HTTP server");
        return NULL;
    }
    server->base = base;
    server->tls = tls;
    server->limits = *limits;
    server->hooks = *hooks;
    TAILQ_INIT(&server->conns);
    httpd_server_date(server);
    server->tick = event_new(base, -1, EV_PERSIST, httpd_server_on_tick, server);
    struct timeval second = {TICK_SECONDS, 0};
    if (!server->tick || event_add(server->tick, &second) < 0) {
        err_set(err, ERR_NOMEM, "out of memory for the HTTP server");
        httpd_server_destroy(server);
        return NULL;
    }
    if (httpd_listen(server, on_accept, host, port, err) < 0) {
        httpd_server_destroy(server);
        return NULL;
    }
    return server;
}

int httpd_server_listen_unix(struct httpd_server *server, const char *path, struct err *err)
{
    return httpd_listen_unix(server, on_accept, path, err);
}

/* Ends an idle connection. If its last answer is still being sent, it ends after that. */
static void conn_stop(struct httpd_conn *conn)
{
    bool idle = conn->state == CONN_HEAD || conn->state == CONN_LINGER || conn->state == CONN_SKIP;
    if (conn->request && conn->request->streaming) {
        httpd_conn_gone(conn);
    } else if (idle && evbuffer_get_length(bufferevent_get_output(conn->bev)) == 0) {
        httpd_conn_gone(conn);
    } else if (idle) {
        conn->state = CONN_LINGER;
        conn->lingered_bytes = 0;
    }
}

void httpd_server_stop(struct httpd_server *server)
{
    server->stopping = true;
    if (server->listener)
        evconnlistener_disable(server->listener);
    if (server->unix_listener)
        evconnlistener_disable(server->unix_listener);
    struct httpd_conn *next;
    for (struct httpd_conn *conn = TAILQ_FIRST(&server->conns); conn; conn = next) {
        next = TAILQ_NEXT(conn, link);
        conn_stop(conn);
    }
}

void httpd_server_destroy(struct httpd_server *server)
{
    if (!server)
        return;
    while (!TAILQ_EMPTY(&server->conns))
        httpd_conn_gone(TAILQ_FIRST(&server->conns));
    if (server->listener)
        evconnlistener_free(server->listener);
    if (server->unix_listener)
        evconnlistener_free(server->unix_listener);
    if (server->tick)
        event_free(server->tick);
    free(server);
}

uint16_t httpd_server_port(const struct httpd_server *server)
{
    return server->port;
}

int httpd_server_connections(const struct httpd_server *server)
{
    return server->conn_count;
}

uint64_t httpd_server_refused(const struct httpd_server *server)
{
    return server->refused;
}

int httpd_server_requests(const struct httpd_server *server)
{
    return server->request_count;
}

bool httpd_server_busy(const struct httpd_server *server)
{
    if (server->request_count)
        return true;
    const struct httpd_conn *conn;
    TAILQ_FOREACH (conn, &server->conns, link)
        if (evbuffer_get_length(bufferevent_get_output(conn->bev)))
            return true;
    return false;
}
