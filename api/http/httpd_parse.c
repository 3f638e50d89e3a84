/* Parses request heads. httpd_parse.h says what is refused and why. */
#include "api/http/httpd_parse.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    enum http_method method;
} methods[] = {
    {"GET", HTTP_GET},       {"HEAD", HTTP_HEAD},   {"POST", HTTP_POST},       {"PUT", HTTP_PUT},
    {"DELETE", HTTP_DELETE}, {"PATCH", HTTP_PATCH}, {"OPTIONS", HTTP_OPTIONS}, {"TRACE", HTTP_TRACE},
};

const char *httpd_method_name(enum http_method method)
{
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (methods[i].method == method)
            return methods[i].name;
    return "other";
}

/* Whether the character may be part of a method or a field name (RFC 9110, section 5.6.2). */
static bool is_token_char(unsigned char c)
{
    return isalnum(c) || (c != 0 && strchr("!#$%&'*+-.^_`|~", c));
}

static bool is_token(const char *text)
{
    if (!*text)
        return false;
    for (; *text; text++)
        if (!is_token_char((unsigned char)*text))
            return false;
    return true;
}

const char *httpd_head_get(const struct httpd_head *head, const char *name)
{
    for (size_t i = 0; i < head->header_count; i++)
        if (strcmp(head->headers[i].name, name) == 0)
            return head->headers[i].value;
    return NULL;
}

static int httpd_parse_refuse(int status, const char *text, const char **why)
{
    *why = text;
    return status;
}

static int parse_request_line(char *line, struct httpd_head *head, const char **why)
{
    char *target = strchr(line, ' ');
    if (!target)
        return httpd_parse_refuse(400, "the request line has no target", why);
    *target++ = '\0';
    char *version = strchr(target, ' ');
    if (!version)
        return httpd_parse_refuse(400, "the request line has no version", why);
    *version++ = '\0';
    if (strcmp(version, "HTTP/1.1") == 0)
        head->is_11 = head->keep_alive = true;
    else if (strcmp(version, "HTTP/1.0") != 0)
        return httpd_parse_refuse(strncmp(version, "HTTP/", 5) == 0 ? 505 : 400,
                                  "the version is not HTTP/1.1", why);
    if (!is_token(line))
        return httpd_parse_refuse(400, "the method is not a token", why);
    head->method = HTTP_OTHER;
    head->method_name = line;
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++)
        if (strcmp(line, methods[i].name) == 0)
            head->method = methods[i].method;
    if (strlen(target) > HTTP_TARGET_BYTES_MAX)
        return httpd_parse_refuse(414, "the target is longer than 4096 bytes", why);
    if (*target != '/')
        return httpd_parse_refuse(400, "the target is not a path", why);
    for (const char *c = target; *c; c++)
        if ((unsigned char)*c <= 0x20 || (unsigned char)*c >= 0x7f)
            return httpd_parse_refuse(400, "the target holds a character that must be percent-encoded", why);
    char *fragment = strchr(target, '#');
    if (fragment)
        return httpd_parse_refuse(400, "the target holds a fragment", why);
    head->path = target;
    char *query = strchr(target, '?');
    head->query = target + strlen(target);
    if (query) {
        *query = '\0';
        head->query = query + 1;
    }
    return 0;
}

static int parse_length(const char *value, struct httpd_head *head, const char **why)
{
    if (!*value)
        return httpd_parse_refuse(400, "Content-Length is not a number", why);
    uint64_t bytes = 0;
    for (const char *c = value; *c; c++) {
        if (*c < '0' || *c > '9' || bytes > (UINT64_MAX - 9) / 10)
            return httpd_parse_refuse(400, "Content-Length is not a number", why);
        bytes = bytes * 10 + (uint64_t)(*c - '0');
    }
    head->has_length = true;
    head->content_bytes = bytes;
    return 0;
}

static int parse_header(char *line, struct httpd_head *head, const char **why)
{
    if (head->header_count == HTTP_HEADERS_MAX)
        return httpd_parse_refuse(431, "there are more than 64 headers", why);
    char *colon = strchr(line, ':');
    if (!colon)
        return httpd_parse_refuse(400, "a header has no colon", why);
    *colon = '\0';
    if (!is_token(line))
        return httpd_parse_refuse(400, "a header's name is not a token", why);
    for (char *c = line; *c; c++)
        *c = (char)tolower((unsigned char)*c);
    char *value = colon + 1;
    while (*value == ' ' || *value == '\t')
        value++;
    char *end = value + strlen(value);
    while (end > value && (end[-1] == ' ' || end[-1] == '\t'))
        *--end = '\0';
    for (const char *c = value; *c; c++)
        if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
            return httpd_parse_refuse(400, "a header's value holds a control character", why);
    static const char *const once[] = {"content-length", "transfer-encoding", "host",
                                       "authorization",  "content-type",      "range",
                                       "idempotency-key"};
    for (size_t i = 0; i < sizeof(once) / sizeof(once[0]); i++)
        if (strcmp(line, once[i]) == 0 && httpd_head_get(head, line))
            return httpd_parse_refuse(400, "a header that must stand once stands twice", why);
    head->headers[head->header_count].name = line;
    head->headers[head->header_count++].value = value;
    return 0;
}

bool httpd_list_has(const char *value, const char *word)
{
    size_t size = strlen(word);
    while (*value) {
        while (*value == ' ' || *value == ',' || *value == '\t')
            value++;
        size_t n = strcspn(value, ", \t");
        if (n == size && strncasecmp(value, word, n) == 0)
            return true;
        value += n;
    }
    return false;
}

static int parse_framing(struct httpd_head *head, const char **why)
{
    const char *length = httpd_head_get(head, "content-length");
    const char *encoding = httpd_head_get(head, "transfer-encoding");
    if (length && encoding)
        return httpd_parse_refuse(400, "Content-Length and Transfer-Encoding stand together", why);
    int status = length ? parse_length(length, head, why) : 0;
    if (status)
        return status;
    if (encoding) {
        if (!head->is_11)
            return httpd_parse_refuse(400, "Transfer-Encoding needs HTTP/1.1", why);
        if (strcasecmp(encoding, "chunked") != 0)
            return httpd_parse_refuse(501, "the only transfer encoding is chunked", why);
        head->chunked = true;
    }
    const char *connection = httpd_head_get(head, "connection");
    if (connection && httpd_list_has(connection, "close"))
        head->keep_alive = false;
    else if (connection && httpd_list_has(connection, "keep-alive"))
        head->keep_alive = true;
    const char *expect = httpd_head_get(head, "expect");
    if (expect && strcasecmp(expect, "100-continue") != 0)
        return httpd_parse_refuse(417, "the only expectation is 100-continue", why);
    head->expect_continue = expect && head->is_11;
    if (head->is_11 && !httpd_head_get(head, "host"))
        return httpd_parse_refuse(400, "there is no Host header", why);
    return 0;
}

int httpd_head_parse(char *text, size_t size, struct httpd_head *head, const char **why)
{
    memset(head, 0, sizeof(*head));
    if (memchr(text, '\0', size))
        return httpd_parse_refuse(400, "the head holds a NUL", why);
    bool first = true;
    for (char *line = text, *end = text + size; line < end;) {
        char *newline = memchr(line, '\n', (size_t)(end - line));
        if (!newline || newline == line || newline[-1] != '\r')
            return httpd_parse_refuse(400, "a line does not end with CR LF", why);
        newline[-1] = '\0';
        *newline = '\0';
        if (strchr(line, '\r'))
            return httpd_parse_refuse(400, "a line holds a bare CR", why);
        if (!*line && !first)
            break;
        int status = first ? parse_request_line(line, head, why) : parse_header(line, head, why);
        if (status)
            return status;
        first = false;
        line = newline + 1;
    }
    return parse_framing(head, why);
}

static int httpd_parse_hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    if (c >= 'a' && c <= 'f')
        return c - 'a' + 10;
    if (c >= 'A' && c <= 'F')
        return c - 'A' + 10;
    return -1;
}

int httpd_decode(const char *text, size_t size, bool form, char *out, size_t capacity)
{
    size_t n = 0;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (c == '%') {
            int high = i + 2 < size ? httpd_parse_hex_digit(text[i + 1]) : -1;
            int low = high >= 0 ? httpd_parse_hex_digit(text[i + 2]) : -1;
            if (low < 0)
                return -1;
            c = (char)(high * 16 + low);
            if (c == '\0')
                return -1;
            i += 2;
        } else if (c == '+' && form) {
            c = ' ';
        }
        if (n + 1 >= capacity)
            return -1;
        out[n++] = c;
    }
    if (capacity == 0)
        return -1;
    out[n] = '\0';
    return 0;
}

int httpd_range_parse(const char *text, uint64_t size, uint64_t *begin, uint64_t *count)
{
    if (!text || strncmp(text, "bytes=", 6) != 0 || strchr(text, ','))
        return 1;
    const char *at = text + 6;
    char *end = NULL;
    errno = 0;
    if (*at == '-') {
        unsigned long long n = strtoull(at + 1, &end, 10);
        if (at[1] < '0' || at[1] > '9' || *end || errno)
            return 1;
        if (n == 0 || size == 0)
            return -1;
        *count = n < size ? n : size;
        *begin = size - *count;
        return 0;
    }
    if (*at < '0' || *at > '9')
        return 1;
    unsigned long long first = strtoull(at, &end, 10), last = size - 1;
    if (*end++ != '-' || errno)
        return 1;
    if (*end) {
        const char *digits = end;
        last = strtoull(digits, &end, 10);
        if (*digits < '0' || *digits > '9' || *end || errno || last < first)
            return 1;
    }
    if (first >= size)
        return -1;
    if (last >= size)
        last = size - 1;
    *begin = first;
    *count = last - first + 1;
    return 0;
}
