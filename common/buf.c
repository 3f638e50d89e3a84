#include "common/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void buf_init(struct buf *buf, size_t limit)
{
    *buf = (struct buf){.limit = limit};
}

void buf_fini(struct buf *buf)
{
    free(buf->data);
    buf_init(buf, buf->limit);
}

void buf_clear(struct buf *buf)
{
    buf->size = 0;
    if (buf->data)
        buf->data[0] = '\0';
}

int buf_reserve(struct buf *buf, size_t more, struct err *err)
{
    if (more > buf->limit || buf->size > buf->limit - more) {
        return err_set(err, ERR_TOO_BIG, "%zu more bytes behind %zu are over the limit of %zu", more,
                       buf->size, buf->limit);
    }
    size_t need = buf->size + more + 1; /* plus the NUL; no overflow, because the limit is smaller */
    if (need == 0)
        return err_set(err, ERR_TOO_BIG, "a buffer of %zu bytes", buf->size + more);
    if (need <= buf->capacity)
        return 0;
    size_t capacity = buf->capacity < 64 ? 64 : buf->capacity;
    while (capacity < need)
        capacity = capacity > SIZE_MAX / 2 ? need : capacity * 2;
    uint8_t *data = realloc(buf->data, capacity);
    if (!data)
        return err_set(err, ERR_NOMEM, "no memory for a buffer of %zu bytes", capacity);
    buf->data = data;
    buf->capacity = capacity;
    return 0;
}

int buf_append(struct buf *buf, const void *data, size_t size, struct err *err)
{
    if (buf_reserve(buf, size, err) < 0)
        return -1;
    if (size > 0)
        memcpy(buf->data + buf->size, data, size);
    buf->size += size;
    buf->data[buf->size] = '\0';
    return 0;
}

int buf_text(struct buf *buf, const char *text, struct err *err)
{
    return buf_append(buf, text, strlen(text), err);
}

int buf_printf(struct buf *buf, struct err *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    int length = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    int result = -1;
    if (length < 0) {
        err_set(err, ERR_INTERNAL, "a format that cannot be printed");
    } else if (buf_reserve(buf, (size_t)length, err) == 0) {
        vsnprintf((char *)buf->data + buf->size, (size_t)length + 1, fmt, again);
        buf->size += (size_t)length;
        result = 0;
    }
    va_end(again);
    return result;
}

void buf_consume(struct buf *buf, size_t size)
{
    if (size > buf->size)
        size = buf->size;
    if (size == 0)
        return;
    memmove(buf->data, buf->data + size, buf->size - size);
    buf->size -= size;
    buf->data[buf->size] = '\0';
}

const char *buf_str(const struct buf *buf)
{
    return !buf->data ? "" : (const char *)buf->data;
}
