/* An HTTP/1.1 server over libevent bufferevents (plain or TLS).
 *
 * evhttp is not used because it holds a whole body in memory before a handler sees it, has one body limit for
 * all routes, answers its own errors as HTML, and leaves the body of a GET in the stream, where it is read as
 * the next request. Model files, checkpoints and event streams need bodies that are streamed, with
 * backpressure in both directions.
 *
 * Life of a request. When its head is complete, hooks.head is called and must, now or later, call exactly one
 * of
 *
 *   httpd_accept_body()     takes the whole body, then hooks.ready is called
 *   httpd_accept_stream()   takes the body piece by piece, then the sink's end is called
 *   httpd_reply*()          answers without reading the body
 *
 * After it accepted a body, the handler answers exactly once: with httpd_reply(), or with
 * httpd_stream_begin() … httpd_stream_end(). The request stays valid until the handler has answered, even
 * when the client has gone (httpd_gone() says so, and the answer is dropped). One request of a connection
 * runs at a time.
 *
 * Everything here runs on the event base's thread, callbacks included.
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
#include <sys/types.h>

struct httpd_server;
struct httpd_request;

/* Creates an event base for servers. TLS handshakes, which are expensive and may come from anybody, get a
 * lower priority than everything else, and only a few are served at a time. Returns new, or NULL with
 * ERR_NOMEM. */
struct event_base *httpd_event_base(struct err *err);

struct httpd_hooks {
    void (*head)(struct httpd_request *request, void *arg);
    void (*ready)(struct httpd_request *request, void *arg);
    /* Called when the framing was wrong before there was a request to route; hooks.head was not called. The
     * hook must answer 'status' and 'why' with httpd_reply. */
    void (*malformed)(struct httpd_request *request, int status, const char *why, void *arg);
    void *arg;
};

/* Receives a streamed body; all three functions are required. 'data' takes as much of 'input' as it wants;
 * the rest comes again together with more. 'end' follows the last byte. 'gone' replaces 'end' when the client
 * left or sent bad framing; the handler must still call httpd_reply, whose answer may reach nobody. */
struct httpd_sink {
    void (*data)(struct httpd_request *request, struct evbuffer *input, void *arg);
    void (*end)(struct httpd_request *request, void *arg);
    void (*gone)(struct httpd_request *request, void *arg);
};

enum { HTTPD_PROXIES_MAX = 16 };

struct httpd_limits {
    int connections_max; /* further connections are closed at once */
    /* connections of one address (api/http/address.h); further ones are closed at once */
    int connections_per_address_max;
    int head_seconds_max; /* seconds from the first byte of a head to its last */
    /* Longest time without a request on a kept-alive connection, and longest time in which a body or a reader
     * makes no progress. Transferred bytes extend the deadline at bytes_per_second_min, but never beyond this
     * time, so a trickle of bytes does not keep a connection open. */
    int idle_seconds_max;
    uint64_t bytes_per_second_min;
    /* bytes of a streamed answer that the client may leave unread; with more the stream is cut off */
    size_t pending_bytes_max;
    /* Reverse proxies, which may open any number of connections: what they say in X-Forwarded-For and
     * X-Forwarded-Proto of a request is taken for its client's address, and for whether that came by TLS. */
    unsigned proxy_count;
    uint8_t proxies[HTTPD_PROXIES_MAX][16];
};

/* Listens on 'host':'port' (port 0: any free one). 'tls' is borrowed until destroy; NULL means plain HTTP.
 * Returns new, or NULL with ERR_IO naming the address. */
struct httpd_server *httpd_server_create(struct event_base *base, const char *host, uint16_t port,
                                         SSL_CTX *tls, const struct httpd_limits *limits,
                                         const struct httpd_hooks *hooks, struct err *err);
/* Listens on a unix socket, too, without TLS, which every account of this machine may connect to. What is at
 * the path is removed, if it is a socket. ERR_IO names the path. */
int httpd_server_listen_unix(struct httpd_server *server, const char *path, struct err *err);
/* Closes the listeners and every connection. All requests must have been answered: call httpd_server_stop
 * first and let the loop run. */
void httpd_server_destroy(struct httpd_server *server);
/* Accepts no further connections or requests; idle connections close. */
void httpd_server_stop(struct httpd_server *server);
uint16_t httpd_server_port(const struct httpd_server *server);
int httpd_server_connections(const struct httpd_server *server);
/* Returns the number of connections, since the start, that were closed at once because there were too
 * many. */
uint64_t httpd_server_refused(const struct httpd_server *server);
/* Returns the number of requests that were begun and not yet answered. */
int httpd_server_requests(const struct httpd_server *server);
/* Returns true while a request is unanswered or an answer is not yet sent. */
bool httpd_server_busy(const struct httpd_server *server);

/* Returns the request's head, borrowed until the answer. */
const struct httpd_head *httpd_request_head(const struct httpd_request *request);
/* Returns the whole body, after hooks.ready was called; borrowed until the answer. */
const char *httpd_request_body(const struct httpd_request *request, size_t *size);
/* Attaches the handler's pointer to the request; 'release' (or NULL) is called when the request ends. */
void httpd_request_set_data(struct httpd_request *request, void *data, void (*release)(void *data));
void *httpd_request_data(const struct httpd_request *request);
/* Sets the request's id, at most HTTPD_ID_BYTES - 1 characters ("" at first), which every answer repeats as
 * X-Request-Id. */
enum { HTTPD_ID_BYTES = 65 };
void httpd_request_set_id(struct httpd_request *request, const char *id);
const char *httpd_request_id(const struct httpd_request *request);
/* Writes the client's address: IPv6, or IPv4 mapped into it. */
void httpd_request_address(const struct httpd_request *request, uint8_t address[16]);
/* Closes the connection after this request's answer. Call it before the answer begins. */
void httpd_close_after(struct httpd_request *request);
bool httpd_gone(const struct httpd_request *request);
bool httpd_request_is_tls(const struct httpd_request *request);
/* Whether the request came by the unix socket; *uid becomes the account of the process that connected. */
bool httpd_request_peer(const struct httpd_request *request, uid_t *uid);
/* Returns the value of this header (its name in lower case) where one of limits.proxies sent the request and
 * wrote the header once; else NULL. Borrowed from the request. */
const char *httpd_request_proxied(const struct httpd_request *request, const char *name);

/* Takes the whole body, at most bytes_max (a larger one ends in hooks.malformed with 413), then calls
 * hooks.ready. */
void httpd_accept_body(struct httpd_request *request, uint64_t bytes_max);
/* Takes the body piece by piece, at most bytes_max. 'sink' and 'arg' are borrowed until the sink's end or
 * gone is called. */
void httpd_accept_stream(struct httpd_request *request, uint64_t bytes_max, const struct httpd_sink *sink,
                         void *arg);
/* Pause and resume reading a streamed body (backpressure). Resuming calls sink.data again when bytes are
 * waiting. */
void httpd_body_pause(struct httpd_request *request);
void httpd_body_resume(struct httpd_request *request);

struct httpd_field {
    const char *name, *value;
};

/* Sends one whole answer. 'fields' (header fields) may be NULL; otherwise a NULL name ends the list. */
void httpd_reply(struct httpd_request *request, int status, const char *type,
                 const struct httpd_field *fields, const void *body, size_t size);

/* Begins a streamed answer of 'bytes' bytes, or a chunked one when bytes is -1. 'drained' is called each time
 * that the client has taken everything that was written, and once when the client has gone (httpd_gone
 * tells); never after httpd_stream_end(). */
void httpd_stream_begin(struct httpd_request *request, int status, const char *type,
                        const struct httpd_field *fields, int64_t bytes,
                        void (*drained)(struct httpd_request *request, void *arg), void *arg);
/* Sends a copy of 'data'. Returns -1 when the client has gone or has left more than pending_bytes_max
 * unread. */
int httpd_stream_write(struct httpd_request *request, const void *data, size_t size);
/* Returns the bytes that the client has not taken yet; 'drained' is called when there are none left. 0 when
 * the client has gone. */
size_t httpd_stream_unsent(const struct httpd_request *request);
/* Ends the answer. With 'broken' the answer is cut short, and the connection closes so that the client
 * notices. */
void httpd_stream_end(struct httpd_request *request, bool broken);

#endif
