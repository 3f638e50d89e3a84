/* Creates and destroys stages: allocates their buffers and loads initial values. */
#include "engine/stage/stage_state.h"

#include <stdlib.h>
#include <string.h>

#include "engine/stage/load.h"
#include "engine/stage/shard_private.h"
#include "model/shape/tensors.h"

static bool outside(const struct stage_options *o, uint32_t block)
{
    return block >= o->outside.block_begin && block < o->outside.block_end;
}

/* Allocate an area of a block, zeroed unless it holds weights; nothing if it has no bytes. */
static int area_allocate(struct stage *stage, uint64_t bytes, enum mem_purpose purpose, const char *what,
                         struct buffer **out, struct err *err)
{
    if (bytes == 0)
        return 0;
    if (buffer_create(stage->device, bytes, purpose, what, out, err) != 0)
        return -1;
    return purpose == MEM_WEIGHTS ? 0 : buffer_zero(*out, 0, bytes, err);
}

/* Allocate the trained state of the blocks that the stage keeps, as a shard of whole blocks. */
static int state_allocate(struct stage *stage, struct err *err)
{
    const struct stage_options *o = &stage->options;
    struct shard_range *ranges = calloc(o->block_end - o->block_begin, sizeof(*ranges));
    uint32_t count = 0;
    if (!ranges)
        return err_set(err, ERR_NOMEM, "out of memory for %u blocks", o->block_end - o->block_begin);
    for (uint32_t b = o->block_begin; b < o->block_end; b++)
        if (!stage_block(stage, b)->trained_outside)
            ranges[count++] =
                (struct shard_range){.block = b, .end = stage_block(stage, b)->tensors->trained_bytes};
    int status = shard_make(&(struct shard_plan){.device = stage->device,
                                                 .options = o,
                                                 .layout = &stage->layout,
                                                 .range_count = count,
                                                 .ranges = ranges},
                            &stage->state, err);
    for (uint32_t i = 0; i < count && status == 0; i++) {
        struct block_state *state = stage_block(stage, ranges[i].block);
        state->trained = shard_values(stage->state, i).buffer;
        state->gradients = shard_gradients(stage->state, i).buffer;
    }
    free(ranges);
    return status;
}

/* Allocate the head's copy of an embedding that another stage trains. The copy is no parameter here and has
 * no moments. */
static int table_allocate(struct stage *stage, struct err *err)
{
    uint64_t bytes = stage->layout.table_bytes;
    stage->table.tensors = &stage->model.embedding.tensors;
    if (area_allocate(stage, bytes, MEM_BUFFERS, "the head's copy of the embedding", &stage->table.trained,
                      err) != 0)
        return -1;
    return stage->options.mode != STAGE_TRAIN
               ? 0
               : area_allocate(stage, bytes, MEM_BUFFERS, "the gradient of the head's copy",
                               &stage->table.gradients, err);
}

static int blocks_allocate(struct stage *stage, struct err *err)
{
    const struct stage_options *o = &stage->options;
    stage->blocks = calloc(o->block_end - o->block_begin, sizeof(*stage->blocks));
    if (!stage->blocks)
        return err_set(err, ERR_NOMEM, "out of memory for %u blocks", o->block_end - o->block_begin);
    for (uint32_t b = o->block_begin; b < o->block_end; b++) {
        struct block_state *state = stage_block(stage, b);
        state->tensors = footprint_tensors(&stage->layout, b);
        state->frozen_outside = outside(o, b) && o->outside.frozen;
        state->trained_outside = outside(o, b) && o->outside.trained;
        if (!state->frozen_outside && area_allocate(stage, state->tensors->frozen_bytes, MEM_WEIGHTS,
                                                    "a block's weights", &state->frozen, err) != 0)
            return -1;
    }
    if (state_allocate(stage, err) != 0)
        return -1;
    return area_allocate(stage, stage->layout.rope_bytes, MEM_WEIGHTS, "rotary tables", &stage->rope, err);
}

static int slots_allocate(struct stage *stage, struct err *err)
{
    const struct footprint *l = &stage->layout;
    stage->slots = calloc(l->slots, sizeof(*stage->slots));
    if (!stage->slots)
        return err_set(err, ERR_NOMEM, "out of memory for %u micro-batches", l->slots);
    for (uint32_t i = 0; i < l->slots; i++) {
        struct saved *slot = &stage->slots[i];
        slot->stage = stage;
        slot->staging = calloc(1, l->slot.meta_bytes);
        if (!slot->staging)
            return err_set(err, ERR_NOMEM, "out of memory for a micro-batch's description");
        if (event_create(stage->device, &slot->written, err) != 0 ||
            buffer_create(stage->device, l->slot.bytes, MEM_ACTIVATIONS, "a micro-batch in flight",
                          &slot->buffer, err) != 0)
            return -1;
    }
    return 0;
}

/* Allocate a workspace, or use the shared one. */
static int workspace_take(struct stage *stage, struct err *err)
{
    uint64_t bytes = stage->layout.workspace.bytes;
    struct buffer *shared = stage->options.workspace;
    if (!shared)
        return buffer_create(stage->device, bytes, MEM_BUFFERS, "workspace", &stage->workspace, err);
    if (buffer_device(shared) != stage->device || buffer_bytes(shared) < bytes)
        return err_set(err, ERR_INVALID,
                       "the workspace to be shared has %llu bytes here, and %llu are needed",
                       buffer_device(shared) == stage->device ? (unsigned long long)buffer_bytes(shared) : 0,
                       (unsigned long long)bytes);
    stage->workspace = shared;
    return 0;
}

static int stage_allocate(struct stage *stage, struct err *err)
{
    const struct footprint *l = &stage->layout;
    if (blocks_allocate(stage, err) != 0 || table_allocate(stage, err) != 0 ||
        slots_allocate(stage, err) != 0 || workspace_take(stage, err) != 0 ||
        buffer_create(stage->device, l->scalar_bytes, MEM_BUFFERS, "scalars", &stage->scalars, err) != 0)
        return -1;
    shard_sums_set(stage->state, (struct area_view){.buffer = stage->scalars, .at = 16});
    return buffer_zero(stage->scalars, 0, l->scalar_bytes, err);
}

/* Load initial values of everything that the stage keeps. */
static int stage_load(struct stage *stage, const struct weight_source *source, struct err *err)
{
    struct area_loader loader;
    if (loader_init(&loader, stage->device, &stage->options, source, err) != 0)
        return -1;
    int status = rope_load(&loader, stage->options.positions_max, stage->rope);
    for (uint32_t b = stage->options.block_begin; b < stage->options.block_end && status == 0; b++) {
        const struct block_state *state = stage_block(stage, b);
        if (!state->frozen_outside)
            status = area_load(&loader, state->tensors,
                               &(struct area_range){.block = b,
                                                    .area = AREA_FROZEN,
                                                    .end = state->tensors->frozen_bytes,
                                                    .view = {.buffer = state->frozen}});
    }
    loader_fini(&loader);
    return status == 0 ? shard_load(stage->state, source, err) : -1;
}

int stage_create_from(struct device *device, const struct weight_source *source,
                      const struct stage_options *options, struct stage **out, struct err *err)
{
    struct stage *stage = calloc(1, sizeof(*stage));
    *out = NULL;
    if (!stage)
        return err_set(err, ERR_NOMEM, "out of memory for a stage");
    stage->device = device;
    stage->config = *options->config;
    stage->options = *options;
    stage->options.config = &stage->config;
    stage->loss_scale = 1;
    if (stage_layout_init(&stage->options, &stage->model, &stage->layout, err) != 0) {
        free(stage);
        return -1;
    }
    if (stage_allocate(stage, err) != 0 || stage_load(stage, source, err) != 0 ||
        device_sync(device, err) != 0) {
        stage_destroy(stage);
        return err_wrap(err, "stage of blocks %u..%u", options->block_begin, options->block_end);
    }
    *out = stage;
    return 0;
}

static int stage_model_read(void *context, const char *name, uint64_t row_begin, uint64_t row_end, float *dst,
                            struct err *err)
{
    struct model *model = context;
    const struct model_tensor *tensor = model_tensor_find(model, name);
    if (!tensor)
        return err_set(err, ERR_NOT_FOUND, "the model has no tensor %s", name);
    return model_tensor_read_f32(model, tensor, row_begin, row_end, dst, err);
}

static enum pack_kind model_packing(void *context, const char *name)
{
    const struct model_tensor *tensor = model_tensor_find(context, name);
    if (!tensor || tensor->offset_added != 0)
        return PACK_F32;
    if (tensor->nf4)
        return nf4_stored_nested(tensor->nf4) ? PACK_NF4_DOUBLE : PACK_NF4;
    return pack_of_type(tensor->type);
}

static int model_read_packed(void *context, const char *name, enum pack_kind pack, uint64_t row_begin,
                             uint64_t row_end, uint32_t columns, uint8_t *dst, struct err *err)
{
    struct model *model = context;
    const struct model_tensor *tensor = model_tensor_find(model, name);
    if (!tensor)
        return err_set(err, ERR_NOT_FOUND, "the model has no tensor %s", name);
    if (model_packing(model, name) != pack || pack == PACK_F32 || tensor->cols != columns)
        return err_set(err, ERR_INVALID,
                       "tensor %s is %s in rows of %llu values, and %s in rows of %u is wanted", name,
                       tensor_type_name(tensor->type), (unsigned long long)tensor->cols,
                       tensor_type_name(pack_type(pack)), columns);
    return model_tensor_read_packed(model, tensor, row_begin, row_end, dst, err);
}

static const struct nf4_places *saved_nf4(struct model *model, const char *name, struct err *err)
{
    const struct model_tensor *tensor = model_tensor_find(model, name);
    if (!tensor || !tensor->nf4)
        err_set(err, ERR_INVALID, "the model has no tensor %s in NF4", name);
    return !tensor ? NULL : tensor->nf4;
}

static int model_read_nf4(void *context, const char *name, uint64_t begin, uint64_t count, uint8_t *codes,
                          float *absmax, struct err *err)
{
    const struct nf4_places *places = saved_nf4(context, name, err);
    if (!places || nf4_stored_codes(model_get_source(context), places, begin, count, codes, absmax, err) < 0)
        return err_wrap(err, "tensor %s", name);
    return 0;
}

static int model_read_nf4_nested(void *context, const char *name, uint8_t *codes, float *scales,
                                 struct err *err)
{
    const struct nf4_places *places = saved_nf4(context, name, err);
    if (!places || nf4_stored_scales(model_get_source(context), places, codes, scales, err) < 0)
        return err_wrap(err, "tensor %s", name);
    return 0;
}

struct weight_source stage_model_source(struct model *model)
{
    return (struct weight_source){.read = stage_model_read,
                                  .read_packed = model_read_packed,
                                  .packing = model_packing,
                                  .read_nf4 = model_read_nf4,
                                  .read_nf4_nested = model_read_nf4_nested,
                                  .context = model};
}

int stage_create(struct device *device, struct model *model, const struct stage_options *options,
                 struct stage **out, struct err *err)
{
    struct weight_source source = stage_model_source(model);
    return stage_create_from(device, &source, options, out, err);
}

void stage_destroy(struct stage *stage)
{
    if (!stage)
        return;
    uint32_t blocks = stage->options.block_end - stage->options.block_begin;
    for (uint32_t i = 0; stage->blocks && i < blocks; i++)
        if (!stage->blocks[i].frozen_outside)
            buffer_destroy(stage->blocks[i].frozen);
    shard_destroy(stage->state);
    for (uint32_t i = 0; stage->slots && i < stage->layout.slots; i++) {
        buffer_destroy(stage->slots[i].buffer);
        event_destroy(stage->slots[i].written);
        free(stage->slots[i].staging);
    }
    buffer_destroy(stage->table.trained);
    buffer_destroy(stage->table.gradients);
    buffer_destroy(stage->rope);
    if (stage->workspace != stage->options.workspace)
        buffer_destroy(stage->workspace);
    buffer_destroy(stage->scalars);
    free(stage->blocks);
    free(stage->slots);
    free(stage);
}

void stage_options_get(const struct stage *stage, struct stage_options *out)
{
    *out = stage->options;
}
