/* The life of a stage: its buffers, its weights streamed in, its adapters' first values. */
#include "engine/stage_private.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/rand.h"
#include "engine/rope.h"
#include "model/tensors.h"

enum {
    PIECE_BYTES = 1 << 20, /* of weights read at once */
    /* Tiny models are trained to the last digit: Adam turns the noise of a gradient near zero into a full
     * step. */
    EXACT_HIDDEN_MAX = 256
};

struct loader {
    struct stage *stage;
    const struct weight_source *source;
    float *piece; /* PIECE_BYTES or one row, the larger */
    struct err *err;
};

static int finite_check(const char *name, const float *values, uint64_t count, struct err *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return err_set(err, ERR_NOT_FINITE, "tensor %s holds a value that is not finite", name);
    return 0;
}

/* Stream a tensor [rows, columns] to `at` of a buffer. */
static int tensor_load(const struct loader *loader, const char *name, uint64_t rows, uint64_t columns,
                       struct buffer *buffer, uint64_t at)
{
    uint64_t step = PIECE_BYTES / (4 * columns) > 0 ? PIECE_BYTES / (4 * columns) : 1;
    for (uint64_t row = 0; row < rows; row += step) {
        uint64_t end = row + step < rows ? row + step : rows, count = (end - row) * columns;
        if (loader->source->read(loader->source->context, name, row, end, loader->piece, loader->err) != 0 ||
            finite_check(name, loader->piece, count, loader->err) != 0 ||
            buffer_write(buffer, at + 4 * row * columns, loader->piece, 4 * count, loader->err) != 0 ||
            device_sync(loader->stage->device, loader->err) != 0)
            return -1;
    }
    return 0;
}

static int layer_load(const struct loader *loader, uint32_t layer)
{
    const struct footprint *l = &loader->stage->layout;
    const struct footprint_shape *s = &l->model->shape;
    uint64_t up = l->model->layer.gate_up + 4ull * s->ffn * s->hidden;
    uint64_t k = l->model->layer.qkv + 4ull * s->q_width * s->hidden, v = k + 4ull * s->kv_width * s->hidden;
    const struct {
        const char *name;
        uint64_t rows, columns, at;
    } tensors[] = {
        {"input_layernorm", s->hidden, 1, l->model->layer.norm1},
        {"self_attn.q_proj", s->q_width, s->hidden, l->model->layer.qkv},
        {"self_attn.k_proj", s->kv_width, s->hidden, k},
        {"self_attn.v_proj", s->kv_width, s->hidden, v},
        {"self_attn.o_proj", s->hidden, s->q_width, l->model->layer.o},
        {"post_attention_layernorm", s->hidden, 1, l->model->layer.norm2},
        {"mlp.gate_proj", s->ffn, s->hidden, l->model->layer.gate_up},
        {"mlp.up_proj", s->ffn, s->hidden, up},
        {"mlp.down_proj", s->hidden, s->ffn, l->model->layer.down},
    };
    for (size_t i = 0; i < sizeof tensors / sizeof tensors[0]; i++) {
        char name[96];
        snprintf(name, sizeof name, "model.layers.%u.%s.weight", l->layer_begin + layer, tensors[i].name);
        if (tensor_load(loader, name, tensors[i].rows, tensors[i].columns, loader->stage->layers[layer],
                        tensors[i].at) != 0)
            return -1;
    }
    return 0;
}

static int rope_load(const struct loader *loader)
{
    const struct stage *stage = loader->stage;
    uint32_t head_dim = stage->layout.model->shape.head_dim;
    float *inverse = malloc(4ull * head_dim);
    if (inverse == NULL)
        return err_set(loader->err, ERR_NOMEM, "out of memory for rotary frequencies");
    int status = rope_frequencies(&stage->config, inverse, loader->err);
    for (uint32_t position = 0; position < stage->options.positions_max && status == 0; position++) {
        rope_row(inverse, head_dim, position, loader->piece);
        if (buffer_write(stage->rope, 4ull * position * head_dim, loader->piece, 4ull * head_dim,
                         loader->err) != 0 ||
            device_sync(stage->device, loader->err) != 0)
            status = -1;
    }
    free(inverse);
    return status;
}

static int weights_load(struct stage *stage, const struct weight_source *source, struct err *err)
{
    const struct footprint *l = &stage->layout;
    const struct footprint_shape *s = &l->model->shape;
    uint64_t widest = s->hidden > s->ffn ? s->hidden : s->ffn;
    widest = widest > s->q_width ? widest : s->q_width;
    struct loader loader = {.stage = stage, .source = source, .err = err};
    loader.piece = malloc(4 * widest > PIECE_BYTES ? 4 * widest : PIECE_BYTES);
    if (loader.piece == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for %u bytes of weights in transit",
                       (unsigned)PIECE_BYTES);
    const char *head = stage->config.tied ? "model.embed_tokens.weight" : "lm_head.weight";
    int status = 0;
    if (l->has_embedding)
        status = tensor_load(&loader, "model.embed_tokens.weight", s->vocab, s->hidden, stage->table, 0);
    for (uint32_t i = 0; i < stage->layout.layers && status == 0; i++)
        status = layer_load(&loader, i);
    if (stage->rope != NULL && status == 0)
        status = rope_load(&loader);
    if (l->has_head && status == 0)
        status = tensor_load(&loader, "model.norm.weight", s->hidden, 1, stage->head_norm, 0);
    if (stage->head_table != NULL && status == 0)
        status = tensor_load(&loader, head, s->vocab, s->hidden, stage->head_table, 0);
    free(loader.piece);
    return status;
}

/* FNV-1a: gives each name a stream of its own. */
static uint64_t name_hash(const char *name)
{
    uint64_t hash = 14695981039346656037ull;
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 1099511628211ull;
    return hash;
}

/* A uniform within 1/sqrt(fan_in), as PyTorch's kaiming_uniform with a = sqrt(5) gives it; B zero. */
static int adapters_init(struct stage *stage, struct err *err)
{
    for (uint32_t i = 0; i < stage_parameter_count(stage); i++) {
        struct parameter parameter = stage_parameter_at(stage, i);
        if (i % 2 == 1)
            continue;
        uint64_t count = (uint64_t)parameter.rows * parameter.columns;
        double bound = 1.0 / sqrt((double)parameter.columns);
        struct rand_stream stream;
        float *values = malloc(4 * count);
        if (values == NULL)
            return err_set(err, ERR_NOMEM, "out of memory for the first values of %s", parameter.name);
        rand_stream_init(&stream, stage->options.seed, name_hash(parameter.name));
        for (uint64_t at = 0; at < count; at++)
            values[at] = (float)((2 * rand_stream_unit(&stream) - 1) * bound);
        int status = stage_state_write(stage, i, STATE_VALUE, values, err);
        free(values);
        if (status != 0)
            return -1;
    }
    return 0;
}

static const char *target_module(uint32_t target)
{
    return (target & (LORA_Q | LORA_K | LORA_V | LORA_O)) != 0 ? "self_attn" : "mlp";
}

static int names_make(struct stage *stage, struct err *err)
{
    const struct footprint *l = &stage->layout;
    uint32_t count = stage_parameter_count(stage), i = 0;
    stage->names = calloc(count + 1, sizeof *stage->names);
    stage->sums = calloc(count + 1, sizeof *stage->sums);
    if (stage->names == NULL || stage->sums == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for %u parameters' names", count);
    for (uint32_t layer = l->layer_begin; layer < l->layer_begin + l->layers; layer++)
        for (int g = 0; g < GROUP_COUNT; g++)
            for (uint32_t m = 0; m < l->model->groups[g].count; m++)
                for (int which = 0; which < 2; which++) {
                    uint32_t target = l->model->groups[g].members[m].target;
                    snprintf(stage->names[i++], sizeof stage->names[0],
                             "model.layers.%u.%s.%s.lora_%c.weight", layer, target_module(target),
                             lora_target_name(target), "AB"[which]);
                }
    return 0;
}

static int weights_allocate(struct stage *stage, struct err *err)
{
    const struct footprint *l = &stage->layout;
    struct device *device = stage->device;
    stage->layers = calloc(stage->layout.layers + 1, sizeof(struct buffer *));
    if (stage->layers == NULL)
        return err_set(err, ERR_NOMEM, "out of memory for %u layers", stage->layout.layers);
    if (l->has_embedding &&
        buffer_create(device, l->table_bytes, MEM_WEIGHTS, "the embedding", &stage->table, err) != 0)
        return -1;
    for (uint32_t i = 0; i < stage->layout.layers; i++)
        if (buffer_create(device, l->model->layer.bytes, MEM_WEIGHTS, "a layer's weights", &stage->layers[i],
                          err) != 0)
            return -1;
    if (l->rope_bytes > 0 &&
        buffer_create(device, l->rope_bytes, MEM_WEIGHTS, "rotary tables", &stage->rope, err) != 0)
        return -1;
    if (!l->has_head)
        return 0;
    if (buffer_create(device, l->head_norm_bytes, MEM_WEIGHTS, "the final norm", &stage->head_norm, err) != 0)
        return -1;
    return l->shares_table
               ? 0
               : buffer_create(device, l->table_bytes, MEM_WEIGHTS, "the head", &stage->head_table, err);
}

static int adapters_allocate(struct stage *stage, struct err *err)
{
    uint64_t bytes = stage->layout.adapter_bytes;
    const struct {
        struct buffer **buffer;
        enum mem_purpose purpose;
        const char *what;
    } parts[] = {
        {&stage->values, MEM_ADAPTERS, "adapters"},
        {&stage->gradients, MEM_ADAPTERS, "adapters' gradients"},
        {&stage->moment1, MEM_OPTIMIZER, "first moments"},
        {&stage->moment2, MEM_OPTIMIZER, "second moments"},
    };
    int count = stage->options.mode == STAGE_TRAIN ? 4 : 1;
    for (int i = 0; i < count; i++)
        if (buffer_create(stage->device, bytes, parts[i].purpose, parts[i].what, parts[i].buffer, err) != 0 ||
            buffer_zero(*parts[i].buffer, 0, bytes, err) != 0)
            return -1;
    return 0;
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

static int stage_allocate(struct stage *stage, struct err *err)
{
    const struct footprint *l = &stage->layout;
    if (weights_allocate(stage, err) != 0 || adapters_allocate(stage, err) != 0 ||
        slots_allocate(stage, err) != 0 ||
        buffer_create(stage->device, l->workspace.bytes, MEM_BUFFERS, "workspace", &stage->workspace, err) !=
            0 ||
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
        weights_load(stage, source, err) != 0 || adapters_init(stage, err) != 0 ||
        device_sync(device, err) != 0) {
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

int stage_create(struct device *device, struct model *model, const struct stage_options *options,
                 struct stage **out, struct err *err)
{
    return stage_create_from(device, &(struct weight_source){.read = model_read, .context = model}, options,
                             out, err);
}

void stage_destroy(struct stage *stage)
{
    if (stage == NULL)
        return;
    for (uint32_t i = 0; stage->layers != NULL && i < stage->layout.layers; i++)
        buffer_destroy(stage->layers[i]);
    for (uint32_t i = 0; stage->slots != NULL && i < stage->layout.slots; i++) {
        buffer_destroy(stage->slots[i].buffer);
        event_destroy(stage->slots[i].written);
        free(stage->slots[i].staging);
    }
    struct buffer *const buffers[] = {stage->table,     stage->head_table, stage->head_norm, stage->rope,
                                      stage->values,    stage->gradients,  stage->moment1,   stage->moment2,
                                      stage->workspace, stage->scalars};
    for (size_t i = 0; i < sizeof buffers / sizeof buffers[0]; i++)
        buffer_destroy(buffers[i]);
    free(stage->layers);
    free(stage->slots);
    free(stage->names);
    free(stage->sums);
    free(stage);
}

void stage_options_get(const struct stage *stage, struct stage_options *out)
{
    *out = stage->options;
}
