/* Feeds a checkpoint's state.json. An accepted count of updates must lie within its bound. */
#include "fuzz/fuzz.h"

#include "worker/checkpoint/files.h"
#include "worker/session/session.h"

#include <string.h>

/* the input, which stands for every file in the artifact store */
static struct {
    const uint8_t *data;
    size_t size;
} blob;

static int input_get(struct buf *out, struct err *err)
{
    buf_init(out, 1 << 20);
    return buf_append(out, blob.data, blob.size, err);
}

static uint64_t loaded;

#define checkpoint_fetch(session, blobs, name, limit, out, err)                                              \
    ((void)(session), (void)(blobs), (void)(name), input_get(out, err))
#define stages_update_count_set(stages, count) ((void)(stages), loaded = (count))
#include "worker/checkpoint/load.c"

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
