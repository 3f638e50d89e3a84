/* The head of an HTTP/1.1 request, parsed from bytes. Pure: no sockets, no clock.
 *
 * Strict on purpose: what two readers could understand differently (a bare CR,
 * a folded header, Content-Length beside Transfer-Encoding, a space before the
 * colon) is refused instead of guessed at, so that a proxy in front of us and
 * we never disagree on where a request ends (RFC 9112, sections 2.2, 5 and 6).
 */
#ifndef MOTLEY_API_HTTP_HTTPD_PARSE_H
#define MOTLEY_API_HTTP_HTTPD_PARSE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { HTTP_HEAD_BYTES_MAX = 32768, HTTP_HEADERS_MAX = 64, HTTP_TARGET_BYTES_MAX = 4096 };

enum http_method {
    HTTP_GET,
    HTTP_HEAD,
    HTTP_POST,
    HTTP_PUT,
    HTTP_DELETE,
    HTTP_PATCH,
    HTTP_OPTIONS,
    HTTP_TRACE,
    HTTP_OTHER, /* well formed, but none of ours: the routes answer 405 */
};

struct httpd_header {
    const char *name;  /* lower case */
    const char *value; /* trimmed */
};

/* Every pointer is into the parsed text and lives as long as it does. */
struct httpd_head {
    enum http_method method;
    const char *method_name;
    char *path;  /* as sent, still percent-encoded, no query */
    char *query; /* after '?', "" when absent */
    struct httpd_header headers[HTTP_HEADERS_MAX];
    size_t header_count;
    bool chunked;           /* Transfer-Encoding: chunked */
    bool has_length;        /* Content-Length was given */
    uint64_t content_bytes; /* 0 unless has_length */
    bool is_11;             /* HTTP/1.1, not 1.0 */
    bool keep_alive;
    bool expect_continue;
};

/* Parse text[0..size), which must end with the empty line and is changed in
 * place (NULs are written into it). Returns 0, or the HTTP status to answer
 * with (400, 414, 417, 431, 501, 505); *why then names the reason in static words. */
int httpd_head_parse(char *text, size_t size, struct httpd_head *head, const char **why);

/* The value of a header by its lower-case name, or NULL. The first wins; names
 * that must not repeat (content-length, host, authorization …) were refused twice. */
const char *httpd_head_get(const struct httpd_head *head, const char *name);

/* Percent-decode text[0..size) into out[0..capacity), NUL-terminated. '+' stays
 * itself unless 'form'. Returns 0, or -1 on a bad escape, a NUL, or no room. */
int httpd_decode(const char *text, size_t size, bool form, char *out, size_t capacity);

/* A Range header (or NULL) for a resource of 'size' bytes: "bytes=a-b", "bytes=a-", "bytes=-n". 0: *begin and
 * *count, all within it; 1: no single range asked for, take all; -1: not satisfiable. */
int httpd_range_parse(const char *text, uint64_t size, uint64_t *begin, uint64_t *count);

/* The lower-case name of a method for logs: "GET" … or "other". */
const char *httpd_method_name(enum http_method method);

#endif
