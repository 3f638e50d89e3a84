/* Frames: documents (json_t) as bounded msgpack, either alone (Redis fields, files) or behind a 4-byte
 * big-endian length (sockets).
 *
 * Map keys must be text. Binary values, extensions, integers above 2^63-1, NaN, infinity, invalid UTF-8,
 * duplicate keys and bytes behind the document are refused (ERR_CORRUPT). Limits are checked before memory is
 * allocated. Pure except for frame_send and frame_recv. Thread: the document's owner.
 */
#ifndef MOTLEY_COMMON_FRAME_H
#define MOTLEY_COMMON_FRAME_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

struct frame_limits {
    size_t bytes_max;   /* size of the encoded document */
    uint32_t depth_max; /* levels of nesting; at most 64 */
    uint32_t count_max; /* number of values, including containers and keys */
};

/* 16 MiB, 32 levels, 1 Mi values: for messages between our own processes. */
extern const struct frame_limits frame_limits_default;

/* Appends 'value' to 'out'. ERR_TOO_BIG above the buffer's limit or 64 levels. */
int frame_encode(const json_t *value, struct buf *out, struct err *err);

/* Decodes a document. Returns new, or NULL: ERR_CORRUPT, ERR_TOO_BIG, ERR_NOMEM. */
json_t *frame_decode(const void *data, size_t size, const struct frame_limits *limits, struct err *err);

/* Appends a frame: the length and the document. */
int frame_put(const json_t *value, struct buf *out, struct err *err);

/* Takes one frame from the front of a byte stream. Returns 1 with *out new and *used the bytes of the frame;
 * 0 when more bytes are needed (nothing changed); -1 when the stream is invalid from here on (ERR_TOO_BIG,
 * ERR_CORRUPT). */
int frame_take(const void *data, size_t size, const struct frame_limits *limits, json_t **out, size_t *used,
               struct err *err);

/* Sends or receives a frame on a socket (in blocking mode or not), waiting until 'deadline_ns'
 * (clock_mono_ns). ERR_TIMEOUT; ERR_NET when the peer closed: at the start of a frame frame_recv then says
 * "the peer closed the connection". */
int frame_send(int fd, const json_t *value, uint64_t deadline_ns, struct err *err);
int frame_recv(int fd, const struct frame_limits *limits, uint64_t deadline_ns, json_t **out,
               struct err *err);

#endif
