/* Feeds the decoder of msgpack frames. An accepted document must survive being encoded and decoded again. */
#include "fuzz/fuzz.h"

#include "common/frame.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    json_t *document = NULL;
    size_t used = 0, at = 0;
    const struct frame_limits limits = {.bytes_max = 16384, .depth_max = 32, .count_max = 4096};
    while (frame_take(data + at, size - at, &limits, &document, &used, &err) == 1) {
        if (used == 0 || used > size - at)
            __builtin_trap();
        at += used;
        json_decref(document);
    }
    document = frame_decode(data, size, &limits, &err);
    if (document) {
        struct buf bytes = {.limit = 1 << 20};
        json_t *again = NULL;
        if (frame_encode(document, &bytes, &err) < 0 ||
            !(again = frame_decode(bytes.data, bytes.size, &frame_limits_default, &err)) ||
            !json_equal(document, again))
            __builtin_trap();
        json_decref(again);
        buf_fini(&bytes);
    }
    json_decref(document);
    return 0;
}
