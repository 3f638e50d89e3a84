/* Loads initial values into an area, or into a range of it: weights are read and packed, adapters start as in
 * peft. Also fills the rotary tables. Tensors come in pieces: helper threads read, check and pack the next
 * pieces while the device's thread writes finished ones, in order. A range, or a part of a tensor, gets the
 * same bytes as in the whole: quantisation uses the statistics of whole tensors.
 */
#include "engine/stage/load.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/half.h"
#include "common/hash.h"
#include "common/rand.h"
#include "engine/device/op.h"
#include "engine/stage/rope.h"
#include "model/files/dynamic_map.h"
#include "model/files/nf4.h"

enum { PIECE_VALUES = 1 << 18 }; /* values of one piece, or one row if that is longer */

/* One copy of a tensor while it is loaded. */
struct tensor_stream {
    struct area_loader *loader;
    const struct layer_tensor *tensor;
    char name[LAYER_NAME_MAX];
    uint64_t at;             /* byte of the area at which the copy begins */
    uint64_t step, row, end; /* rows of the file: rows in a piece, first row of the next piece, end */
    bool all;                /* reads all pieces, wanted or not, because their scales are needed */
    bool unchanged;          /* the file's packed bytes are stored unchanged */
    bool nested;             /* the file's NF4 scales are nested and are stored unchanged */
};

/* Infinities and NaNs have an exponent of all ones. The loop has no branch, so it runs at the speed of
 * memory. */
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

/* Write those of `count` bytes at byte `at` of the area that lie in the wanted range. */
static int load_range_write(const struct area_loader *loader, uint64_t at, const void *bytes, uint64_t count)
{
    const struct area_range *range = loader->range;
    uint64_t from = at > range->begin ? at : range->begin,
             to = at + count < range->end ? at + count : range->end;
    if (from >= to)
        return 0;
    if (buffer_write(range->view.buffer, range->view.at + (from - range->begin),
                     (const uint8_t *)bytes + (from - at), to - from, loader->err) != 0)
        return -1;
    return device_sync(loader->device, loader->err);
}

static bool range_touches(const struct area_loader *loader, uint64_t begin, uint64_t end)
{
    return begin < loader->range->end && end > loader->range->begin;
}

static enum pack_kind stored_pack(const struct layer_tensor *tensor)
{
    return tensor->trained ? PACK_F32 : tensor->pack;
}

/* Bytes of the first `values` values of a tensor's copy, without scales. */
static uint64_t values_bytes(const struct layer_tensor *tensor, uint64_t values)
{
    if (tensor->trained)
        return 4 * values;
    return pack_bytes(tensor->pack, values);
}

static bool load_is_nf4(const struct layer_tensor *tensor)
{
    return stored_pack(tensor) == PACK_NF4 || stored_pack(tensor) == PACK_NF4_DOUBLE;
}

/* Of each row of `width` bytes keep bytes [begin, begin + count), moved together in place. */
static void columns_gather(void *values, uint64_t rows, uint64_t width, uint64_t begin, uint64_t count)
{
    uint8_t *bytes = values;
    for (uint64_t row = 0; row < rows && count < width; row++)
        memmove(bytes + row * count, bytes + row * width + begin, count);
}

/* --- pieces --- */

/* Brings a piece to stored form: packed, with only the columns that this stage stores. */
static void piece_pack(const struct tensor_stream *stream, const struct load_piece *piece)
{
    const struct layer_tensor *t = stream->tensor;
    uint64_t wide = t->whole_columns, rows = piece->end - piece->row, count = rows * wide;
    uint16_t *half = (uint16_t *)(void *)piece->packed;
    switch (stored_pack(t)) {
    case PACK_BF16:
        for (uint64_t i = 0; i < count && !stream->unchanged; i++)
            half[i] = bf16_from_f32(piece->values[i]);
        break;
    case PACK_F16:
        for (uint64_t i = 0; i < count && !stream->unchanged; i++)
            half[i] = f16_from_f32(piece->values[i]);
        break;
    case PACK_NF4:
    case PACK_NF4_DOUBLE:
        if (!stream->unchanged)
            nf4_quantise(piece->values, count, piece->packed,
                         stream->loader->absmax + piece->row * wide / NF4_BLOCK);
        break;
    default:
        break;
    }
    void *kept = stored_pack(t) == PACK_F32 ? (void *)piece->values : (void *)piece->packed;
    if (t->columns < wide)
        columns_gather(kept, rows, values_bytes(t, wide), values_bytes(t, t->column_begin),
                       values_bytes(t, t->columns));
}

/* The byte of the area at which a row of the file's tensor is stored. */
static uint64_t load_row_at(const struct tensor_stream *stream, uint64_t row)
{
    const struct layer_tensor *t = stream->tensor;
    return stream->at + values_bytes(t, (row - t->row_begin) * t->columns);
}

static bool row_is_stored(const struct tensor_stream *stream, uint64_t row)
{
    return row >= stream->tensor->row_begin && row < stream->tensor->row_begin + stream->tensor->rows;
}

/* Describes the next wanted piece of the file's tensor. Pieces end where the rows that this stage stores
 * begin or end, so a piece is stored as a whole or not at all. */
static bool load_piece_next(void *context, uint32_t slot)
{
    struct tensor_stream *stream = context;
    struct load_piece *piece = &stream->loader->pieces[slot];
    uint64_t first = stream->tensor->row_begin, last = first + stream->tensor->rows;
    while (stream->row < stream->end) {
        uint64_t edge = stream->row < first ? first : stream->row < last ? last : stream->end;
        piece->row = stream->row;
        piece->end = edge - piece->row < stream->step ? edge : piece->row + stream->step;
        stream->row = piece->end;
        if (stream->all ||
            range_touches(stream->loader, load_row_at(stream, piece->row), load_row_at(stream, piece->end)))
            return true;
    }
    return false;
}

/* Are all `count` values of a piece in the file's packing finite? */
static bool packed_finite(enum pack_kind pack, const uint8_t *packed, uint64_t count)
{
    if (pack == PACK_BF16 || pack == PACK_F16)
        return halves_finite((const uint16_t *)(const void *)packed, count,
                             pack == PACK_BF16 ? 0x7f80 : 0x7c00);
    return pack_finite(pack, packed, count / pack_block(pack));
}

/* Reads codes and absmax of a piece that the file stores in NF4. */
static int piece_read_nf4(const struct tensor_stream *stream, const struct load_piece *piece, bool *finite,
                          struct err *err)
{
    const struct weight_source *source = stream->loader->source;
    uint64_t wide = stream->tensor->whole_columns, begin = piece->row * wide,
             count = (piece->end - piece->row) * wide;
    float *absmax = stream->loader->absmax + begin / NF4_BLOCK;
    if (source->read_nf4(source->context, stream->name, begin, count, piece->packed, absmax, err) != 0)
        return -1;
    *finite = floats_finite(absmax, nf4_blocks(count));
    return 0;
}

/* Runs on any thread: reads, checks and packs a piece. */
static int piece_prepare(void *context, uint32_t slot, struct err *err)
{
    const struct tensor_stream *stream = context;
    const struct weight_source *source = stream->loader->source;
    const struct load_piece *piece = &stream->loader->pieces[slot];
    uint64_t columns = stream->tensor->whole_columns, count = (piece->end - piece->row) * columns;
    enum pack_kind pack = stored_pack(stream->tensor);
    bool finite;
    if (stream->unchanged && load_is_nf4(stream->tensor)) {
        if (piece_read_nf4(stream, piece, &finite, err) != 0)
            return -1;
    } else if (stream->unchanged) {
        if (source->read_packed(source->context, stream->name, pack, piece->row, piece->end,
                                (uint32_t)columns, piece->packed, err) != 0)
            return -1;
        finite = packed_finite(pack, piece->packed, count);
    } else {
        if (source->read(source->context, stream->name, piece->row, piece->end, piece->values, err) != 0)
            return -1;
        finite = floats_finite(piece->values, count);
    }
    if (!finite)
        return err_set(err, ERR_NOT_FINITE, "tensor %s holds a value that is not finite", stream->name);
    piece_pack(stream, piece);
    return 0;
}

static int piece_put(void *context, uint32_t slot, struct err *err)
{
    const struct tensor_stream *stream = context;
    const struct load_piece *piece = &stream->loader->pieces[slot];
    (void)err; /* load_range_write() reports to the loader's err, which is the same object */
    if (!row_is_stored(stream, piece->row))
        return 0; /* the piece was read for its scales only */
    const void *kept = stored_pack(stream->tensor) == PACK_F32 ? (const void *)piece->values : piece->packed;
    return load_range_write(
        stream->loader, load_row_at(stream, piece->row), kept,
        values_bytes(stream->tensor, (piece->end - piece->row) * stream->tensor->columns));
}

static int pieces_load(struct tensor_stream *stream)
{
    struct err *err = stream->loader->err;
    uint32_t threads = device_threads(stream->loader->device);
    struct ahead ahead = {.threads = threads < AHEAD_THREADS_MAX ? threads : AHEAD_THREADS_MAX,
                          .context = stream,
                          .next = load_piece_next,
                          .prepare = piece_prepare,
                          .use = piece_put};
    ahead.slots = ahead.threads + 2;
    if (stream->step < stream->end - stream->row)
        return ahead_run(&ahead, err);
    while (load_piece_next(stream, 0))
        if (piece_prepare(stream, 0, err) != 0 || piece_put(stream, 0, err) != 0)
            return -1;
    return 0;
}

/* --- scales of NF4 --- */

/* Does the wanted range touch the NF4 scales of a tensor's copy? False for other packings. */
static bool scales_are_wanted(const struct area_loader *loader, const struct layer_tensor *tensor,
                              uint64_t at, uint64_t values)
{
    uint64_t end = tensor->pack == PACK_NF4 ? tensor->absmax + 4 * nf4_blocks(values)
                                            : tensor->scales + 4 * nf4_scales(values);
    return load_is_nf4(tensor) && range_touches(loader, at + tensor->absmax, at + end);
}

static int scales_begin(struct area_loader *loader, const char *name, uint64_t values)
{
    free(loader->absmax);
    free(loader->nested);
    loader->absmax = malloc(4 * (nf4_blocks(values) + nf4_scales(values)));
    loader->nested = malloc(nf4_blocks(values));
    if (!loader->absmax || !loader->nested)
        return err_set(loader->err, ERR_NOMEM, "out of memory for the scales of %s", name);
    return 0;
}

/* The nested scales of the whole tensor: from the file, or made from its absmax. */
static int scales_nest(const struct tensor_stream *stream, uint64_t blocks, float *scales)
{
    const struct area_loader *loader = stream->loader;
    const struct weight_source *source = loader->source;
    uint64_t values = (uint64_t)stream->tensor->whole_rows * stream->tensor->whole_columns;
    if (!stream->nested) {
        nf4_nest(loader->absmax, blocks, loader->nested, scales);
        return 0;
    }
    if (source->read_nf4_nested(source->context, stream->name, loader->nested, scales, loader->err) != 0)
        return -1;
    return floats_finite(scales, nf4_scales(values))
               ? 0
               : err_set(loader->err, ERR_NOT_FINITE, "tensor %s holds a scale that is not finite",
                         stream->name);
}

/* Write the scales of an NF4 tensor after all of the tensor was read. A part of a tensor gets the scales of
 * its own blocks; with double quantisation they are rounded as if the whole tensor was stored. */
static int scales_put(const struct tensor_stream *stream)
{
    const struct area_loader *loader = stream->loader;
    const struct layer_tensor *t = stream->tensor;
    uint64_t at = stream->at;
    uint64_t wide = t->whole_columns, blocks = nf4_blocks(t->whole_rows * wide);
    uint64_t own = nf4_blocks((uint64_t)t->rows * t->columns);
    float *absmax = loader->absmax + t->row_begin * wide / NF4_BLOCK;
    float *scales = loader->absmax + blocks; /* scales_begin allocated room behind absmax */
    if ((t->unnested || t->pack == PACK_NF4_DOUBLE) && scales_nest(stream, blocks, scales) != 0)
        return -1;
    if (t->pack == PACK_NF4_DOUBLE)
        return load_range_write(loader, at + t->absmax, loader->nested, blocks) != 0
                   ? -1
                   : load_range_write(loader, at + t->scales, scales, 4 * nf4_scales(t->whole_rows * wide));
    if (t->unnested) {
        float map[DYNAMIC_MAP_SIZE];
        dynamic_map(true, map);
        nf4_unnest(map, loader->nested, scales, 0, blocks, loader->absmax);
    }
    if (t->columns < wide)
        columns_gather(absmax, t->rows, wide / NF4_BLOCK * 4, t->column_begin / NF4_BLOCK * 4,
                       t->columns / NF4_BLOCK * 4);
    return load_range_write(loader, at + t->absmax, absmax, 4 * own);
}

/* --- tensors --- */

/* Decides whether the file's bytes are stored unchanged. Packings from GGUF files allow nothing else. */
static int source_choose(struct tensor_stream *stream)
{
    const struct weight_source *source = stream->loader->source;
    enum pack_kind kept = stored_pack(stream->tensor),
                   has = !source->packing ? PACK_F32 : source->packing(source->context, stream->name);
    if (pack_from_file(kept) && !source->read_packed)
        return err_set(stream->loader->err, ERR_UNSUPPORTED, "tensor %s: its source has no packed weights",
                       stream->name);
    stream->nested = has == PACK_NF4_DOUBLE;
    if (load_is_nf4(stream->tensor))
        stream->unchanged = has == PACK_NF4 || has == PACK_NF4_DOUBLE;
    else
        stream->unchanged = pack_from_file(kept) ||
                            (has == kept && (kept == PACK_BF16 || kept == PACK_F16) && source->read_packed);
    return 0;
}

static void pieces_free(struct area_loader *loader)
{
    for (uint32_t i = 0; i < AHEAD_SLOTS_MAX; i++) {
        free(loader->pieces[i].values);
        free(loader->pieces[i].packed);
    }
}

/* Allocate room for `values` values in each slot; pages become resident only when used. */
static int load_pieces_reserve(struct area_loader *loader, const char *name, uint64_t values)
{
    if (values <= loader->capacity)
        return 0;
    bool there = true;
    pieces_free(loader);
    loader->capacity = values;
    for (uint32_t i = 0; i < AHEAD_SLOTS_MAX; i++) {
        loader->pieces[i].values = malloc(4 * values);
        loader->pieces[i].packed = malloc(2 * values);
        there = there && loader->pieces[i].values && loader->pieces[i].packed;
    }
    return there ? 0 : err_set(loader->err, ERR_NOMEM, "out of memory for weights of %s in transit", name);
}

/* Load one copy of a tensor in pieces. */
static int tensor_load(struct area_loader *loader, const struct layer_tensor *tensor, uint32_t copy)
{
    uint64_t columns = tensor->whole_columns, values = (uint64_t)tensor->rows * tensor->columns;
    struct tensor_stream stream = {.loader = loader,
                                   .tensor = tensor,
                                   .at = tensor->at + tensor->stride * copy,
                                   .row = tensor->row_begin,
                                   .end = (uint64_t)tensor->row_begin + tensor->rows};
    bool nf4 = load_is_nf4(tensor);
    /* NF4 blocks have 64 values, so a piece of 64 rows (or all rows) has whole blocks for any number of
     * columns. */
    uint64_t step = PIECE_VALUES / columns > 0 ? PIECE_VALUES / columns : 1;
    stream.step = nf4 && columns % NF4_BLOCK != 0 ? (step > 64 ? step / 64 * 64 : 64) : step;
    stream.all = nf4 && scales_are_wanted(loader, tensor, stream.at, values);
    if (stream.all && tensor->unnested) {
        stream.row = 0;
        stream.end = tensor->whole_rows;
    }
    layer_tensor_name(loader->config, loader->range->block - 1, tensor, copy, stream.name);
    if (source_choose(&stream) != 0 || load_pieces_reserve(loader, stream.name, stream.step * columns) != 0 ||
        (nf4 && scales_begin(loader, stream.name, tensor->whole_rows * columns) != 0) ||
        pieces_load(&stream) != 0)
        return -1;
    return stream.all ? scales_put(&stream) : 0;
}

/* A is uniform within 1/sqrt(fan_in), like PyTorch's kaiming_uniform with a = sqrt(5), and B is zero; the
 * embedding's A is zero and its B normal. */
static int adapter_init(const struct area_loader *loader, const struct layer_tensor *tensor, uint32_t copy)
{
    uint64_t count = (uint64_t)tensor->rows * tensor->columns, at = tensor->at + tensor->stride * copy;
    uint64_t wide = tensor->whole_columns, all = tensor->whole_rows * wide, kept = 0;
    double bound = 1.0 / sqrt((double)wide);
    struct rand_stream stream;
    char name[LAYER_NAME_MAX];
    if (!range_touches(loader, at, at + 4 * count))
        return 0;
    float *values = malloc(4 * count);
    layer_tensor_name(loader->config, loader->range->block - 1, tensor, copy, name);
    if (!values)
        return err_set(loader->err, ERR_NOMEM, "out of memory for the first values of %s", name);
    /* The hash of its name gives each parameter a random stream of its own. */
    rand_stream_init(&stream, loader->seed, hash_bytes(HASH_BEGIN, name, strlen(name)));
    for (uint64_t i = 0; i < all && kept < count; i++) {
        float value = (float)(tensor->role == TENSOR_LORA_B ? rand_stream_normal(&stream)
                                                            : (2 * rand_stream_unit(&stream) - 1) * bound);
        uint64_t row = i / wide - tensor->row_begin, column = i % wide - tensor->column_begin;
        if (row < tensor->rows && column < tensor->columns)
            values[kept++] = value;
    }
    int status = load_range_write(loader, at, values, 4 * count);
    free(values);
    return status;
}

static int copy_load(struct area_loader *loader, const struct layer_tensor *tensor, uint32_t copy)
{
    switch (tensor->role) {
    case TENSOR_LORA_A:
        return tensor->target == LORA_EMBEDDING ? 0 : adapter_init(loader, tensor, copy);
    case TENSOR_LORA_B:
        return tensor->target == LORA_EMBEDDING ? adapter_init(loader, tensor, copy) : 0;
    default:
        return tensor_load(loader, tensor, copy);
    }
}

int area_load(struct area_loader *loader, const struct layer_tensors *tensors, const struct area_range *range)
{
    loader->range = range;
    if (range->begin == range->end)
        return 0;
    if (range->area == AREA_TRAINED &&
        buffer_zero(range->view.buffer, range->view.at, range->end - range->begin, loader->err) != 0)
        return -1;
    for (uint32_t i = 0; i < tensors->count; i++) {
        const struct layer_tensor *tensor = &tensors->list[i];
        for (uint32_t copy = 0; copy < tensor->copies; copy++)
            if (tensor->trained == (range->area == AREA_TRAINED) && copy_load(loader, tensor, copy) != 0)
                return -1;
    }
    return 0;
}

static int table_load(const struct area_loader *loader, const struct rope_config *rope, uint32_t positions,
                      bool local, uint64_t at)
{
    uint32_t width = model_rotary(loader->config, local);
    float *inverse = malloc(4ull * width);
    int status = !inverse ? err_set(loader->err, ERR_NOMEM, "out of memory for rotary frequencies")
                          : rope_frequencies(rope, width, positions, inverse, loader->err);
    for (uint32_t position = 0; position < positions && status == 0; position++) {
        rope_row(inverse, width, position, rope_scale(rope), loader->pieces[0].values);
        status =
            load_range_write(loader, at + 4ull * position * width, loader->pieces[0].values, 4ull * width);
    }
    free(inverse);
    return status;
}

int rope_load(struct area_loader *loader, uint32_t positions, struct buffer *rope)
{
    const struct model_config *config = loader->config;
    uint64_t width = model_rotary(config, false);
    if (!rope)
        return 0;
    struct area_range range = {.view = {.buffer = rope}, .end = buffer_bytes(rope)};
    loader->range = &range;
    if (table_load(loader, &config->rope, positions, false, 0) != 0)
        return -1;
    return config->rope_local_set
               ? table_load(loader, &config->rope_local, positions, true, 4ull * positions * width)
               : 0;
}

int loader_init(struct area_loader *loader, struct device *device, const struct stage_options *options,
                const struct weight_source *source, struct err *err)
{
    *loader = (struct area_loader){
        .device = device, .config = options->config, .seed = options->seed, .source = source, .err = err};
    if (load_pieces_reserve(loader, "the model", PIECE_VALUES) == 0)
        return 0;
    loader_fini(loader);
    return -1;
}

void loader_fini(struct area_loader *loader)
{
    pieces_free(loader);
    free(loader->absmax);
    free(loader->nested);
}
