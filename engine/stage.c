/* The life of a stage: its buffers, its parameters' names. */
#include "engine/stage_private.h"

#include <stdlib.h>
#include <string.h>

#include "model/tensors.h"

enum {
    /* Tiny models are trained to the last digit: Adam turns the noise of a gradient near zero into a full
     * step. */
    EXACT_HIDDEN_MAX = 256
};

static void block_names(struct stage *stage, uint32_t block, uint32_t *count)
{
    const struct layer_tensors *tensors = stage_block(stage, block)->tensors;
    for (uint32_t i = 0; i < tensors->count; i++)
        for (uint32_t copy = 0; copy < tensors->list[i].copies && tensors->list[i].trained; copy++) {
            struct parameter_place *place = &stage->parameters[(*count)++];
            *place = (struct parameter_place){.block = block, .copy = copy, .tensor = &tensors->list[i]};
            layer_tensor_name(&stage->config, block - 1, place->tensor, copy, place->name);
        }
}

static int names_make(struct stage *stage, struct err *err)
{
    uint32_t count = stage->layout.parameters, made = 0;
    stage->parameters = calloc(count + 1, sizeof *stage->parameters);
    stage->sums = calloc(count + 1, sizeof *stage->sums);
    if (stage->parameters == NULL || stage->sums == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for %u parameters' names", count);
    for (uint32_t b = stage->options.block_begin; b < stage->options.block_end; b++)
        block_names(stage, b, &made);
    return 0;
}

/* An area of a block, zero at first; none where it has no bytes. */
static int area_allocate(struct stage *stage, uint64_t bytes, enum mem_purpose purpose, const char *what,
                         struct buffer **out, struct err *err)
{
    if (bytes == 0)
        return 0;
    if (buffer_create(stage->device, bytes, purpose, what, out, err) != 0)
        return -1;
    return purpose == MEM_WEIGHTS ? 0 : buffer_zero(*out, 0, bytes, err);
}

static int block_allocate(struct stage *stage, uint32_t block, struct err *err)
{
    struct block_state *state = stage_block(stage, block);
    const struct layer_tensors *t = footprint_tensors(&stage->layout, block);
    state->tensors = t;
    if (area_allocate(stage, t->frozen_bytes, MEM_WEIGHTS, "a block's weights", &state->frozen, err) != 0 ||
        area_allocate(stage, t->trained_bytes, MEM_ADAPTERS, "trained values", &state->trained, err) != 0)
        return -1;
    if (stage->options.mode != STAGE_TRAIN)
        return 0;
    if (area_allocate(stage, t->trained_bytes, MEM_ADAPTERS, "gradients", &state->gradients, err) != 0 ||
        area_allocate(stage, t->moment_bytes, MEM_OPTIMIZER, "first moments", &state->moment1, err) != 0 ||
        area_allocate(stage, t->moment_bytes, MEM_OPTIMIZER, "second moments", &state->moment2, err) != 0)
        return -1;
    return 0;
}

static int blocks_allocate(struct stage *stage, struct err *err)
{
    const struct stage_options *o = &stage->options;
    stage->blocks = calloc(o->block_end - o->block_begin, sizeof *stage->blocks);
    if (stage->blocks == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for %u blocks", o->block_end - o->block_begin);
    for (uint32_t b = o->block_begin; b < o->block_end; b++)
        if (block_allocate(stage, b, err) != 0)
            return -1;
    return area_allocate(stage, stage->layout.rope_bytes, MEM_WEIGHTS, "rotary tables", &stage->rope, err);
}

static int slots_allocate(struct stage *stage, struct err *err)
{
    const struct footprint *l = &stage->layout;
    stage->slots = calloc(l->slots, sizeof *stage->slots);
    if (stage->slots == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for %u micro-batches", l->slots);
    for (uint32_t i = 0; i < l->slots; i++) {
        struct saved *slot = &stage->slots[i];
        slot->stage = stage;
        slot->staging = calloc(1, l->slot.meta_bytes);
        if (slot->staging == NULL)
            return err_set(err, ERR_NOMEM, "out of memory for a micro-batch's description");
        if (event_create(stage->device, &slot->written, err) != 0 ||
            buffer_create(stage->device, l->slot.bytes, MEM_ACTIVATIONS, "a micro-batch in flight",
                          &slot->buffer, err) != 0)
            return -1;
    }
    return 0;
}

/* Its own, or the one that it shares. */
static int workspace_take(struct stage *stage, struct err *err)
{
    uint64_t bytes = stage->layout.workspace.bytes;
    struct buffer *shared = stage->options.workspace;
    if (shared == NULL)
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
    if (blocks_allocate(stage, err) != 0 || slots_allocate(stage, err) != 0 ||
        workspace_take(stage, err) != 0 ||
        buffer_create(stage->device, l->scalar_bytes, MEM_BUFFERS, "scalars", &stage->scalars, err) != 0)
        return -1;
    return buffer_zero(stage->scalars, 0, l->scalar_bytes, err);
}

int stage_create_from(struct device *device, const struct weight_source *source,
                      const struct stage_options *options, struct stage **out, struct err *err)
{
    struct stage *stage = calloc(1, sizeof *stage);
    *out = NULL;
    if (stage == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for a stage");
    stage->device = device;
    stage->config = *options->config;
    stage->options = *options;
    stage->options.config = &stage->config;
    stage->exact = stage->config.hidden <= EXACT_HIDDEN_MAX;
    if (stage_layout_init(&stage->options, &stage->model, &stage->layout, err) != 0) {
        free(stage);
        return -1;
    }
    if (stage_allocate(stage, err) != 0 || names_make(stage, err) != 0 ||
        stage_load(stage, source, err) != 0 || device_sync(device, err) != 0) {
        stage_destroy(stage);
        return err_wrap(err, "stage of blocks %u..%u", options->block_begin, options->block_end);
    }
    *out = stage;
    return 0;
}

static int model_read(void *context, const char *name, uint64_t row_begin, uint64_t row_end, float *dst,
                      struct err *err)
{
    struct model *model = context;
    const struct model_tensor *tensor = model_tensor_find(model, name);
    if (tensor == NULL)
        return err_set(err, ERR_NOT_FOUND, "the model has no tensor %s", name);
    return model_tensor_read_f32(model, tensor, row_begin, row_end, dst, err);
}

static int model_read_packed(void *context, const char *name, enum pack_kind pack, uint64_t row_begin,
                             uint64_t row_end, uint32_t columns, uint8_t *dst, struct err *err)
{
    struct model *model = context;
    const struct model_tensor *tensor = model_tensor_find(model, name);
    if (tensor == NULL)
        return err_set(err, ERR_NOT_FOUND, "the model has no tensor %s", name);
    if (tensor->type != pack_type(pack) || tensor->cols != columns)
        return err_set(err, ERR_INVALID,
                       "tensor %s is %s in rows of %llu values, but the plan is for %s of %u", name,
                       tensor_type_name(tensor->type), (unsigned long long)tensor->cols,
                       tensor_type_name(pack_type(pack)), columns);
    return model_tensor_read_packed(model, tensor, row_begin, row_end, dst, err);
}

static int model_read_nf4(void *context, const char *name, uint64_t begin, uint64_t count, uint8_t *codes,
                          float *absmax, struct err *err)
{
    struct model *model = context;
    const struct model_tensor *tensor = model_tensor_find(model, name);
    if (tensor == NULL || tensor->nf4 == NULL)
        return 1;
    return nf4_stored_codes(model_get_source(model), tensor->nf4, begin, count, codes, absmax, err);
}

static int model_read_nf4_nested(void *context, const char *name, uint8_t *codes, float *scales,
                                 struct err *err)
{
    struct model *model = context;
    const struct model_tensor *tensor = model_tensor_find(model, name);
    if (tensor == NULL || tensor->nf4 == NULL || !nf4_stored_nested(tensor->nf4))
        return 1;
    return nf4_stored_scales(model_get_source(model), tensor->nf4, codes, scales, err);
}

int stage_create(struct device *device, struct model *model, const struct stage_options *options,
                 struct stage **out, struct err *err)
{
    struct weight_source source = {.read = model_read,
                                   .read_packed = model_read_packed,
                                   .read_nf4 = model_read_nf4,
                                   .read_nf4_nested = model_read_nf4_nested,
                                   .context = model};
    return stage_create_from(device, &source, options, out, err);
}

void stage_destroy(struct stage *stage)
{
    if (stage == NULL)
        return;
    uint32_t blocks = stage->options.block_end - stage->options.block_begin;
    for (uint32_t i = 0; stage->blocks != NULL && i < blocks; i++) {
        struct block_state *block = &stage->blocks[i];
        buffer_destroy(block->frozen);
        buffer_destroy(block->trained);
        buffer_destroy(block->gradients);
        buffer_destroy(block->moment1);
        buffer_destroy(block->moment2);
    }
    for (uint32_t i = 0; stage->slots != NULL && i < stage->layout.slots; i++) {
        buffer_destroy(stage->slots[i].buffer);
        event_destroy(stage->slots[i].written);
        free(stage->slots[i].staging);
    }
    buffer_destroy(stage->rope);
    if (stage->workspace != stage->options.workspace)
        buffer_destroy(stage->workspace);
    buffer_destroy(stage->scalars);
    free(stage->blocks);
    free(stage->slots);
    free(stage->parameters);
    free(stage->sums);
    free(stage);
}

void stage_options_get(const struct stage *stage, struct stage_options *out)
{
    *out = stage->options;
}
