/* Frames: json_t as bounded msgpack, alone (Redis fields, files) or behind a 4-byte big-endian length
 * (sockets).
 *
 * Maps need text keys; binary, extension and integers over 2^63-1 are refused (ERR_CORRUPT); so are NaN,
 * infinity, invalid UTF-8, duplicate keys and bytes behind the document. Limits are checked before memory is
 * taken. Pure but for frame_send and frame_recv. Thread: the document's owner.
 */
#ifndef MOTLEY_COMMON_FRAME_H
#define MOTLEY_COMMON_FRAME_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct frame_limits {
    size_t bytes_max;   /* of the encoded document */
    uint32_t depth_max; /* of nesting; at most 64 */
    uint32_t count_max; /* of values, containers and keys included */
};

/* 16 MiB, 32 deep, 1 Mi values: for everything between our own processes. */
extern const struct frame_limits frame_limits_default;

/* Append 'value' to 'out'. ERR_TOO_BIG by the buffer's limit or beyond 64 deep. */
int frame_encode(const json_t *value, struct buf *out, struct err *err);

/* Returns new, or NULL: ERR_CORRUPT, ERR_TOO_BIG, ERR_NOMEM. */
json_t *frame_decode(const void *data, size_t size, const struct frame_limits *limits, struct err *err);

/* Append length and document. */
int frame_put(const json_t *value, struct buf *out, struct err *err);

/* Take one frame from the front of a byte stream. Returns 1 with *out new and *used the bytes it took; 0 when
 * more bytes are needed (nothing changed); -1 when the stream cannot be trusted any more (ERR_TOO_BIG,
 * ERR_CORRUPT). */
int frame_take(const void *data, size_t size, const struct frame_limits *limits, json_t **out, size_t *used,
               struct err *err);

/* Blocking, on a socket (blocking or not), until 'deadline_ns' (clock_mono_ns). ERR_TIMEOUT; ERR_NET when the
 * peer closed: frame_recv at a frame's start then says "the peer closed the connection". */
int frame_send(int fd, const json_t *value, uint64_t deadline_ns, struct err *err);
int frame_recv(int fd, const struct frame_limits *limits, uint64_t deadline_ns, json_t **out,
               struct err *err);

#endif
