#include "mesh/wire.h"

#include <string.h>

static const uint8_t magic[8] = {'M', 'T', 'L', 'Y', 'M', 'E', 'S', 'H'};

static void wire_put(uint8_t *out, uint64_t value, unsigned bytes)
{
    for (unsigned i = 0; i < bytes; i++)
        out[i] = (uint8_t)(value >> (8 * i));
}

static uint64_t get(const uint8_t *in, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = bytes; i-- > 0;)
        value = value << 8 | in[i];
    return value;
}

void wire_encode(const struct wire_frame *frame, uint8_t out[WIRE_HEADER_BYTES])
{
    memset(out, 0, WIRE_HEADER_BYTES);
    out[0] = WIRE_VERSION;
    out[1] = frame->kind;
    wire_put(out + 2, frame->queue, 2);
    wire_put(out + 4, frame->payload_bytes, 4);
    wire_put(out + 8, frame->epoch, 8);
    wire_put(out + 16, frame->meta.tag, 8);
    wire_put(out + 24, frame->sequence, 8);
    wire_put(out + 32, frame->message_bytes, 8);
    wire_put(out + 40, frame->offset, 8);
    out[48] = frame->meta.dtype;
    out[49] = frame->meta.rank;
    out[50] = frame->flags;
    for (unsigned i = 0; i < MESH_DIMS_MAX; i++)
        wire_put(out + 52 + 4 * i, frame->meta.shape[i], 4);
}

int wire_decode(const uint8_t in[WIRE_HEADER_BYTES], uint64_t epoch, struct wire_frame *frame,
                struct err *err)
{
    memset(frame, 0, sizeof(*frame));
    if (in[0] != WIRE_VERSION)
        return err_set(err, ERR_PEER, "a frame of version %u, not %d", in[0], WIRE_VERSION);
    frame->kind = in[1];
    frame->queue = (uint16_t)get(in + 2, 2);
    frame->payload_bytes = (uint32_t)get(in + 4, 4);
    frame->epoch = get(in + 8, 8);
    frame->meta.tag = get(in + 16, 8);
    frame->sequence = get(in + 24, 8);
    frame->message_bytes = get(in + 32, 8);
    frame->offset = get(in + 40, 8);
    frame->meta.dtype = in[48];
    frame->meta.rank = in[49];
    frame->flags = in[50];
    for (unsigned i = 0; i < MESH_DIMS_MAX; i++)
        frame->meta.shape[i] = (uint32_t)get(in + 52 + 4 * i, 4);
    if (frame->epoch != epoch)
        return err_set(err, ERR_STALE, "a frame of run epoch %llu, ours is %llu",
                       (unsigned long long)frame->epoch, (unsigned long long)epoch);
    if (frame->kind < WIRE_DATA || frame->kind >= WIRE_KIND_COUNT || frame->queue >= MESH_QUEUES ||
        frame->meta.rank > MESH_DIMS_MAX)
        return err_set(err, ERR_PEER, "a frame of unknown kind %u, queue %u or %u dimensions", frame->kind,
                       frame->queue, frame->meta.rank);
    if (frame->payload_bytes > WIRE_PAYLOAD_MAX)
        return err_set(err, ERR_PEER, "a frame of %u bytes is beyond the bound of %d", frame->payload_bytes,
                       WIRE_PAYLOAD_MAX);
    if (frame->payload_bytes > 0 && frame->kind != WIRE_DATA && frame->kind != WIRE_PROBE)
        return err_set(err, ERR_PEER, "a frame of kind %u with a payload", frame->kind);
    if (frame->kind == WIRE_DATA && (frame->offset > frame->message_bytes ||
                                     frame->payload_bytes > frame->message_bytes - frame->offset ||
                                     (frame->payload_bytes == 0 && frame->message_bytes > 0)))
        return err_set(err, ERR_PEER, "a frame of bytes %llu + %u outside its message of %llu",
                       (unsigned long long)frame->offset, frame->payload_bytes,
                       (unsigned long long)frame->message_bytes);
    return 0;
}

void wire_hello_encode(const struct wire_hello *hello, uint8_t out[WIRE_HELLO_BYTES])
{
    memset(out, 0, WIRE_HELLO_BYTES);
    memcpy(out, magic, sizeof(magic));
    wire_put(out + 8, WIRE_VERSION, 4);
    wire_put(out + 12, hello->dialler_sends, 4);
    wire_put(out + 16, hello->run, 8);
    wire_put(out + 24, hello->epoch, 8);
    wire_put(out + 32, hello->from, 4);
    wire_put(out + 36, hello->to, 4);
}

int wire_hello_decode(const uint8_t in[WIRE_HELLO_BYTES], struct wire_hello *hello, struct err *err)
{
    if (memcmp(in, magic, sizeof(magic)) != 0)
        return err_set(err, ERR_PEER, "whoever connected does not speak the mesh's protocol");
    if (get(in + 8, 4) != WIRE_VERSION)
        return err_set(err, ERR_PEER, "the peer speaks version %llu of the mesh's protocol, not %d",
                       (unsigned long long)get(in + 8, 4), WIRE_VERSION);
    hello->dialler_sends = in[12] != 0;
    hello->run = get(in + 16, 8);
    hello->epoch = get(in + 24, 8);
    hello->from = (uint32_t)get(in + 32, 4);
    hello->to = (uint32_t)get(in + 36, 4);
    return 0;
}

void wire_answer_encode(enum err_code code, uint64_t epoch, uint8_t out[WIRE_ANSWER_BYTES])
{
    memset(out, 0, WIRE_ANSWER_BYTES);
    memcpy(out, magic, sizeof(magic));
    wire_put(out + 8, WIRE_VERSION, 4);
    wire_put(out + 12, (uint64_t)code, 4);
    wire_put(out + 16, epoch, 8);
}

int wire_answer_decode(const uint8_t in[WIRE_ANSWER_BYTES], enum err_code *code, uint64_t *epoch,
                       struct err *err)
{
    uint64_t number = get(in + 12, 4);
    if (memcmp(in, magic, sizeof(magic)) != 0 || get(in + 8, 4) != WIRE_VERSION || number >= ERR_CODE_COUNT)
        return err_set(err, ERR_PEER, "the peer does not speak version %d of the mesh's protocol",
                       WIRE_VERSION);
    *code = (enum err_code)number;
    *epoch = get(in + 16, 8);
    return 0;
}
