/* The wire format between two workers: a hello on each new connection, then frames. All integers are
 * little-endian.
 *
 * A frame has 72 bytes of header and payload_bytes of payload, together at most MESH_CHUNK_BYTES. The header
 * is:
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
    WIRE_POSTED, /* 'sequence' receives of the queue are posted; message_bytes is how much was consumed so far
                  */
    WIRE_PING,   /* asks for a PONG with this sequence */
    WIRE_PONG,
    WIRE_PROBE,   /* carries payload to be discarded; with WIRE_LAST it asks for a PONG with this sequence */
    WIRE_BYE,     /* the last frame of the sender apart from BYE_ACK, POSTED and PONG */
    WIRE_BYE_ACK, /* acknowledges that everything before the peer's BYE has arrived */
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

/* Reads a header. ERR_PEER for another version, an unknown kind or queue, or a payload beyond the bound or
 * outside its message; ERR_STALE for another epoch. */
int wire_decode(const uint8_t in[WIRE_HEADER_BYTES], uint64_t epoch, struct wire_frame *frame,
                struct err *err);

/* The first bytes of a connection, written by the side that opened it. */
struct wire_hello {
    uint64_t run, epoch;
    uint32_t from, to;     /* ranks */
    uint8_t dialler_sends; /* 1: tensors travel from the side that opened the connection; 0: to it */
};

void wire_hello_encode(const struct wire_hello *hello, uint8_t out[WIRE_HELLO_BYTES]);
int wire_hello_decode(const uint8_t in[WIRE_HELLO_BYTES], struct wire_hello *hello, struct err *err);

/* The answer to a hello: ERR_NONE or the reason of a refusal, and the answering side's epoch. */
void wire_answer_encode(enum err_code code, uint64_t epoch, uint8_t out[WIRE_ANSWER_BYTES]);
int wire_answer_decode(const uint8_t in[WIRE_ANSWER_BYTES], enum err_code *code, uint64_t *epoch,
                       struct err *err);

#endif
