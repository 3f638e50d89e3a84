/* A growable, bounded byte buffer.
 *
 * Lifetime: buf_init, use, buf_fini. 'data' is valid until the next call that may grow. A zeroed struct with
 * a limit set is a valid empty buffer: (struct buf){.limit = 1 << 20}. One thread owns it.
 */
#ifndef MOTLEY_COMMON_BUF_H
#define MOTLEY_COMMON_BUF_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct buf {
    uint8_t *data; /* size bytes; a NUL stands behind them (not counted) after any append */
    size_t size;
    size_t capacity;
    size_t limit; /* bytes; growing beyond is ERR_TOO_BIG */
};

void buf_init(struct buf *buf, size_t limit);
void buf_fini(struct buf *buf);  /* frees; leaves an empty buffer of the same limit */
void buf_clear(struct buf *buf); /* size 0, memory kept */

/* Room for 'more' bytes behind size. ERR_TOO_BIG, ERR_NOMEM. */
int buf_reserve(struct buf *buf, size_t more, struct err *err);
int buf_append(struct buf *buf, const void *data, size_t size, struct err *err);
int buf_text(struct buf *buf, const char *text, struct err *err); /* appends without the NUL */
int buf_printf(struct buf *buf, struct err *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Drop the first 'size' bytes (at most all). */
void buf_consume(struct buf *buf, size_t size);

/* The bytes as a NUL-terminated text, borrowed; "" when empty. */
const char *buf_str(const struct buf *buf);

#endif
