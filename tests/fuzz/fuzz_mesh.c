/* Feeds what another worker may send (hello, answer, frame headers). Accepted values must be within their
 * bounds. */
#include "fuzz/fuzz.h"

#include <string.h>

#include "mesh/wire.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct wire_frame frame;
    struct wire_hello hello;
    enum err_code code;
    uint64_t epoch;
    uint8_t in[WIRE_HEADER_BYTES] = {0}, out[WIRE_HEADER_BYTES];
    memcpy(in, data, size < sizeof(in) ? size : sizeof(in));
    memcpy(&epoch, in + 8, sizeof(epoch));
    if (wire_decode(in, epoch, &frame, &err) == 0) {
        wire_encode(&frame, out);
        if (frame.payload_bytes > WIRE_PAYLOAD_MAX || wire_decode(out, epoch, &frame, &err) < 0)
            __builtin_trap();
        if (frame.kind == WIRE_DATA &&
            (frame.offset > frame.message_bytes || frame.payload_bytes > frame.message_bytes - frame.offset))
            __builtin_trap();
    }
    if (wire_hello_decode(in, &hello, &err) == 0) {
        wire_hello_encode(&hello, out);
        if (wire_hello_decode(out, &hello, &err) < 0)
            __builtin_trap();
    }
    wire_answer_decode(in, &code, &epoch, &err);
    return 0;
}
