/* Areas of blocks that the caller supplies: their sizes and cuts, their initial values, and binding them to
 * blocks. */
#include "engine/stage/load.h"
#include "engine/stage/outside.h"

#include <math.h>
#include <stdlib.h>

/* The tensors of a block under these options. They are in *all, which the caller frees. */
static int tensors_of(const struct stage_options *options, uint32_t block, struct owned_layout **all,
                      const struct layer_tensors **tensors, struct err *err)
{
    *all = NULL;
    if (block < options->block_begin || block >= options->block_end)
        return err_set(err, ERR_INVALID, "block %u is not of blocks %u..%u", block, options->block_begin,
                       options->block_end);
    if (owned_layout_create(options, all, err) != 0)
        return -1;
    *tensors = footprint_tensors(&(*all)->layout, block);
    return 0;
}

int stage_area_bytes(const struct stage_options *options, uint32_t block, enum block_area area,
                     uint64_t *bytes, struct err *err)
{
    struct owned_layout *all;
    const struct layer_tensors *tensors;
    if (tensors_of(options, block, &all, &tensors, err) != 0)
        return -1;
    *bytes = flat_bytes(tensors, area);
    free(all);
    return 0;
}

static int shares_check(uint32_t count, const double *shares, struct err *err)
{
    double sum = 0;
    for (uint32_t i = 0; i < count && shares; i++) {
        if (!(shares[i] >= 0) || !(shares[i] <= 1))
            return err_set(err, ERR_INVALID, "share %u of %u is %g", i, count, shares[i]);
        sum += shares[i];
    }
    if (count > 0 && (!shares || fabs(sum - 1) < 1e-6))
        return 0;
    return err_set(err, ERR_INVALID, "%u shares sum to %g, not 1", count, sum);
}

int stage_area_cuts(const struct stage_options *options, uint32_t block, enum block_area area, uint32_t count,
                    const double *shares, uint64_t *cuts, struct err *err)
{
    struct owned_layout *all;
    const struct layer_tensors *tensors;
    if (shares_check(count, shares, err) != 0 || tensors_of(options, block, &all, &tensors, err) != 0)
        return -1;
    cuts[0] = 0;
    for (uint32_t i = 0; i < count; i++)
        cuts[i + 1] = flat_share_cut(tensors, area, flat_share_of(count, shares, i).end);
    free(all);
    return 0;
}

static int outside_view_check(const struct device *device, uint32_t block, const char *what, uint64_t bytes,
                              const struct area_view *view, struct err *err)
{
    if (view->buffer && buffer_device(view->buffer) == device && view->at % 64 == 0 &&
        view->at <= buffer_bytes(view->buffer) && bytes <= buffer_bytes(view->buffer) - view->at)
        return 0;
    if (bytes == 0)
        return 0;
    return err_set(
        err, ERR_INVALID,
        "block %u: %s take %llu bytes on device %s, from a multiple of 64 on; given are %llu at %llu", block,
        what, (unsigned long long)bytes, device_name(device),
        !view->buffer || buffer_device(view->buffer) != device
            ? 0ull
            : (unsigned long long)buffer_bytes(view->buffer),
        (unsigned long long)view->at);
}

static int range_load(struct device *device, const struct weight_source *source,
                      const struct stage_options *options, const struct layer_tensors *tensors,
                      const struct area_range *range, struct err *err)
{
    struct area_loader loader;
    uint64_t bytes = flat_bytes(tensors, range->area);
    if (range->begin > range->end || range->end > bytes)
        return err_set(err, ERR_INVALID, "block %u: bytes %llu..%llu of an area of %llu", range->block,
                       (unsigned long long)range->begin, (unsigned long long)range->end,
                       (unsigned long long)bytes);
    if (outside_view_check(device, range->block, "these", range->end - range->begin, &range->view, err) !=
            0 ||
        loader_init(&loader, device, options, source, err) != 0)
        return -1;
    int status = area_load(&loader, tensors, range);
    loader_fini(&loader);
    return status;
}

int stage_area_load(struct device *device, const struct weight_source *source,
                    const struct stage_options *options, const struct area_range *range, struct err *err)
{
    struct owned_layout *all;
    const struct layer_tensors *tensors;
    if (tensors_of(options, range->block, &all, &tensors, err) != 0)
        return -1;
    int status = range_load(device, source, &all->options, tensors, range, err);
    free(all);
    return status;
}

/* --- binding --- */

static int bind_check(const struct stage *stage, uint32_t block, const struct block_areas *areas,
                      struct err *err)
{
    const struct stage_options *o = &stage->options;
    if (block < o->block_begin || block >= o->block_end)
        return err_set(err, ERR_INVALID, "stage of blocks %u..%u: block %u is not its own", o->block_begin,
                       o->block_end, block);
    const struct block_state *state = stage_block(stage, block);
    bool frozen = areas->frozen.buffer != NULL, trained = areas->trained.buffer || areas->gradients.buffer;
    if ((frozen && !state->frozen_outside) || (trained && !state->trained_outside))
        return err_set(err, ERR_INVALID, "stage of blocks %u..%u keeps the %s values of block %u itself",
                       o->block_begin, o->block_end, frozen && !state->frozen_outside ? "frozen" : "trained",
                       block);
    if ((frozen && outside_view_check(stage->device, block, "its frozen values", state->tensors->frozen_bytes,
                                      &areas->frozen, err) != 0) ||
        (areas->trained.buffer &&
         outside_view_check(stage->device, block, "its trained values", state->tensors->trained_bytes,
                            &areas->trained, err) != 0) ||
        (areas->gradients.buffer &&
         outside_view_check(stage->device, block, "its gradients", state->tensors->trained_bytes,
                            &areas->gradients, err) != 0))
        return -1;
    return 0;
}

int stage_block_bind(struct stage *stage, uint32_t block, const struct block_areas *areas, struct err *err)
{
    if (bind_check(stage, block, areas, err) != 0)
        return -1;
    struct block_state *state = stage_block(stage, block);
    if (areas->frozen.buffer) {
        state->frozen = areas->frozen.buffer;
        state->frozen_at = areas->frozen.at;
    }
    if (areas->trained.buffer) {
        state->trained = areas->trained.buffer;
        state->trained_at = areas->trained.at;
    }
    if (areas->gradients.buffer) {
        state->gradients = areas->gradients.buffer;
        state->gradients_at = areas->gradients.at;
    }
    return 0;
}

void stage_block_release(struct stage *stage, uint32_t block)
{
    if (block < stage->options.block_begin || block >= stage->options.block_end)
        return;
    struct block_state *state = stage_block(stage, block);
    if (state->frozen_outside)
        state->frozen = NULL;
    if (state->trained_outside)
        state->trained = state->gradients = NULL;
}

static int block_bound(const struct stage *stage, uint32_t block, bool gradients, struct err *err)
{
    const struct block_state *state = stage_block(stage, block);
    const struct layer_tensors *t = state->tensors;
    const char *missing = t->frozen_bytes > 0 && !state->frozen                    ? "frozen values"
                          : t->trained_bytes > 0 && !state->trained                ? "trained values"
                          : t->trained_bytes > 0 && gradients && !state->gradients ? "gradients"
                                                                                   : NULL;
    if (!missing)
        return 0;
    return err_set(err, ERR_INVALID,
                   "stage of blocks %u..%u: the %s of block %u are to be supplied and are not bound",
                   stage->options.block_begin, stage->options.block_end, missing, block);
}

int blocks_bound(const struct stage *stage, uint32_t begin, uint32_t end, bool gradients, struct err *err)
{
    const struct stage_options *o = &stage->options;
    if (o->outside.block_begin == o->outside.block_end)
        return 0;
    bool head = stage_has_head(stage, end);
    if (head && stage->layout.shares_table && begin > 0 && block_bound(stage, 0, gradients, err) != 0)
        return -1;
    for (uint32_t b = begin; b < end; b++)
        if (block_bound(stage, b, gradients, err) != 0)
            return -1;
    return 0;
}
