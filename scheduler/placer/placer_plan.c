/* Checks a plan before its ranks get it. */
#include "program/check/check.h"
#include "program/codec.h"
#include "scheduler/placer/placer.h"

static int placer_plan_encode(const json_t *document, struct buf *out, struct err *err)
{
    buf_clear(out);
    return frame_encode(document, out, err);
}

/* Finds the rank with the longest programs. Its slice is the largest, since the rest is the same in all
 * slices. */
static int largest_rank(const json_t *plan, size_t *largest, struct err *err)
{
    const json_t *ranks = json_object_get(plan, "ranks");
    size_t i, most = 0;
    json_t *rank;
    struct buf bytes;
    int rc = 0;
    buf_init(&bytes, SIZE_MAX / 2);
    *largest = 0;
    json_array_foreach ((json_t *)(uintptr_t)ranks, i, rank) {
        if ((rc = placer_plan_encode(json_object_get(rank, "programs"), &bytes, err)) < 0)
            break;
        if (bytes.size > most) {
            most = bytes.size;
            *largest = i;
        }
    }
    buf_fini(&bytes);
    return rc;
}

/* Checks that an agent would accept the slice: encodes it and decodes it with the agent's limits. */
static int slice_fits(const json_t *slice, size_t rank, const struct frame_limits *most, struct err *err)
{
    struct buf bytes;
    buf_init(&bytes, SIZE_MAX / 2);
    int rc = placer_plan_encode(slice, &bytes, err);
    json_t *decoded = rc == 0 ? frame_decode(bytes.data, bytes.size, most, err) : NULL;
    if (rc == 0 && !decoded && err->code != ERR_NOMEM)
        err_set(err, ERR_TOO_BIG,
                "the plan of rank %zu takes %zu bytes, and a message may have %zu bytes and %u values of "
                "it: larger micro-batches (placement.micro_batch_rows) or smaller batches make it shorter",
                rank, bytes.size, most->bytes_max, most->count_max);
    buf_fini(&bytes);
    json_decref(decoded);
    return decoded ? 0 : -1;
}

int placer_plan_check(const struct plan *plan, const json_t *json, const struct frame_limits *most,
                      struct err *err)
{
    size_t rank;
    if (plan_check(plan, err) < 0) {
        if (err->code != ERR_NOMEM)
            err->code = ERR_INTERNAL;
        return err_wrap(err, "the plan cannot be executed");
    }
    if (largest_rank(json, &rank, err) < 0)
        return -1;
    json_t *slices = plan_slices(json, err);
    int rc = slices ? slice_fits(json_array_get(slices, rank), rank, most, err) : -1;
    json_decref(slices);
    return rc;
}
