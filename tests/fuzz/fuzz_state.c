/* A checkpoint's state.json: what is accepted lies within its bounds. */
#include "fuzz/fuzz.h"

#include "worker/session/session.h"

#include <string.h>

/* the artifact store is the input */
static struct {
    const uint8_t *data;
    size_t size;
} blob;

static int input_get(struct buf *out, struct err *err)
{
    return buf_append(out, blob.data, blob.size, err);
}

static uint64_t loaded;

#define blobs_get(blobs, sha256, out, err) ((void)(blobs), input_get(out, err))
#define stage_update_count_set(stage, count) ((void)(stage), loaded = (count))
#include "worker/checkpoint/state.c"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct err err;
    struct assignment assignment = {.start_step = size % 4};
    struct session session = {.assignment = &assignment};
    json_t *blobs =
        json_pack("{s:s}", "state.json", "0000000000000000000000000000000000000000000000000000000000000000");
    blob.data = data;
    blob.size = size;
    if (load_position(&session, blobs, &err) == 0 && loaded > (uint64_t)1 << 40)
        __builtin_trap();
    json_decref(blobs);
    return 0;
}
