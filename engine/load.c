/* First values of an area, or of a flat range of it: weights streamed in and packed, adapters as peft starts
 * them; and the rotary tables of a stage. A range takes the bytes that the whole area would have there: what
 * is quantised, is so by the statistics of the whole tensor.
 */
#include "engine/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "common/rand.h"
#include "engine/op.h"
#include "engine/rope.h"
#include "model/nf4.h"

enum { PIECE_VALUES = 1 << 18 }; /* read at once, or one row */

static int finite_check(const char *name, const float *values, uint64_t count, struct err *err)
{
    for (uint64_t i = 0; i < count; i++)
        if (!isfinite(values[i]))
            return err_set(err, ERR_NOT_FINITE, "tensor %s holds a value that is not finite", name);
    return 0;
}

/* `count` bytes that belong at byte `at` of the area, as far as they are wanted. */
static int put(const struct loader *loader, uint64_t at, const void *bytes, uint64_t count)
{
    const struct area_part *part = loader->part;
    uint64_t from = at > part->begin ? at : part->begin, to = at + count < part->end ? at + count : part->end;
    if (from >= to)
        return 0;
    if (buffer_write(part->view.buffer, part->view.at + (from - part->begin),
                     (const uint8_t *)bytes + (from - at), to - from, loader->err) != 0)
        return -1;
    return device_sync(loader->device, loader->err);
}

static bool wanted(const struct loader *loader, uint64_t begin, uint64_t end)
{
    return begin < loader->part->end && end > loader->part->begin;
}

/* Values [begin, begin + count) of a tensor whose copy lies at `at`. */
static int piece_put(const struct loader *loader, const struct layer_tensor *tensor, uint64_t at,
                     uint64_t begin, uint64_t count)
{
    uint16_t *half = (uint16_t *)(void *)loader->packed;
    switch (tensor->trained ? PACK_F32 : tensor->pack) {
    case PACK_BF16:
        for (uint64_t i = 0; i < count; i++)
            half[i] = bf16_from_f32(loader->piece[i]);
        return put(loader, at + 2 * begin, half, 2 * count);
    case PACK_F16:
        for (uint64_t i = 0; i < count; i++)
            half[i] = f16_from_f32(loader->piece[i]);
        return put(loader, at + 2 * begin, half, 2 * count);
    case PACK_NF4:
    case PACK_NF4_DOUBLE:
        nf4_quantise(loader->piece, count, loader->packed, loader->absmax + begin / NF4_BLOCK);
        return put(loader, at + begin / 2, loader->packed, (count + 1) / 2);
    default:
        return put(loader, at + 4 * begin, loader->piece, 4 * count);
    }
}

/* The scales of a tensor that has been quantised, once all of it has been read. */
static int scales_put(const struct loader *loader, const struct layer_tensor *tensor, uint64_t at,
                      uint64_t values)
{
    uint64_t blocks = nf4_blocks(values);
    if (tensor->pack == PACK_NF4)
        return put(loader, at + tensor->absmax, loader->absmax, 4 * blocks);
    float *scales = loader->absmax + blocks; /* behind them there is room */
    nf4_nest(loader->absmax, blocks, loader->nested, scales);
    if (put(loader, at + tensor->absmax, loader->nested, blocks) != 0)
        return -1;
    return put(loader, at + tensor->scales, scales, 4 * nf4_scales(values));
}

/* Bytes that the first `values` of a copy fill, without scales. */
static uint64_t values_bytes(const struct layer_tensor *tensor, uint64_t values)
{
    if (tensor->trained)
        return 4 * values;
    return pack_bytes(tensor->pack, values);
}

static bool is_nf4(const struct layer_tensor *tensor)
{
    return !tensor->trained && (tensor->pack == PACK_NF4 || tensor->pack == PACK_NF4_DOUBLE);
}

/* Bytes of a copy where the scales of NF4 lie; nothing of others. */
static bool scales_wanted(const struct loader *loader, const struct layer_tensor *tensor, uint64_t at,
                          uint64_t values)
{
    uint64_t end = tensor->pack == PACK_NF4 ? tensor->absmax + 4 * nf4_blocks(values)
                                            : tensor->scales + 4 * nf4_scales(values);
    return is_nf4(tensor) && wanted(loader, at + tensor->absmax, at + end);
}

static int scales_begin(struct loader *loader, const char *name, uint64_t values)
{
    free(loader->absmax);
    free(loader->nested);
    loader->absmax = malloc(4 * (nf4_blocks(values) + nf4_scales(values)));
    loader->nested = malloc(nf4_blocks(values));
    if (loader->absmax == NULL || loader->nested == NULL)
        return err_set(loader->err, ERR_NOMEM, "out of memory for the scales of %s", name);
    return 0;
}

/* One copy of a tensor, streamed in pieces, those alone that are wanted. */
static int tensor_load(struct loader *loader, const struct layer_tensor *tensor, uint32_t copy)
{
    uint64_t columns = tensor->columns, values = tensor->rows * columns;
    uint64_t at = tensor->at + tensor->stride * copy;
    bool nf4 = is_nf4(tensor), scales = scales_wanted(loader, tensor, at, values);
    /* whole blocks of NF4, whatever the columns: multiples of 64 rows, or all of them */
    uint64_t step = PIECE_VALUES / columns > 0 ? PIECE_VALUES / columns : 1;
    step = nf4 && columns % NF4_BLOCK != 0 ? (step > 64 ? step / 64 * 64 : 64) : step;
    char name[LAYER_NAME_MAX];
    layer_tensor_name(loader->config, loader->part->block - 1, tensor, copy, name);
    if (nf4 && scales_begin(loader, name, values) != 0)
        return -1;
    for (uint64_t row = 0; row < tensor->rows; row += step) {
        uint64_t end = row + step < tensor->rows ? row + step : tensor->rows, count = (end - row) * columns;
        if (!scales && !wanted(loader, at + values_bytes(tensor, row * columns),
                               at + values_bytes(tensor, end * columns)))
            continue;
        if (loader->source->read(loader->source->context, name, row, end, loader->piece, loader->err) != 0 ||
            finite_check(name, loader->piece, count, loader->err) != 0 ||
            piece_put(loader, tensor, at, row * columns, count) != 0)
            return -1;
    }
    return scales ? scales_put(loader, tensor, at, values) : 0;
}

/* FNV-1a: gives each name a stream of its own. */
static uint64_t name_hash(const char *name)
{
    uint64_t hash = 14695981039346656037ull;
    for (; *name != '\0'; name++)
        hash = (hash ^ (uint8_t)*name) * 1099511628211ull;
    return hash;
}

/* A uniform within 1/sqrt(fan_in), as PyTorch's kaiming_uniform with a = sqrt(5) gives it. (B is zero.) */
static int adapter_init(const struct loader *loader, const struct layer_tensor *tensor, uint32_t copy)
{
    uint64_t count = (uint64_t)tensor->rows * tensor->columns, at = tensor->at + tensor->stride * copy;
    double bound = 1.0 / sqrt((double)tensor->columns);
    struct rand_stream stream;
    char name[LAYER_NAME_MAX];
    if (!wanted(loader, at, at + 4 * count))
        return 0;
    float *values = malloc(4 * count);
    layer_tensor_name(loader->config, loader->part->block - 1, tensor, copy, name);
    if (values == NULL)
        return err_set(loader->err, ERR_NOMEM, "out of memory for the first values of %s", name);
    rand_stream_init(&stream, loader->seed, name_hash(name));
    for (uint64_t i = 0; i < count; i++)
        values[i] = (float)((2 * rand_stream_unit(&stream) - 1) * bound);
    int status = put(loader, at, values, 4 * count);
    free(values);
    return status;
}

static int copy_load(struct loader *loader, const struct layer_tensor *tensor, uint32_t copy)
{
    switch (tensor->role) {
    case TENSOR_LORA_A:
        return adapter_init(loader, tensor, copy);
    case TENSOR_LORA_B:
        return 0;
    default:
        return tensor_load(loader, tensor, copy);
    }
}

int area_load(struct loader *loader, const struct area_part *part)
{
    loader->part = part;
    if (part->begin == part->end)
        return 0;
    if (part->area == AREA_TRAINED &&
        buffer_zero(part->view.buffer, part->view.at, part->end - part->begin, loader->err) != 0)
        return -1;
    for (uint32_t i = 0; i < part->tensors->count; i++) {
        const struct layer_tensor *tensor = &part->tensors->list[i];
        for (uint32_t copy = 0; copy < tensor->copies; copy++)
            if (tensor->trained == (part->area == AREA_TRAINED) && copy_load(loader, tensor, copy) != 0)
                return -1;
    }
    return 0;
}

static int table_load(const struct loader *loader, const struct rope_config *rope, uint32_t positions,
                      uint64_t at)
{
    const struct model_config *config = loader->config;
    uint32_t width = config->rotary_dim > 0 ? config->rotary_dim : config->head_dim;
    float *inverse = malloc(4ull * width);
    int status = inverse == NULL ? err_set(loader->err, ERR_NOMEM, "out of memory for rotary frequencies")
                                 : rope_frequencies(rope, width, inverse, loader->err);
    for (uint32_t position = 0; position < positions && status == 0; position++) {
        rope_row(inverse, width, position, loader->piece);
        status = put(loader, at + 4ull * position * width, loader->piece, 4ull * width);
    }
    free(inverse);
    return status;
}

int rope_load(struct loader *loader, uint32_t positions, struct buffer *rope)
{
    const struct model_config *config = loader->config;
    uint32_t width = config->rotary_dim > 0 ? config->rotary_dim : config->head_dim;
    if (rope == NULL)
        return 0;
    struct area_part part = {.view = {.buffer = rope}, .end = buffer_bytes(rope)};
    loader->part = &part;
    if (table_load(loader, &config->rope, positions, 0) != 0)
        return -1;
    return config->rope_local_set
               ? table_load(loader, &config->rope_local, positions, 4ull * positions * width)
               : 0;
}

int loader_init(struct loader *loader, struct device *device, const struct stage_options *options,
                const struct weight_source *source, struct err *err)
{
    const struct model_config *c = options->config;
    uint64_t widest = c->hidden > c->ffn ? c->hidden : c->ffn, q = (uint64_t)c->heads * c->head_dim;
    widest = widest > c->expert_ffn ? widest : c->expert_ffn;
    widest = widest > q ? widest : q;
    uint64_t values = 64 * widest > PIECE_VALUES ? 64 * widest : PIECE_VALUES;
    *loader =
        (struct loader){.device = device, .config = c, .seed = options->seed, .source = source, .err = err};
    loader->piece = malloc(4 * values);
    loader->packed = malloc(2 * values);
    if (loader->piece != NULL && loader->packed != NULL)
        return 0;
    loader_fini(loader);
    return err_set(err, ERR_NOMEM, "out of memory for weights in transit");
}

void loader_fini(struct loader *loader)
{
    free(loader->piece);
    free(loader->packed);
    free(loader->absmax);
    free(loader->nested);
}
