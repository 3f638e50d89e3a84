/* A stage's first values: weights streamed in and packed, rotary tables, adapters as peft starts them. A
 * tensor comes in pieces: helpers read, check and pack the next ones while the device's thread writes those
 * that are ready, in order.
 */
#include "engine/stage_private.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "common/rand.h"
#include "engine/ahead.h"
#include "engine/rope.h"
#include "model/nf4.h"

enum { PIECE_VALUES = 1 << 18 }; /* read at once, or one row */

/* Part of a tensor on its way. */
struct piece {
    uint64_t row, end;
    float *values;   /* PIECE_VALUES or one row, the larger */
    uint8_t *packed; /* the same as they are kept */
};

struct loader {
    struct stage *stage;
    const struct weight_source *source;
    struct piece pieces[AHEAD_SLOTS_MAX];
    float *absmax;   /* of the NF4 tensor being read */
    uint8_t *nested; /* the same in 8 bits, then their scales */
    struct err *err;
};

/* One copy of a tensor that is being loaded. */
struct stream {
    struct loader *loader;
    const struct layer_tensor *tensor;
    const char *name;
    struct buffer *buffer;
    uint64_t at;        /* of the copy in the buffer */
    uint64_t step, row; /* rows of a piece; the next one's first */
    bool as_it_is;      /* the file holds the very bytes that are kept */
};

/* An infinity or a NaN has an exponent of ones. Without a branch, so that it is as fast as memory. */
static bool floats_finite(const float *values, uint64_t count)
{
    uint32_t found = 0;
    for (uint64_t i = 0; i < count; i++)
        found |= (half_bits_of(values[i]) & 0x7f800000) == 0x7f800000;
    return found == 0;
}

static bool halves_finite(const uint16_t *values, uint64_t count, uint16_t exponent)
{
    uint16_t found = 0;
    for (uint64_t i = 0; i < count; i++)
        found |= (values[i] & exponent) == exponent;
    return found == 0;
}

static int put(const struct loader *loader, struct buffer *buffer, uint64_t at, const void *bytes,
               uint64_t count)
{
    if (buffer_write(buffer, at, bytes, count, loader->err) != 0)
        return -1;
    return device_sync(loader->stage->device, loader->err);
}

static enum pack_kind kept_as(const struct layer_tensor *tensor)
{
    return tensor->trained ? PACK_F32 : tensor->pack;
}

/* Values [begin, begin + count) of the tensor, in the piece, as they are kept. */
static void piece_pack(const struct stream *stream, const struct piece *piece, uint64_t begin, uint64_t count)
{
    uint16_t *half = (uint16_t *)(void *)piece->packed;
    switch (kept_as(stream->tensor)) {
    case PACK_BF16:
        for (uint64_t i = 0; i < count; i++)
            half[i] = bf16_from_f32(piece->values[i]);
        return;
    case PACK_F16:
        for (uint64_t i = 0; i < count; i++)
            half[i] = f16_from_f32(piece->values[i]);
        return;
    case PACK_NF4:
    case PACK_NF4_DOUBLE:
        nf4_quantise(piece->values, count, piece->packed, stream->loader->absmax + begin / NF4_BLOCK);
        return;
    default:
        return;
    }
}

static bool piece_next(void *context, uint32_t slot)
{
    struct stream *stream = context;
    struct piece *piece = &stream->loader->pieces[slot];
    uint64_t rows = stream->tensor->rows;
    if (stream->row == rows)
        return false;
    piece->row = stream->row;
    piece->end = rows - piece->row < stream->step ? rows : piece->row + stream->step;
    stream->row = piece->end;
    return true;
}

/* On any thread: read, check, pack. */
static int piece_prepare(void *context, uint32_t slot, struct err *err)
{
    const struct stream *stream = context;
    const struct weight_source *source = stream->loader->source;
    const struct piece *piece = &stream->loader->pieces[slot];
    uint64_t columns = stream->tensor->columns, count = (piece->end - piece->row) * columns;
    enum pack_kind pack = kept_as(stream->tensor);
    bool finite;
    if (stream->as_it_is) {
        if (source->read_packed(source->context, stream->name, pack, piece->row, piece->end,
                                (uint32_t)columns, piece->packed, err) != 0)
            return -1;
        finite = halves_finite((const uint16_t *)(const void *)piece->packed, count,
                               pack == PACK_BF16 ? 0x7f80 : 0x7c00);
    } else {
        if (source->read(source->context, stream->name, piece->row, piece->end, piece->values, err) != 0)
            return -1;
        finite = floats_finite(piece->values, count);
    }
    if (!finite)
        return err_set(err, ERR_NOT_FINITE, "tensor %s holds a value that is not finite", stream->name);
    if (!stream->as_it_is)
        piece_pack(stream, piece, piece->row * columns, count);
    return 0;
}

static int piece_put(void *context, uint32_t slot, struct err *err)
{
    const struct stream *stream = context;
    const struct piece *piece = &stream->loader->pieces[slot];
    uint64_t begin = piece->row * stream->tensor->columns, end = piece->end * stream->tensor->columns;
    (void)err; /* it is the loader's */
    switch (kept_as(stream->tensor)) {
    case PACK_BF16:
    case PACK_F16:
        return put(stream->loader, stream->buffer, stream->at + 2 * begin, piece->packed, 2 * (end - begin));
    case PACK_NF4:
    case PACK_NF4_DOUBLE:
        return put(stream->loader, stream->buffer, stream->at + begin / 2, piece->packed,
                   (end - begin + 1) / 2);
    default:
        return put(stream->loader, stream->buffer, stream->at + 4 * begin, piece->values, 4 * (end - begin));
    }
}

static int pieces_load(struct stream *stream)
{
    struct err *err = stream->loader->err;
    uint32_t threads = device_threads(stream->loader->stage->device);
    struct ahead ahead = {.threads = threads < AHEAD_THREADS_MAX ? threads : AHEAD_THREADS_MAX,
                          .context = stream,
                          .next = piece_next,
                          .prepare = piece_prepare,
                          .use = piece_put};
    ahead.slots = ahead.threads + 2;
    if (stream->step < stream->tensor->rows)
        return ahead_run(&ahead, err);
    return piece_next(stream, 0) && (piece_prepare(stream, 0, err) != 0 || piece_put(stream, 0, err) != 0)
               ? -1
               : 0;
}

/* The scales of a tensor that has been quantised, once all of it has been read. */
static int scales_put(const struct loader *loader, const struct layer_tensor *tensor, struct buffer *buffer,
                      uint64_t at, uint64_t values)
{
    uint64_t blocks = nf4_blocks(values);
    if (tensor->pack == PACK_NF4)
        return put(loader, buffer, at + tensor->absmax, loader->absmax, 4 * blocks);
    float *scales = loader->absmax + blocks; /* behind them there is room */
    nf4_nest(loader->absmax, blocks, loader->nested, scales);
    if (put(loader, buffer, at + tensor->absmax, loader->nested, blocks) != 0)
        return -1;
    return put(loader, buffer, at + tensor->scales, scales, 4 * nf4_scales(values));
}

static bool half_as_it_is(const struct weight_source *source, const char *name, enum pack_kind pack)
{
    return (pack == PACK_BF16 || pack == PACK_F16) && source->packing != NULL &&
           source->read_packed != NULL && source->packing(source->context, name) == pack;
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
    bool nf4 = kept_as(tensor) == PACK_NF4 || kept_as(tensor) == PACK_NF4_DOUBLE;
    /* whole blocks of NF4, whatever the columns: multiples of 64 rows, or all of them */
    uint64_t step = PIECE_VALUES / columns > 0 ? PIECE_VALUES / columns : 1;
    step = nf4 && columns % NF4_BLOCK != 0 ? (step > 64 ? step / 64 * 64 : 64) : step;
    char name[LAYER_NAME_MAX];
    layer_tensor_name(&stage->config, block - 1, tensor, copy, name);
    if (nf4) {
        free(loader->absmax);
        free(loader->nested);
        loader->absmax = malloc(4 * (blocks + nf4_scales(values)));
        loader->nested = malloc(blocks);
        if (loader->absmax == NULL || loader->nested == NULL)
            return err_set(loader->err, ERR_NOMEM, "out of memory for the scales of %s", name);
    }
    struct stream stream = {.loader = loader,
                            .tensor = tensor,
                            .name = name,
                            .buffer = buffer,
                            .at = at,
                            .step = step,
                            .as_it_is = half_as_it_is(loader->source, name, kept_as(tensor))};
    if (pieces_load(&stream) != 0)
        return -1;
    return nf4 ? scales_put(loader, tensor, buffer, at, values) : 0;
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
    float *inverse = malloc(4ull * width), *values = loader->pieces[0].values;
    int status = inverse == NULL ? err_set(loader->err, ERR_NOMEM, "out of memory for rotary frequencies")
                                 : rope_frequencies(rope, width, inverse, loader->err);
    for (uint32_t position = 0; position < stage->options.positions_max && status == 0; position++) {
        rope_row(inverse, width, position, values);
        status = put(loader, stage->rope, at + 4ull * position * width, values, 4ull * width);
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
    int status = 0;
    for (uint32_t i = 0; i < AHEAD_SLOTS_MAX && status == 0; i++) { /* resident only where they are used */
        loader.pieces[i].values = malloc(4 * values);
        loader.pieces[i].packed = malloc(2 * values);
        if (loader.pieces[i].values == NULL || loader.pieces[i].packed == NULL)
            status = err_set(err, ERR_NOMEM, "out of memory for weights in transit");
    }
    for (uint32_t b = stage->options.block_begin; b < stage->options.block_end && status == 0; b++)
        status = block_load(&loader, b);
    if (status == 0)
        status = rope_load(&loader);
    for (uint32_t i = 0; i < AHEAD_SLOTS_MAX; i++) {
        free(loader.pieces[i].values);
        free(loader.pieces[i].packed);
    }
    free(loader.absmax);
    free(loader.nested);
    return status == 0 ? adapters_init(stage, err) : -1;
}
