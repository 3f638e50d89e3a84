/* Declarations that httpd_listen.c, httpd_server.c (reading) and httpd_reply.c (answering) share. Not for
 * handlers. */
#ifndef MOTLEY_API_HTTP_HTTPD_PRIVATE_H
#define MOTLEY_API_HTTP_HTTPD_PRIVATE_H

#include "api/http/address.h"
#include "api/http/httpd_server.h"

#include <event2/bufferevent.h>
#include <event2/listener.h>
#include <sys/queue.h>

enum conn_state {
    CONN_HEAD, /* waiting for a request's head, or receiving one */
    CONN_HELD, /* the head was delivered, and the handler has not yet asked for the body */
    CONN_BODY, /* reading the body */
    CONN_RUN,  /* the body is complete, and the handler works or streams its answer */
    CONN_SKIP, /* answered; the rest of a short body is skipped before the next head */
    /* answered with "Connection: close": sends the rest, then drops what it receives until the client
     * closes */
    CONN_LINGER,
};

enum chunk_state { CHUNK_SIZE, CHUNK_DATA, CHUNK_END, CHUNK_TRAILER };

struct httpd_conn {
    TAILQ_ENTRY(httpd_conn) link;
    struct httpd_server *server;
    struct bufferevent *bev;
    enum conn_state state;
    struct httpd_request *request; /* NULL between requests */
    uint64_t deadline_ns;          /* 0: none; the tick closes a connection that is past its deadline */
    uint64_t lingered_bytes;
    bool processing; /* conn_process is on the stack: do not free the connection, do not call it again */
    bool dead;       /* free the connection when conn_process returns */
    bool is_tls;
    bool is_unix; /* it came by the unix socket, from a process of `uid` */
    uid_t uid;
    uint8_t address[ADDRESS_BYTES]; /* the client's address, IPv4 mapped into IPv6; zeros: unknown */
};

struct httpd_request {
    struct httpd_server *server;
    struct httpd_conn *conn; /* NULL: the client has closed the connection */
    struct httpd_head head;
    char *text; /* the text that head points into */
    char id[HTTPD_ID_BYTES];
    uint8_t address[ADDRESS_BYTES]; /* the client's */
    bool is_tls;                    /* whether the client's request came by TLS */
    bool is_unix;                   /* of its connection, as `uid` */
    uid_t uid;
    void *data;
    void (*release)(void *data);
    /* from here on: the request's body */
    char *body;
    size_t body_size, body_capacity;
    /* body_left: bytes left of Content-Length, or of the chunk that is being received */
    uint64_t body_max, body_left;
    uint64_t body_seen;
    enum chunk_state chunk;
    uint32_t trailer_bytes; /* of the fields after the last chunk */
    const struct httpd_sink *sink;
    void *sink_arg;
    struct evbuffer *sink_input; /* decoded bytes that the sink has not taken yet */
    bool paused, body_done;
    /* from here on: the answer */
    bool answered, streaming, chunked_reply, no_body, close_after;
    int64_t reply_left;
    void (*drained)(struct httpd_request *request, void *arg);
    void *drained_arg;
};

TAILQ_HEAD(httpd_conns, httpd_conn);

struct httpd_server {
    struct event_base *base;
    struct evconnlistener *listener, *unix_listener; /* unix_listener: or NULL */
    struct event *tick;
    SSL_CTX *tls;
    struct httpd_limits limits;
    struct httpd_hooks hooks;
    struct httpd_conns conns;
    struct address_counts addresses;
    int conn_count, request_count;
    uint64_t refused;
    uint16_t port;
    bool stopping;
    char date[40]; /* value of the Date header, renewed by the tick */
};

/* Ends a request whose answer is complete: frees it, and continues or closes the connection. */
void httpd_request_finish(struct httpd_request *request);
/* Frees the request and calls the handler's release; the request must no longer belong to a connection. */
void httpd_request_free(struct httpd_request *request);
/* Whether the address is one of limits.proxies. */
bool httpd_is_proxy(const struct httpd_limits *limits, const uint8_t address[ADDRESS_BYTES]);
/* Sets the request's `address` and `is_tls`, of a proxy's by its head. */
void httpd_forwarded_read(struct httpd_request *request);
/* Advances the connection as far as the received bytes allow. */
void httpd_conn_process(struct httpd_conn *conn);
/* Ends the connection; its request, if any, learns that the client has gone. */
void httpd_conn_gone(struct httpd_conn *conn);
/* Sets the deadline by which the connection must make progress, in seconds from now; 0: no deadline. */
void httpd_conn_deadline(struct httpd_conn *conn, int seconds);
/* Extends the connection's deadline, if it has one, because 'bytes' were transferred. */
void httpd_conn_moved(struct httpd_conn *conn, uint64_t bytes);
void httpd_server_date(struct httpd_server *server);
/* Make the server's listeners; 'on_accept' gets the server. ERR_IO names the address, or the path. */
int httpd_listen(struct httpd_server *server, evconnlistener_cb on_accept, const char *host, uint16_t port,
                 struct err *err);
int httpd_listen_unix(struct httpd_server *server, evconnlistener_cb on_accept, const char *path,
                      struct err *err);

#endif
