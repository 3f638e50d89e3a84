/* Parses the head of an HTTP/1.1 request. Pure: no sockets, no clock.
 *
 * It is strict on purpose. A head that two readers could understand differently (a bare CR, a folded header,
 * Content-Length beside Transfer-Encoding, a space before the colon) is refused, so that a proxy in front of
 * this server and the server never disagree on where a request ends (RFC 9112, sections 2.2, 5 and 6).
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
    HTTP_OTHER, /* a well-formed method that no route has: the answer is 405 */
};

struct httpd_header {
    const char *name;  /* lower case */
    const char *value; /* without surrounding spaces */
};

/* The parts of a head. Every pointer points into the parsed text and is valid as long as that text. */
struct httpd_head {
    enum http_method method;
    const char *method_name;
    char *path;  /* as sent, still percent-encoded, without the query */
    char *query; /* the text after '?', "" when absent */
    struct httpd_header headers[HTTP_HEADERS_MAX];
    size_t header_count;
    bool chunked;           /* Transfer-Encoding: chunked */
    bool has_length;        /* a Content-Length header was given */
    uint64_t content_bytes; /* 0 unless has_length */
    bool is_11;             /* the version is HTTP/1.1, not 1.0 */
    bool keep_alive;
    bool expect_continue;
};

/* Parses text[0..size), which must end with the empty line; NULs are written into it. Returns 0, or the HTTP
 * status to answer with (400, 414, 417, 431, 501, 505); *why then gives the reason as a static text. */
int httpd_head_parse(char *text, size_t size, struct httpd_head *head, const char **why);

/* Returns the value of a header by its lower-case name, or NULL. Of several the first counts; a head that
 * repeats a header which must be unique (content-length, host, authorization …) was refused. */
const char *httpd_head_get(const struct httpd_head *head, const char *name);

/* Whether a header's list ("a, b") has this word, in letters of any case. A word with parameters ("gzip;q=0")
 * does not count. */
bool httpd_list_has(const char *value, const char *word);

/* Percent-decodes text[0..size) into out[0..capacity), NUL-terminated. '+' becomes a space only with 'form'.
 * Returns 0, or -1 for a bad escape, a NUL, or when out is too small. */
int httpd_decode(const char *text, size_t size, bool form, char *out, size_t capacity);

/* Reads a Range header (or NULL) for a resource of 'size' bytes: "bytes=a-b", "bytes=a-", "bytes=-n". Returns
 * 0 with *begin and *count, which lie within the resource; 1 when the header does not ask for one range, so
 * that the whole resource is sent; -1 when the range cannot be satisfied. */
int httpd_range_parse(const char *text, uint64_t size, uint64_t *begin, uint64_t *count);

/* Returns the name of a method for logs: "GET" … or "other". */
const char *httpd_method_name(enum http_method method);

#endif
