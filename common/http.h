/* A blocking HTTP client (libcurl) for the command line, agents and workers' I/O threads; never for an event
 * loop.
 *
 * One handle keeps its connection between requests. A refusal (status >= 400) is an error: its text is the
 * problem+json's detail and its code is that document's "code", else the code for the status. A server of a
 * release that does not work with this one is ERR_RELEASE (common/release.h). Thread: one at a time.
 */
#ifndef MOTLEY_COMMON_HTTP_H
#define MOTLEY_COMMON_HTTP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

#include "common/buf.h"
#include "common/err.h"

struct http;

struct http_options {
    const char *url;         /* "https://host:port" or "http://127.0.0.1:port"; paths are appended */
    const char *unix_socket; /* unix socket to connect to instead of the host in `url`; or NULL */
    const char *bearer;      /* bearer token, or NULL. With a token, or a CA to join by, http:// reaches this
                                machine      alone: ERR_INVALID */
    const char *ca_file; /* PEM of the cluster's CA, whose certificate of the server must also say "server:",
                            or of a CA that signed a web server's before it. NULL: the system's CAs */
    const uint8_t *
        ca_sha256; /* 32 bytes: trust only the CA with this certificate fingerprint (used to join); or NULL */
    const char *user_agent; /* value of the User-Agent header; or NULL */
    /* A public server instead of the cluster's: redirects are followed (without the token to other hosts, and
     * never from https:// to http://), the environment's proxy is used, TLS 1.2 will do, and ca_file is any
     * CAs' */
    bool web;
    bool no_redirects; /* of `web`: they are refusals */
    bool secret;       /* answers hold a secret: as with a token, http:// reaches this machine alone */
    /* Of `web`, for a server that a user named: asked of each address before it is connected to. With it
     * neither redirects are followed nor a proxy is used, and an address that is refused is ERR_DENIED. Or
     * NULL. */
    bool (*may_connect)(const void *arg, const struct sockaddr *address);
    const void *may_arg; /* borrowed while the client lives */
    uint32_t connect_ms; /* limit for connecting; 0 means 5000 */
};

/* Source of an upload: writes at most 'size' bytes to 'dst' and returns how many; 0 at the end; -1 with *err
 * to stop. */
typedef int64_t http_read_fn(void *arg, void *dst, size_t size, struct err *err);
/* Sink of a download: takes 'size' bytes and returns 0, or -1 with *err to stop (a follower stops with
 * ERR_CANCELLED). */
typedef int http_sink_fn(void *arg, const void *data, size_t size, struct err *err);

/* Descriptors that http_perform watches while it waits for the answer. A caller who follows a stream uses
 * them to react to the keyboard meanwhile. */
enum { HTTP_WATCH_FDS = 2 };
struct http_watch {
    int fds[HTTP_WATCH_FDS]; /* descriptors that may become readable */
    unsigned fd_count;
    uint32_t every_ms; /* most milliseconds between two calls of `ready` */
    /* Called when a descriptor can be read, and whenever something else happened. Returns 0, or -1 with *err
     * to stop the request (ERR_CANCELLED where that is no failure). It must not use the same client. */
    int (*ready)(void *arg, struct err *err);
    void *arg;
};

struct http_request {
    const char *method; /* "GET", "POST", "PUT", "DELETE", "HEAD" */
    const char *path;   /* "/v1/jobs?limit=50", already escaped */
    const char *content_type;
    const void *body;
    size_t body_bytes;
    http_read_fn *upload; /* source of the body instead of `body` */
    void *upload_arg;
    uint64_t upload_bytes;      /* exact size of the upload */
    const char *const *headers; /* "Name: value" texts, NULL-terminated; or NULL */
    uint64_t range_begin; /* when range_bytes > 0, only bytes from range_begin on are requested; an answer
                             with other bytes is an error */
    uint64_t range_bytes;
    struct buf *response; /* the body is appended here, within the buffer's limit; or NULL */
    struct buf *refusal;  /* the same of a refusal's body, of which 64 KiB are kept; or NULL */
    http_sink_fn *sink;   /* takes the body instead of `response` */
    void *sink_arg;
    uint32_t timeout_ms; /* limit for the whole request; 0 means 30000, UINT32_MAX no limit, for streams that
                            are followed */
    uint32_t idle_ms;    /* the request fails if nothing arrives for this long; 0: no limit */
    /* Asked about once a second, also while nothing arrives; true ends the request with ERR_CANCELLED. Or
     * NULL. */
    bool (*stopped)(const void *arg);
    const void *stopped_arg;
    const struct http_watch *watch; /* what to watch meanwhile, or NULL */
};

struct http_answer {
    int status;
    uint64_t length; /* length of the received body */
    char content_type[96];
    char location[256];
    char etag[96];
    char release[64];    /* RELEASE_HEADER of common/release.h, checked already; "": there was none */
    int64_t date_s;      /* the server's time, in seconds since 1970; 0: it did not say */
    char error_code[64]; /* X-Error-Code, by which a hub says why it refuses */
    uint32_t retry_s;    /* how long a server that is asked too often (429, 503) wants to be left alone */
};

struct http *http_create(const struct http_options *options, struct err *err);
/* Makes libcurl ready, once in a process; http_create() does it, too. */
void http_start(void);
void http_destroy(struct http *http);

/* Performs a request. Returns 0 for status < 400 (redirects are not followed and count as errors, unless
 * `web`), else -1.
 * *answer is filled whenever a status arrived; 'answer' may be NULL. */
int http_perform(struct http *http, const struct http_request *request, struct http_answer *answer,
                 struct err *err);

/* Sends and receives JSON. No body is sent when 'body' is NULL. *out ('out' may be NULL) becomes new, or NULL
 * for an empty answer. */
int http_json(struct http *http, const char *method, const char *path, const json_t *body,
              uint32_t timeout_ms, json_t **out, struct err *err);

/* Percent-encodes one path segment or query value into out[size]; ERR_TOO_BIG. */
int http_escape(const char *text, char *out, size_t size, struct err *err);

#endif
