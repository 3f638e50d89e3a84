#include "worker/checkpoint/write.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/files/safetensors.h"

enum { FILE_ITEMS_MAX = 4096, HEADER_BYTES_MAX = 4 << 20, LINES_BYTES_MAX = 4 << 20 };

/* A range of a piece's values in the file that is being made. */
struct file_item {
    const struct piece_source *source;
    struct shard_piece piece;
    struct shard_part part;
    char name[PIECE_NAME_MAX];
};

struct file_maker {
    struct piece_writer *writer;
    struct file_item *items; /* [FILE_ITEMS_MAX] */
    uint32_t count;
    uint64_t bytes; /* bytes of values */
};

static int item_fill(void *arg, uint64_t offset, size_t size, void *dst, struct err *err)
{
    const struct file_item *item = arg;
    struct shard_part part = item->part;
    const float *values = dst;
    part.first += offset / sizeof(float);
    part.count = size / sizeof(float);
    if (item->source->read(item->source->arg, &part, dst, err) < 0)
        return -1;
    for (uint64_t i = 0; i < part.count; i++)
        if (!isfinite(values[i]))
            return err_set(err, ERR_NOT_FINITE, "%s holds a value that is not finite", item->name);
    return 0;
}

/* Returns the item's values as an area of the whole tensor. */
static struct area item_area(const struct file_item *item)
{
    struct area area = area_of_piece(&item->piece);
    area.first += item->part.first;
    area.count = item->part.count;
    return area;
}

static bool write_is_whole(const struct shard_piece *piece, const struct area *area)
{
    struct area whole = area_whole(piece->of.whole_rows, piece->of.whole_columns);
    return area_equal(area, &whole);
}

static int item_name(struct file_item *item, struct err *err)
{
    struct area area = item_area(item);
    const char *name = item->piece.of.name, *suffix = piece_suffix(item->part.state);
    int length = write_is_whole(&item->piece, &area)
                     ? snprintf(item->name, sizeof(item->name), "%s%s", name, suffix)
                     : snprintf(item->name, sizeof(item->name), "%s%s@%u,%u+%llu", name, suffix, area.row,
                                area.column, (unsigned long long)area.first);
    if (length >= (int)sizeof(item->name))
        return err_set(err, ERR_TOO_BIG, "the parameter name %.64s… is too long", name);
    return 0;
}

static struct safetensors_item item_tensor(struct file_item *item)
{
    struct area area = item_area(item);
    bool matrix = write_is_whole(&item->piece, &area) && !item->piece.of.vector;
    return (struct safetensors_item){.name = item->name,
                                     .type = TENSOR_F32,
                                     .rank = matrix ? 2 : 1,
                                     .shape = {matrix ? area.rows : area.count, matrix ? area.columns : 0},
                                     .fill = item_fill,
                                     .arg = item};
}

static int item_line(const struct file_item *item, const char *file, const struct buf *bytes, uint64_t offset,
                     struct buf *lines, struct err *err)
{
    uint8_t sums[PIECE_FILE_BYTES / PIECE_SUM_BYTES + 1][DIGEST_SIZE];
    struct stored_piece stored = {.state = item->part.state,
                                  .whole_rows = item->piece.of.whole_rows,
                                  .whole_columns = item->piece.of.whole_columns,
                                  .vector = item->piece.of.vector,
                                  .area = item_area(item),
                                  .offset = offset,
                                  .sum_count = piece_sum_count(item->part.count),
                                  .sums = sums};
    snprintf(stored.tensor, sizeof(stored.tensor), "%s", item->piece.of.name);
    snprintf(stored.file, sizeof(stored.file), "%s", file);
    if (piece_sums(bytes->data + offset, item->part.count, sums, err) < 0)
        return -1;
    return piece_line_add(lines, &stored, err);
}

static int file_encode(struct file_maker *maker, const char *name, struct buf *bytes, struct buf *lines,
                       struct err *err)
{
    static const struct safetensors_meta meta = {.key = "format", .value = "pt"};
    struct safetensors_item *tensors = calloc(maker->count, sizeof(*tensors));
    if (!tensors)
        return err_set(err, ERR_NOMEM, "no memory for a checkpoint of %u tensors", maker->count);
    for (uint32_t i = 0; i < maker->count; i++)
        tensors[i] = item_tensor(&maker->items[i]);
    int result = safetensors_encode(tensors, maker->count, &meta, 1, bytes, err);
    free(tensors);
    uint64_t offset = bytes->size - maker->bytes;
    for (uint32_t i = 0; i < maker->count && result == 0; i++) {
        result = item_line(&maker->items[i], name, bytes, offset, lines, err);
        offset += maker->items[i].part.count * sizeof(float);
    }
    return result;
}

static int file_make(struct file_maker *maker, struct err *err)
{
    struct piece_writer *writer = maker->writer;
    struct buf bytes, lines;
    char name[PIECE_FILE_NAME_MAX];
    if (maker->count == 0)
        return 0;
    buf_init(&bytes, PIECE_FILE_BYTES + HEADER_BYTES_MAX);
    buf_init(&lines, LINES_BYTES_MAX);
    snprintf(name, sizeof(name), "%s-%u.safetensors", writer->prefix, writer->number++);
    int result = file_encode(maker, name, &bytes, &lines, err);
    if (result == 0)
        result = writer->take(writer->arg, &(struct made_file){name, &bytes, &lines}, err);
    buf_fini(&bytes);
    buf_fini(&lines);
    maker->count = 0;
    maker->bytes = 0;
    return result;
}

/* Adds one state (value or moment) of a piece to the files, undivided if a file has room for it. */
static int piece_add(struct file_maker *maker, uint32_t index, enum stage_state state, struct err *err)
{
    const struct piece_source *source = maker->writer->source;
    struct shard_piece piece = source->at(source->arg, index);
    const uint64_t file_bytes = maker->writer->file_bytes, most = file_bytes / sizeof(float);
    for (uint64_t first = 0; first < piece.count;) {
        uint64_t left = piece.count - first, count = left < most ? left : most;
        if ((maker->bytes + count * sizeof(float) > file_bytes || maker->count == FILE_ITEMS_MAX) &&
            file_make(maker, err) < 0)
            return -1;
        struct file_item *item = &maker->items[maker->count++];
        item->source = source;
        item->piece = piece;
        item->part = (struct shard_part){.piece = index, .state = state, .first = first, .count = count};
        if (item_name(item, err) < 0)
            return -1;
        maker->bytes += count * sizeof(float);
        first += count;
    }
    return 0;
}

int pieces_write(struct piece_writer *writer, const enum stage_state *states, uint32_t state_count,
                 struct err *err)
{
    const struct piece_source *source = writer->source;
    struct file_maker maker = {.writer = writer, .items = calloc(FILE_ITEMS_MAX, sizeof(*maker.items))};
    int result = maker.items ? 0 : err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    for (uint32_t s = 0; s < state_count; s++)
        for (uint32_t p = 0; p < source->count(source->arg) && result == 0; p++)
            if (writer->stores[p])
                result = piece_add(&maker, p, states[s], err);
    if (result == 0)
        result = file_make(&maker, err);
    free(maker.items);
    return result;
}
