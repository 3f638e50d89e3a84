/* A blocking HTTP client (libcurl) for the client program, agents and workers' I/O threads; never on an event
 * loop.
 *
 * One handle keeps its connection between requests. A refusal (status >= 400) is an error whose text is the
 * problem+json's detail and whose code is its "code" member, else what the status tells. Thread: one at a
 * time.
 */
#ifndef MOTLEY_COMMON_HTTP_H
#define MOTLEY_COMMON_HTTP_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct http;

struct http_options {
    const char *url;         /* "https://host:port", "http://127.0.0.1:port"; paths are appended */
    const char *unix_socket; /* connect there instead; or NULL */
    const char *bearer;      /* token, or NULL */
    const char *ca_file;     /* PEM of the cluster's CA, whose certificate must also say "server:"; NULL: the
                                system's CAs */
    const uint8_t
        *ca_sha256; /* 32 bytes: trust exactly the CA with this certificate fingerprint (joining); or NULL */
    const char *user_agent; /* or NULL */
    uint32_t connect_ms;    /* 0: 5000 */
};

/* Upload: write at most 'size' bytes to 'dst', return how many, 0 at the end, -1 with *err to stop. */
typedef int64_t http_read_fn(void *arg, void *dst, size_t size, struct err *err);
/* Download: take 'size' bytes, return 0, or -1 with *err to stop (a follower stops with ERR_CANCELLED). */
typedef int http_sink_fn(void *arg, const void *data, size_t size, struct err *err);

struct http_request {
    const char *method; /* "GET", "POST", "PUT", "DELETE", "HEAD" */
    const char *path;   /* "/v1/jobs?limit=50", already escaped */
    const char *content_type;
    const void *body;
    size_t body_bytes;
    http_read_fn *upload; /* instead of body */
    void *upload_arg;
    uint64_t upload_bytes;      /* exact */
    const char *const *headers; /* "Name: value" …, NULL; or NULL */
    uint64_t range_begin; /* with range_bytes > 0: only these bytes; an answer without them is an error */
    uint64_t range_bytes;
    struct buf *response; /* appended, its limit holds; or NULL */
    http_sink_fn *sink;   /* instead of response */
    void *sink_arg;
    uint32_t timeout_ms; /* of the whole request; 0: 30000. UINT32_MAX: none, for followed streams */
    uint32_t idle_ms;    /* end when nothing arrives for so long; 0: none */
};

struct http_answer {
    int status;
    uint64_t length; /* of the body as received */
    char content_type[96];
    char location[256];
    char etag[96];
};

struct http *http_create(const struct http_options *options, struct err *err);
void http_destroy(struct http *http);

/* Returns 0 for status < 400 (redirects are not followed: an error), else -1; *answer is filled whenever a
 * status came. 'answer' may be NULL. */
int http_perform(struct http *http, const struct http_request *request, struct http_answer *answer,
                 struct err *err);

/* JSON both ways: 'body' NULL sends none; *out (may be NULL) becomes new, or NULL for an empty answer. */
int http_json(struct http *http, const char *method, const char *path, const json_t *body,
              uint32_t timeout_ms, json_t **out, struct err *err);

/* Percent-encode one path segment or query value into out[size]; ERR_TOO_BIG. */
int http_escape(const char *text, char *out, size_t size, struct err *err);

#endif
