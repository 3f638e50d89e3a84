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
#include "model/dynamic_map.h"
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

/* Rows of `width` values of `bits` each: columns [begin, begin + count) moved together, in place. */
static void columns_gather(void *values, uint64_t rows, uint64_t width, uint64_t begin, uint64_t count,
                           uint32_t bits)
{
    uint8_t *bytes = values;
    for (uint64_t row = 0; row < rows && count < width; row++)
        memmove(bytes + row * count * bits / 8, bytes + (row * width + begin) * bits / 8, count * bits / 8);
}

/* How a copy of a tensor is read. */
struct reading {
    const struct layer_tensor *tensor;
    uint64_t at; /* of the copy, bytes into its area */
    char name[LAYER_NAME_MAX];
};

/* Rows [begin, end) of the file's tensor into the piece. */
static int rows_read(const struct loader *loader, const struct reading *r, uint64_t begin, uint64_t end)
{
    if (loader->source->read(loader->source->context, r->name, begin, end, loader->piece, loader->err) != 0)
        return -1;
    return finite_check(r->name, loader->piece, (end - begin) * r->tensor->whole_columns, loader->err);
}

/* A part of a tensor in NF4: quantised with the blocks of the whole, of which it takes codes and scales. */
static int part_quantise(struct loader *loader, const struct reading *r, uint64_t step)
{
    const struct layer_tensor *t = r->tensor;
    uint64_t wide = t->whole_columns, first = t->row_begin, last = first + t->rows;
    uint64_t values = t->whole_rows * wide, blocks = nf4_blocks(values);
    uint64_t from = t->unnested ? 0 : first, to = t->unnested ? t->whole_rows : last;
    for (uint64_t row = from, end; row < to; row = end) {
        /* pieces end where the part begins, so that each is within it or outside */
        uint64_t edge = row < first ? first : row < last ? last : to;
        end = row + step < edge ? row + step : edge;
        if (rows_read(loader, r, row, end) != 0)
            return -1;
        nf4_quantise(loader->piece, (end - row) * wide, loader->packed,
                     loader->absmax + row * wide / NF4_BLOCK);
        if (row < first || row >= last)
            continue;
        columns_gather(loader->packed, end - row, wide, t->column_begin, t->columns, 4);
        if (put(loader, r->at + (row - first) * t->columns / 2, loader->packed,
                nf4_code_bytes((end - row) * t->columns)) != 0)
            return -1;
    }
    if (t->unnested) {
        float map[DYNAMIC_MAP_SIZE], *scales = loader->absmax + blocks;
        dynamic_map(true, map);
        nf4_nest(loader->absmax, blocks, loader->nested, scales);
        nf4_unnest(map, loader->nested, scales, 0, blocks, loader->absmax);
    }
    float *absmax = loader->absmax + first * wide / NF4_BLOCK;
    if (t->columns < wide)
        columns_gather(absmax, t->rows, wide / NF4_BLOCK, t->column_begin / NF4_BLOCK, t->columns / NF4_BLOCK,
                       32);
    return put(loader, r->at + t->absmax, absmax, 4 * nf4_blocks((uint64_t)t->rows * t->columns));
}

/* The rows of a tensor, in pieces, those alone that are wanted. */
static int rows_load(struct loader *loader, const struct reading *r, uint64_t step, bool all)
{
    const struct layer_tensor *t = r->tensor;
    for (uint64_t row = 0; row < t->rows; row += step) {
        uint64_t end = row + step < t->rows ? row + step : t->rows;
        if (!all && !wanted(loader, r->at + values_bytes(t, row * t->columns),
                            r->at + values_bytes(t, end * t->columns)))
            continue;
        if (rows_read(loader, r, t->row_begin + row, t->row_begin + end) != 0)
            return -1;
        columns_gather(loader->piece, end - row, t->whole_columns, t->column_begin, t->columns, 32);
        if (piece_put(loader, t, r->at, row * t->columns, (end - row) * t->columns) != 0)
            return -1;
    }
    return 0;
}

static int piece_reserve(struct loader *loader, const char *name, uint64_t values)
{
    if (values <= loader->capacity)
        return 0;
    free(loader->piece);
    free(loader->packed);
    loader->piece = malloc(4 * values);
    loader->packed = malloc(2 * values);
    loader->capacity = values;
    return loader->piece == NULL || loader->packed == NULL
               ? err_set(loader->err, ERR_NOMEM, "out of memory for weights of %s in transit", name)
               : 0;
}

/* One copy of a tensor, streamed in pieces. */
static int tensor_load(struct loader *loader, const struct layer_tensor *tensor, uint32_t copy)
{
    uint64_t columns = tensor->whole_columns, values = (uint64_t)tensor->rows * tensor->columns;
    struct reading r = {.tensor = tensor, .at = tensor->at + tensor->stride * copy};
    bool nf4 = is_nf4(tensor), scales = nf4 && scales_wanted(loader, tensor, r.at, values);
    /* whole blocks of NF4, whatever the columns: multiples of 64 rows, or all of them */
    uint64_t step = PIECE_VALUES / columns > 0 ? PIECE_VALUES / columns : 1;
    step = nf4 && columns % NF4_BLOCK != 0 ? (step > 64 ? step / 64 * 64 : 64) : step;
    layer_tensor_name(loader->config, loader->part->block - 1, tensor, copy, r.name);
    if (piece_reserve(loader, r.name, step * columns) != 0 ||
        (nf4 && scales_begin(loader, r.name, tensor->whole_rows * columns) != 0))
        return -1;
    if (nf4 && !layer_tensor_whole(tensor))
        return part_quantise(loader, &r, step);
    if (rows_load(loader, &r, step, scales) != 0)
        return -1;
    return scales ? scales_put(loader, tensor, r.at, values) : 0;
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
    uint64_t wide = tensor->whole_columns, all = tensor->whole_rows * wide, kept = 0;
    double bound = 1.0 / sqrt((double)wide);
    struct rand_stream stream;
    char name[LAYER_NAME_MAX];
    if (!wanted(loader, at, at + 4 * count))
        return 0;
    float *values = malloc(4 * count);
    layer_tensor_name(loader->config, loader->part->block - 1, tensor, copy, name);
    if (values == NULL)
        return err_set(loader->err, ERR_NOMEM, "out of memory for the first values of %s", name);
    rand_stream_init(&stream, loader->seed, name_hash(name));
    for (uint64_t i = 0; i < all && kept < count; i++) {
        float value = (float)((2 * rand_stream_unit(&stream) - 1) * bound);
        uint64_t row = i / wide - tensor->row_begin, column = i % wide - tensor->column_begin;
        if (row < tensor->rows && column < tensor->columns)
            values[kept++] = value;
    }
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
    *loader = (struct loader){
        .device = device, .config = options->config, .seed = options->seed, .source = source, .err = err};
    return piece_reserve(loader, "the model", PIECE_VALUES);
}

void loader_fini(struct loader *loader)
{
    free(loader->piece);
    free(loader->packed);
    free(loader->absmax);
    free(loader->nested);
}
