/* A stage's first values: weights streamed in and packed, rotary tables, adapters as peft starts them. */
#include "engine/stage_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "common/rand.h"
#include "engine/rope.h"
#include "model/nf4.h"

enum { PIECE_VALUES = 1 << 18 }; /* read at once, or one row */

struct loader {
    struct stage *stage;
    const struct weight_source *source;
    float *piece;    /* PIECE_VALUES or one row, the larger */
    uint8_t *packed; /* the piece as it is kept */
    float *absmax;   /* of the NF4 tensor being read */
    uint8_t *nested; /* the same in 8 bits, then their scales */
    struct err *err;
};

static int finite_check(const char *name, const float *values, uint64_t count, struct err *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return err_set(err, ERR_NOT_FINITE, "tensor %s holds a value that is not finite", name);
    return 0;
}

static int put(const struct loader *loader, struct buffer *buffer, uint64_t at, const void *bytes,
               uint64_t count)
{
    if (buffer_write(buffer, at, bytes, count, loader->err) != 0)
        return -1;
    return device_sync(loader->stage->device, loader->err);
}

/* Values [begin, begin + count) of a tensor whose copy lies at `at`. */
static int piece_put(const struct loader *loader, const struct layer_tensor *tensor, struct buffer *buffer,
                     uint64_t at, uint64_t begin, uint64_t count)
{
    uint16_t *half = (uint16_t *)(void *)loader->packed;
    switch (tensor->trained ? PACK_F32 : tensor->pack) {
    case PACK_BF16:
        for (uint64_t i = 0; i < count; i++)
            half[i] = bf16_from_f32(loader->piece[i]);
        return put(loader, buffer, at + 2 * begin, half, 2 * count);
    case PACK_F16:
        for (uint64_t i = 0; i < count; i++)
            half[i] = f16_from_f32(loader->piece[i]);
        return put(loader, buffer, at + 2 * begin, half, 2 * count);
    case PACK_NF4:
    case PACK_NF4_DOUBLE:
        nf4_quantise(loader->piece, count, loader->packed, loader->absmax + begin / NF4_BLOCK);
        return put(loader, buffer, at + begin / 2, loader->packed, (count + 1) / 2);
    default:
        return put(loader, buffer, at + 4 * begin, loader->piece, 4 * count);
    }
}

/* The scales of a tensor in NF4, once all of it has been read: the file's own where it has nested ones. */
static int scales_put(const struct loader *loader, const char *name, const struct layer_tensor *tensor,
                      struct buffer *buffer, uint64_t at, uint64_t values)
{
    uint64_t blocks = nf4_blocks(values);
    if (tensor->pack == PACK_NF4)
        return put(loader, buffer, at + tensor->absmax, loader->absmax, 4 * blocks);
    float *scales = loader->absmax + blocks; /* behind them there is room */
    int stored = loader->source->read_nf4_nested == NULL
                     ? 1
                     : loader->source->read_nf4_nested(loader->source->context, name, loader->nested, scales,
                                                       loader->err);
    if (stored < 0 || (stored == 0 && finite_check(name, scales, nf4_scales(values), loader->err) != 0))
        return -1;
    if (stored != 0)
        nf4_nest(loader->absmax, blocks, loader->nested, scales);
    if (put(loader, buffer, at + tensor->absmax, loader->nested, blocks) != 0)
        return -1;
    return put(loader, buffer, at + tensor->scales, scales, 4 * nf4_scales(values));
}

/* One copy of a tensor that is kept as the file has it: blocks of whole rows, streamed in pieces. */
static int blocks_load(struct loader *loader, const char *name, const struct layer_tensor *tensor,
                       struct buffer *buffer, uint64_t at)
{
    const struct weight_source *source = loader->source;
    uint64_t row_bytes = pack_bytes(tensor->pack, tensor->columns);
    uint64_t step = PIECE_VALUES / tensor->columns > 0 ? PIECE_VALUES / tensor->columns : 1;
    if (source->read_packed == NULL)
        return err_set(loader->err, ERR_UNSUPPORTED, "tensor %s: its source has no packed weights", name);
    for (uint64_t row = 0; row < tensor->rows; row += step) {
        uint64_t end = row + step < tensor->rows ? row + step : tensor->rows;
        uint64_t values = (end - row) * tensor->columns;
        if (source->read_packed(source->context, name, tensor->pack, row, end, tensor->columns,
                                loader->packed, loader->err) != 0)
            return -1;
        if (!pack_finite(tensor->pack, loader->packed, values / pack_block(tensor->pack)))
            return err_set(loader->err, ERR_NOT_FINITE, "tensor %s holds a value that is not finite", name);
        if (put(loader, buffer, at + row * row_bytes, loader->packed, (end - row) * row_bytes) != 0)
            return -1;
    }
    return 0;
}

/* The codes of a copy that is saved as NF4, streamed in pieces, and its absmax. 1: it is not saved so. */
static int nf4_load(struct loader *loader, const char *name, struct buffer *buffer, uint64_t at,
                    uint64_t values)
{
    const struct weight_source *source = loader->source;
    for (uint64_t begin = 0; begin < values; begin += PIECE_VALUES) {
        uint64_t count = values - begin < PIECE_VALUES ? values - begin : PIECE_VALUES;
        float *absmax = loader->absmax + begin / NF4_BLOCK;
        int stored = source->read_nf4 == NULL ? 1
                                              : source->read_nf4(source->context, name, begin, count,
                                                                 loader->packed, absmax, loader->err);
        if (stored != 0)
            return stored;
        if (finite_check(name, absmax, nf4_blocks(count), loader->err) != 0 ||
            put(loader, buffer, at + begin / 2, loader->packed, nf4_code_bytes(count)) != 0)
            return -1;
    }
    return 0;
}

/* One copy of a tensor, streamed in pieces. */
static int tensor_load(struct loader *loader, uint32_t block, const struct layer_tensor *tensor,
                       uint32_t copy)
{
    const struct stage *stage = loader->stage;
    const struct block_state *state = stage_block(stage, block);
    struct buffer *buffer = tensor->trained ? state->trained : state->frozen;
    uint64_t columns = tensor->columns, values = tensor->rows * columns;
    uint64_t blocks = nf4_blocks(values), at = tensor->at + tensor->stride * copy;
    bool nf4 = tensor->pack == PACK_NF4 || tensor->pack == PACK_NF4_DOUBLE;
    /* whole blocks of NF4, whatever the columns: multiples of 64 rows, or all of them */
    uint64_t step = PIECE_VALUES / columns > 0 ? PIECE_VALUES / columns : 1;
    step = nf4 && columns % NF4_BLOCK != 0 ? (step > 64 ? step / 64 * 64 : 64) : step;
    char name[LAYER_NAME_MAX];
    layer_tensor_name(&stage->config, block - 1, tensor, copy, name);
    if (!tensor->trained && pack_from_file(tensor->pack))
        return blocks_load(loader, name, tensor, buffer, at);
    if (nf4) {
        free(loader->absmax);
        free(loader->nested);
        loader->absmax = malloc(4 * (blocks + nf4_scales(values)));
        loader->nested = malloc(blocks);
        if (loader->absmax == NULL || loader->nested == NULL)
            return err_set(loader->err, ERR_NOMEM, "out of memory for the scales of %s", name);
    }
    int stored = nf4 ? nf4_load(loader, name, buffer, at, values) : 1;
    if (stored <= 0)
        return stored < 0 ? -1 : scales_put(loader, name, tensor, buffer, at, values);
    for (uint64_t row = 0; row < tensor->rows; row += step) {
        uint64_t end = row + step < tensor->rows ? row + step : tensor->rows, count = (end - row) * columns;
        if (loader->source->read(loader->source->context, name, row, end, loader->piece, loader->err) != 0 ||
            finite_check(name, loader->piece, count, loader->err) != 0 ||
            piece_put(loader, tensor, buffer, at, row * columns, count) != 0)
            return -1;
    }
    return nf4 ? scales_put(loader, name, tensor, buffer, at, values) : 0;
}

static bool is_adapter(const struct layer_tensor *tensor)
{
    return tensor->role == TENSOR_LORA_A || tensor->role == TENSOR_LORA_B;
}

static int block_load(struct loader *loader, uint32_t block)
{
    const struct layer_tensors *tensors = stage_block(loader->stage, block)->tensors;
    for (uint32_t i = 0; i < tensors->count; i++)
        for (uint32_t copy = 0; copy < tensors->list[i].copies && !is_adapter(&tensors->list[i]); copy++)
            if (tensor_load(loader, block, &tensors->list[i], copy) != 0)
                return -1;
    return 0;
}

static int table_load(const struct loader *loader, const struct rope_config *rope, uint64_t at)
{
    const struct stage *stage = loader->stage;
    uint32_t width = stage->config.rotary_dim > 0 ? stage->config.rotary_dim : stage->config.head_dim;
    float *inverse = malloc(4ull * width);
    int status = inverse == NULL ? err_set(loader->err, ERR_NOMEM, "out of memory for rotary frequencies")
                                 : rope_frequencies(rope, width, inverse, loader->err);
    for (uint32_t position = 0; position < stage->options.positions_max && status == 0; position++) {
        rope_row(inverse, width, position, loader->piece);
        status = put(loader, stage->rope, at + 4ull * position * width, loader->piece, 4ull * width);
    }
    free(inverse);
    return status;
}

static int rope_load(const struct loader *loader)
{
    const struct stage *stage = loader->stage;
    const struct model_config *config = &stage->config;
    uint32_t width = config->rotary_dim > 0 ? config->rotary_dim : config->head_dim;
    if (stage->rope == NULL)
        return 0;
    if (table_load(loader, &config->rope, 0) != 0)
        return -1;
    return config->rope_local_set
               ? table_load(loader, &config->rope_local, 4ull * stage->options.positions_max * width)
               : 0;
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
        if (stage->parameters[i].tensor->role != TENSOR_LORA_A)
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

int stage_load(struct stage *stage, const struct weight_source *source, struct err *err)
{
    const struct footprint_shape *s = &stage->model.shape;
    uint64_t widest = s->hidden > s->ffn ? s->hidden : s->ffn;
    widest = widest > s->q_width ? widest : s->q_width;
    uint64_t values = 64 * widest > PIECE_VALUES ? 64 * widest : PIECE_VALUES;
    struct loader loader = {.stage = stage, .source = source, .err = err};
    loader.piece = malloc(4 * values);
    loader.packed = malloc(2 * values);
    int status = loader.piece == NULL || loader.packed == NULL
                     ? err_set(err, ERR_NOMEM, "out of memory for weights in transit")
                     : 0;
    for (uint32_t b = stage->options.block_begin; b < stage->options.block_end && status == 0; b++)
        status = block_load(&loader, b);
    if (status == 0)
        status = rope_load(&loader);
    free(loader.piece);
    free(loader.packed);
    free(loader.absmax);
    free(loader.nested);
    return status == 0 ? adapters_init(stage, err) : -1;
}
