/* The short form of a trace: five numbers an event, each in as few bytes as it needs (seven bits a byte, low
 * ones first), and the bytes in hexadecimal. */
#include "program/trace.h"

#include <stdlib.h>
#include <string.h>

#include "common/digest.h"

enum { NUMBERS = 5, NUMBER_BYTES = 10 };

static size_t trace_pack_number_put(uint8_t *out, int64_t value)
{
    uint64_t left =
        (uint64_t)value << 1 ^
        (uint64_t)(value >> 63); /* zigzag code: small positive and negative values give small codes */
    size_t size = 0;
    do {
        out[size] = (uint8_t)(left & 0x7f) | (left > 0x7f ? 0x80 : 0);
        left >>= 7;
    } while (out[size++] & 0x80);
    return size;
}

static size_t trace_pack_number_get(const uint8_t *in, size_t left, int64_t *value)
{
    uint64_t read = 0;
    for (size_t i = 0; i < left && i < NUMBER_BYTES; i++) {
        read |= (uint64_t)(in[i] & 0x7f) << (7 * i);
        if (!(in[i] & 0x80)) {
            *value = (int64_t)(read >> 1 ^ (~(read & 1) + 1));
            return i + 1;
        }
    }
    return 0;
}

char *trace_pack(const struct trace *trace, struct err *err)
{
    const size_t most = (size_t)trace->count * NUMBERS * NUMBER_BYTES;
    uint8_t *bytes = malloc(most + 1);
    char *text = NULL;
    size_t size = 0;
    struct trace_event before = {0};
    for (uint32_t i = 0; bytes && i < trace->count; i++) {
        const struct trace_event *e = &trace->events[i];
        size += trace_pack_number_put(bytes + size, (int64_t)e->rank - (int64_t)before.rank);
        size += trace_pack_number_put(bytes + size, (int64_t)e->instr - (int64_t)before.instr);
        size += trace_pack_number_put(bytes + size, e->begin_ns - before.begin_ns);
        size += trace_pack_number_put(bytes + size, e->end_ns - e->begin_ns);
        size += trace_pack_number_put(bytes + size, e->begin_ns - e->ready_ns);
        before = *e;
    }
    text = bytes ? malloc(2 * size + 1) : NULL;
    if (text)
        digest_hex(bytes, size, text);
    else
        err_set(err, ERR_NOMEM, "out of memory for a trace of %u events", trace->count);
    free(bytes);
    return text;
}

int trace_unpack(const char *text, struct trace *trace, struct err *err)
{
    const size_t size = strlen(text) / 2;
    uint8_t *bytes = malloc(size + 1);
    struct trace_event event = {.program = PROGRAM_TRAIN};
    int result = !bytes ? err_set(err, ERR_NOMEM, "out of memory for a trace")
                 : digest_unhex(text, bytes, size) < 0
                     ? err_set(err, ERR_CORRUPT, "a trace is no hexadecimal text")
                     : 0;
    for (size_t at = 0; result == 0 && at < size;) {
        int64_t number[NUMBERS] = {0};
        for (int k = 0; k < NUMBERS && result == 0; k++) {
            size_t taken = trace_pack_number_get(bytes + at, size - at, &number[k]);
            at += taken;
            if (!taken)
                result = err_set(err, ERR_CORRUPT, "a trace is cut off");
        }
        event.rank += (uint32_t)number[0];
        event.instr += (uint32_t)number[1];
        event.begin_ns = (int64_t)((uint64_t)event.begin_ns + (uint64_t)number[2]);
        event.end_ns = (int64_t)((uint64_t)event.begin_ns + (uint64_t)number[3]);
        event.ready_ns = (int64_t)((uint64_t)event.begin_ns - (uint64_t)number[4]);
        if (result == 0)
            trace_add(trace, &event);
    }
    free(bytes);
    return result;
}
