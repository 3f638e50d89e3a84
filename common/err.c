/* See err.h. A message is formatted into a temporary first, because err_wrap and callers that quote an
 * earlier error pass pointers into the same object. */
#include "common/err.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

struct code_entry {
    enum err_code code;
    const char *name;
    int http;
};

static const struct code_entry code_table[] = {
    {ERR_NONE, "none", 200},
    {ERR_INVALID, "invalid", 400},
    {ERR_NOT_FOUND, "not-found", 404},
    {ERR_AUTH, "unauthenticated", 401},
    {ERR_DENIED, "denied", 403},
    {ERR_CONFLICT, "conflict", 409},
    {ERR_TOO_BIG, "too-big", 413},
    {ERR_NOFIT, "no-fit", 422},
    {ERR_NOMEM, "no-memory", 507},
    {ERR_IO, "io", 507},
    {ERR_NET, "network", 503},
    {ERR_TIMEOUT, "timeout", 504},
    {ERR_PEER, "peer", 502},
    {ERR_CORRUPT, "corrupt", 500},
    {ERR_UNSUPPORTED, "unsupported", 501},
    {ERR_STALE, "stale", 412},
    {ERR_CANCELLED, "cancelled", 499},
    {ERR_NOT_FINITE, "not-finite", 500},
    {ERR_BUSY, "busy", 429},
    {ERR_INTERNAL, "internal", 500},
    {ERR_DEVICE_LOST, "device-lost", 500},
    {ERR_DEVICE_FAULT, "device-fault", 500},
    {ERR_NODE, "node-fault", 500},
    {ERR_RELEASE, "release", 426},
    {ERR_LIMIT, "limit", 409},
};

enum { CODE_ENTRIES = sizeof(code_table) / sizeof(code_table[0]) };

/* Returns the size of the UTF-8 character that begins at text[0], or 0 if none does. */
static size_t character_size(const char *text)
{
    const unsigned char first = (unsigned char)text[0];
    const size_t size = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
    for (size_t i = 1; i < size; i++)
        if (((unsigned char)text[i] & 0xc0) != 0x80)
            return 0;
    return size;
}

/* Sets the text. Quoted text may be cut inside a character; the half character becomes '?', since messages
 * travel as JSON. */
static void text_set(struct err *err, const char *text)
{
    size_t length = strnlen(text, sizeof(err->text) - 1);
    memmove(err->text, text, length);
    err->text[length] = '\0';
    for (size_t at = 0, size; at < length; at += size ? size : 1) {
        size = character_size(err->text + at);
        if (!size)
            err->text[at] = '?';
    }
}

int err_set(struct err *err, enum err_code code, const char *fmt, ...)
{
    int saved = errno;
    char text[sizeof(err->text)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    err->code = code;
    text_set(err, text);
    errno = saved;
    return -1;
}

int err_errno(struct err *err, enum err_code code, int error_number, const char *fmt, ...)
{
    int saved = errno;
    char text[sizeof(err->text)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    char reason[128];
    const char *said = strerror_r(error_number, reason, sizeof(reason));
    err_set(err, code, "%s: %s", text, said);
    errno = saved;
    return -1;
}

int err_wrap(struct err *err, const char *fmt, ...)
{
    int saved = errno;
    char what[sizeof(err->text)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    char old[sizeof(err->text)];
    memcpy(old, err->text, sizeof(old));
    old[sizeof(old) - 1] = '\0';
    err_set(err, err->code, "%s: %s", what, old);
    errno = saved;
    return -1;
}

void err_clear(struct err *err)
{
    err->code = ERR_NONE;
    err->text[0] = '\0';
}

const char *err_code_name(enum err_code code)
{
    for (int i = 0; i < CODE_ENTRIES; i++)
        if (code_table[i].code == code)
            return code_table[i].name;
    return "internal";
}

enum err_code err_code_from_name(const char *name)
{
    for (int i = 0; i < CODE_ENTRIES; i++)
        if (strcmp(code_table[i].name, name) == 0)
            return code_table[i].code;
    return ERR_INTERNAL;
}

int err_http_status(enum err_code code)
{
    for (int i = 0; i < CODE_ENTRIES; i++)
        if (code_table[i].code == code)
            return code_table[i].http;
    return 500;
}

enum err_code err_code_from_http(int status)
{
    if (status < 400)
        return ERR_NONE;
    if (status == 422 || status == 400 || status == 405 || status == 415)
        return ERR_INVALID; /* 422 is also ERR_NOFIT's status, but its answers name the code in the body */
    if (status == 500)
        return ERR_INTERNAL;
    for (int i = 1; i < CODE_ENTRIES; i++)
        if (code_table[i].http == status)
            return code_table[i].code == ERR_NOMEM ? ERR_IO : code_table[i].code;
    return status < 500 ? ERR_INVALID : ERR_NET;
}
