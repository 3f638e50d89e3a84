/* What travels between two workers: a hello on each new connection, then frames. All integers little-endian.
 *
 * Frame: 72 bytes of header, then payload_bytes of payload, together at most MESH_CHUNK_BYTES.
 *   0 version  1 kind  2 queue:2  4 payload_bytes:4  8 epoch:8  16 tag:8  24 sequence:8  32 message_bytes:8
 *   40 offset:8  48 dtype  49 rank  50 flags  51 zero  52 shape:4x4  68 zero:4
 */
#ifndef MOTLEY_MESH_WIRE_H
#define MOTLEY_MESH_WIRE_H

#include <stdint.h>

#include "common/err.h"
#include "mesh/mesh.h"

enum {
    WIRE_VERSION = 1,
    WIRE_HEADER_BYTES = 72,
    WIRE_PAYLOAD_MAX = MESH_CHUNK_BYTES - WIRE_HEADER_BYTES,
    WIRE_HELLO_BYTES = 48,
    WIRE_ANSWER_BYTES = 32
};

enum wire_kind {
    WIRE_DATA = 1, /* a chunk of message 'sequence' of its queue */
    WIRE_POSTED,   /* receives 0..sequence of the queue are posted; message_bytes consumed so far */
    WIRE_PING,     /* answer with PONG of this sequence */
    WIRE_PONG,
    WIRE_PROBE,   /* payload to be thrown away; with WIRE_LAST answer with PONG of this sequence */
    WIRE_BYE,     /* nothing but BYE_ACK comes after this */
    WIRE_BYE_ACK, /* everything before your BYE has arrived */
    WIRE_KIND_COUNT
};

enum { WIRE_LAST = 1 };

struct wire_frame {
    uint8_t kind, flags;
    uint16_t queue;
    uint32_t payload_bytes;
    uint64_t epoch, sequence, message_bytes, offset;
    struct mesh_meta meta;
};

void wire_encode(const struct wire_frame *frame, uint8_t out[WIRE_HEADER_BYTES]);

/* ERR_PEER for another version, an unknown kind or queue, a payload beyond the bound or outside its message;
 * ERR_STALE for another epoch. */
int wire_decode(const uint8_t in[WIRE_HEADER_BYTES], uint64_t epoch, struct wire_frame *frame,
                struct err *err);

/* First bytes of a connection, from the one that dialled. */
struct wire_hello {
    uint64_t run, epoch;
    uint32_t from, to;     /* ranks */
    uint8_t dialler_sends; /* 1: tensors travel from the dialler; 0: to it */
};

void wire_hello_encode(const struct wire_hello *hello, uint8_t out[WIRE_HELLO_BYTES]);
int wire_hello_decode(const uint8_t in[WIRE_HELLO_BYTES], struct wire_hello *hello, struct err *err);

/* The answer: ERR_NONE or why not, and the answerer's epoch. */
void wire_answer_encode(enum err_code code, uint64_t epoch, uint8_t out[WIRE_ANSWER_BYTES]);
int wire_answer_decode(const uint8_t in[WIRE_ANSWER_BYTES], enum err_code *code, uint64_t *epoch,
                       struct err *err);

#endif
