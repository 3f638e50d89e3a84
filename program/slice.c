/* Cuts the document of a plan into one slice for each rank. */
#include "program/codec.h"

static json_t *rank_without_programs(const json_t *rank)
{
    json_t *copy = json_copy((json_t *)(uintptr_t)rank);
    if (copy && json_object_set_new(copy, "programs", json_object()) == 0)
        return copy;
    json_decref(copy);
    return NULL;
}

static json_t *slice_make(const json_t *plan, const json_t *ranks, const json_t *bare, size_t rank)
{
    json_t *slice = json_copy((json_t *)(uintptr_t)plan), *mixed = json_copy((json_t *)(uintptr_t)bare);
    if (mixed && json_array_set(mixed, rank, json_array_get(ranks, rank)) < 0) {
        json_decref(mixed);
        mixed = NULL;
    }
    if (slice && mixed && json_object_set(slice, "ranks", mixed) == 0 &&
        json_object_set_new(slice, "slice", json_integer((json_int_t)rank)) == 0) {
        json_decref(mixed);
        return slice;
    }
    json_decref(slice);
    json_decref(mixed);
    return NULL;
}

json_t *plan_slices(const json_t *plan, struct err *err)
{
    const json_t *ranks = json_object_get(plan, "ranks");
    if (json_object_get(plan, "slice")) {
        err_set(err, ERR_INVALID, "plan.slice: this is a slice already, and the whole plan is needed");
        return NULL;
    }
    json_t *bare = json_array(), *slices = json_array();
    int bad = !bare || !slices;
    for (size_t r = 0; r < json_array_size(ranks) && !bad; r++) {
        const json_t *rank = json_array_get(ranks, r);
        if (!json_is_string(json_object_get(rank, "programs_digest"))) {
            err_set(err, ERR_INVALID, "plan: rank %zu has no digest of its programs, so there are no slices",
                    r);
            goto fail;
        }
        bad = json_array_append_new(bare, rank_without_programs(rank));
    }
    for (size_t r = 0; r < json_array_size(ranks) && !bad; r++)
        bad = json_array_append_new(slices, slice_make(plan, ranks, bare, r));
    if (!bad) {
        json_decref(bare);
        return slices;
    }
    err_set(err, ERR_NOMEM, "plan: no memory for slices");
fail:
    json_decref(bare);
    json_decref(slices);
    return NULL;
}
