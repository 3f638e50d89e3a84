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
    uint8_t *data; /* [size]; after any append a NUL follows the bytes (not counted) */
    size_t size;
    size_t capacity;
    size_t limit; /* in bytes; growing beyond it is ERR_TOO_BIG */
};

void buf_init(struct buf *buf, size_t limit);
void buf_fini(struct buf *buf);  /* frees the memory; leaves an empty buffer of the same limit */
void buf_clear(struct buf *buf); /* sets the size to 0 and keeps the memory */

/* Makes room for 'more' bytes behind size. ERR_TOO_BIG, ERR_NOMEM. */
int buf_reserve(struct buf *buf, size_t more, struct err *err);
int buf_append(struct buf *buf, const void *data, size_t size, struct err *err);
int buf_text(struct buf *buf, const char *text, struct err *err); /* appends the text without its NUL */
int buf_printf(struct buf *buf, struct err *err, const char *fmt, ...) __attribute__((format(printf, 3, 4)));

/* Removes the first 'size' bytes (at most all). */
void buf_consume(struct buf *buf, size_t size);

/* Returns the bytes as a NUL-terminated text, borrowed; "" when empty. */
const char *buf_str(const struct buf *buf);

#endif
