/* An HTTP/1.1 server over libevent bufferevents (plain or TLS).
 *
 * Why not evhttp: it holds a whole body in memory before anyone sees it, has one
 * body limit for all routes, answers its own errors as HTML, and leaves the body
 * of a GET in the stream, to be read as the next request. Model files, checkpoints
 * and event streams need bodies that flow, with backpressure both ways.
 *
 * Life of a request. When its head is complete, hooks.head is called and must,
 * now or later, call exactly one of
 *   httpd_accept_body()    take the body, whole, then hooks.ready is called
 *   httpd_accept_stream()  take the body piece by piece, then the sink's end is called
 *   httpd_reply*()         answer without reading the body
 * and after a body was accepted, answer exactly once: httpd_reply(), or
 * httpd_stream_begin() … httpd_stream_end(). Until it has answered, the request
 * stays valid, even when the client has gone (httpd_gone() says so; what is then
 * written goes nowhere). One request of a connection runs at a time.
 *
 * Everything here runs on the one thread of the event base, callbacks included.
 */
#ifndef MOTLEY_API_HTTP_HTTPD_SERVER_H
#define MOTLEY_API_HTTP_HTTPD_SERVER_H

#include "api/http/httpd_parse.h"
#include "common/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <event2/buffer.h>
#include <event2/event.h>
#include <openssl/ssl.h>

struct httpd_server;
struct httpd_request;

/* An event base for servers: handshakes of TLS, which cost most and come from strangers, give way to
 * everything else, a few at a time. Returns new, or NULL with ERR_NOMEM. */
struct event_base *httpd_event_base(struct err *err);

struct httpd_hooks {
    void (*head)(struct httpd_request *request, void *arg);
    void (*ready)(struct httpd_request *request, void *arg);
    /* The framing was wrong before there was a request to route: 'status' and
     * 'why' must be answered with httpd_reply (hooks.head was not called). */
    void (*malformed)(struct httpd_request *request, int status, const char *why, void *arg);
    void *arg;
};

/* Where a streamed body goes. 'data' takes what it likes out of 'input' (what it
 * leaves comes again with more); 'end' follows the last byte. 'gone' replaces
 * 'end' when the client went away or sent bad framing: answering is then optional
 * in effect, but still due, with httpd_reply. Required: all three. */
struct httpd_sink {
    void (*data)(struct httpd_request *request, struct evbuffer *input, void *arg);
    void (*end)(struct httpd_request *request, void *arg);
    void (*gone)(struct httpd_request *request, void *arg);
};

struct httpd_limits {
    int connections_max;             /* more are closed at once */
    int connections_per_address_max; /* the same of one address (api/http/address.h) */
    int head_seconds_max;            /* from the first byte of a head to its last */
    /* Keep-alive without a request; a body or a reader without any progress. What moves buys time only at
     * bytes_per_second_min, and never more than this: a drip of bytes keeps no connection alive. */
    int idle_seconds_max;
    uint64_t bytes_per_second_min;
    size_t pending_bytes_max; /* of a stream's reply not yet taken by the client: then it is cut off */
};

/* Listen on 'host':'port' (port 0: any free one). 'tls' is borrowed until
 * destroy, NULL is plain HTTP. Returns new, or NULL with ERR_IO naming the address. */
struct httpd_server *httpd_server_create(struct event_base *base, const char *host, uint16_t port,
                                         SSL_CTX *tls, const struct httpd_limits *limits,
                                         const struct httpd_hooks *hooks, struct err *err);
/* Closes the listener and every connection. Unanswered requests must have been
 * answered before: call httpd_server_stop first and let the loop run. */
void httpd_server_destroy(struct httpd_server *server);
/* No new connections or requests; idle connections close. */
void httpd_server_stop(struct httpd_server *server);
uint16_t httpd_server_port(const struct httpd_server *server);
int httpd_server_connections(const struct httpd_server *server);
/* Connections that were closed at once, being too many, since the start. */
uint64_t httpd_server_refused(const struct httpd_server *server);
/* Requests that were started and not yet answered. */
int httpd_server_requests(const struct httpd_server *server);
/* True while a request is unanswered or an answer not yet sent. */
bool httpd_server_busy(const struct httpd_server *server);

/* Borrowed until the answer. */
const struct httpd_head *httpd_request_head(const struct httpd_request *request);
/* The whole body after hooks.ready; borrowed until the answer. */
const char *httpd_request_body(const struct httpd_request *request, size_t *size);
/* A pointer the owner of the hooks keeps with the request; 'release' (or NULL)
 * is called when the request ends. */
void httpd_request_set_data(struct httpd_request *request, void *data, void (*release)(void *data));
void *httpd_request_data(const struct httpd_request *request);
/* Where it came from: IPv6, or IPv4 mapped into it; zeros when it has gone. */
void httpd_request_address(const struct httpd_request *request, uint8_t address[16]);
/* The connection ends with this request's answer, which has not begun. */
void httpd_close_after(struct httpd_request *request);
bool httpd_gone(const struct httpd_request *request);
bool httpd_request_is_tls(const struct httpd_request *request);

/* Take the body whole, at most bytes_max (else hooks.malformed with 413), then hooks.ready. */
void httpd_accept_body(struct httpd_request *request, uint64_t bytes_max);
/* Take the body by pieces, at most bytes_max. 'sink' and 'arg' are borrowed until its end or gone. */
void httpd_accept_stream(struct httpd_request *request, uint64_t bytes_max, const struct httpd_sink *sink,
                         void *arg);
/* Stop and go on reading a streamed body (backpressure); resuming calls sink.data
 * again from the loop when something waits. */
void httpd_body_pause(struct httpd_request *request);
void httpd_body_resume(struct httpd_request *request);

struct httpd_field {
    const char *name, *value;
};

/* One whole answer. 'fields' (may be NULL) is ended by a NULL name. */
void httpd_reply(struct httpd_request *request, int status, const char *type,
                 const struct httpd_field *fields, const void *body, size_t size);

/* A streamed answer: of 'bytes' in all, or chunked when bytes is -1. 'drained' is
 * called from the loop each time the client has taken what was written, and once
 * when it has gone (ask httpd_gone); never after httpd_stream_end(). */
void httpd_stream_begin(struct httpd_request *request, int status, const char *type,
                        const struct httpd_field *fields, int64_t bytes,
                        void (*drained)(struct httpd_request *request, void *arg), void *arg);
/* Copies. Returns -1 when the client has gone or lags by more than pending_bytes_max. */
int httpd_stream_write(struct httpd_request *request, const void *data, size_t size);
/* Bytes written that the client has not taken yet; 'drained' comes when they are none. 0 when it has gone. */
size_t httpd_stream_unsent(const struct httpd_request *request);
/* 'broken': the answer is cut short; the connection closes so that the client sees it. */
void httpd_stream_end(struct httpd_request *request, bool broken);

#endif
