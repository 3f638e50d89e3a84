#include "worker/checkpoint/read.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"

enum { WINDOW_VALUES = PIECE_SUM_BYTES / sizeof(float) };

/* Values of a stored piece that were fetched and verified: those that one of the piece's SHA-256 sums covers.
 */
struct fetched_part {
    const struct stored_piece *piece; /* NULL: the entry is empty */
    uint32_t number;
    uint64_t used; /* number of the last use, to find the part that was not used for longest */
    float *values;
};

/* Small pieces are fetched in blocks of their files: an adapter has some thousand pieces of a few KiB, and a
 * request for each would take seconds. */
enum { BLOCK_BYTES = 1 << 20, BLOCKS = 4 };

struct fetched_block {
    const char *file; /* of a piece; NULL: the entry is empty */
    uint64_t begin, end, used;
    uint8_t *bytes; /* [end - begin], not verified */
};

struct piece_reader {
    struct fetched_block blocks[BLOCKS];
    piece_fetch_fn *fetch;
    void *arg;
    struct stored_piece *pieces; /* [count]; ordered by piece_reader_ready */
    size_t count, capacity;
    uint32_t part_count;
    struct fetched_part *parts; /* [part_count] */
    uint64_t uses;
};

int piece_reader_create(piece_fetch_fn *fetch, void *arg, uint32_t part_count, struct piece_reader **out,
                        struct err *err)
{
    struct piece_reader *reader = calloc(1, sizeof(*reader));
    struct fetched_part *parts = calloc(part_count, sizeof(*parts));
    *out = reader;
    if (!reader || !parts) {
        free(reader);
        free(parts);
        *out = NULL;
        return err_set(err, ERR_NOMEM, "no memory for the index of a checkpoint");
    }
    *reader = (struct piece_reader){.fetch = fetch, .arg = arg, .part_count = part_count, .parts = parts};
    return 0;
}

void piece_reader_destroy(struct piece_reader *reader)
{
    if (!reader)
        return;
    for (size_t p = 0; p < reader->count; p++)
        free(reader->pieces[p].sums);
    for (uint32_t p = 0; p < reader->part_count; p++)
        free(reader->parts[p].values);
    for (uint32_t b = 0; b < BLOCKS; b++)
        free(reader->blocks[b].bytes);
    free(reader->pieces);
    free(reader->parts);
    free(reader);
}

/* --- the index --- */

struct index_lines {
    struct piece_reader *reader;
    piece_filter_fn *filter;
    void *arg;
};

static int line_take(void *arg, const struct stored_piece *piece, struct err *err)
{
    struct index_lines *lines = arg;
    struct piece_reader *reader = lines->reader;
    if (lines->filter && !lines->filter(lines->arg, piece))
        return 0;
    if (ARRAY_RESERVE(reader->pieces, reader->capacity, reader->count + 1, err) < 0)
        return -1;
    size_t bytes = piece->sum_count * sizeof(*piece->sums);
    uint8_t(*sums)[DIGEST_SIZE] = malloc(bytes);
    if (!sums)
        return err_set(err, ERR_NOMEM, "no memory for the index of a checkpoint");
    memcpy(sums, piece->sums, bytes);
    reader->pieces[reader->count] = *piece;
    reader->pieces[reader->count++].sums = sums;
    return 0;
}

int piece_reader_add(struct piece_reader *reader, const char *text, size_t size, piece_filter_fn *filter,
                     void *arg, struct err *err)
{
    struct index_lines lines = {reader, filter, arg};
    return piece_lines_read(text, size, line_take, &lines, err);
}

static int read_compare(uint64_t a, uint64_t b)
{
    return a < b ? -1 : a > b;
}

static int by_tensor(const char *tensor, enum stage_state state, const struct stored_piece *b)
{
    int order = strcmp(tensor, b->tensor);
    return order ? order : read_compare(state, b->state);
}

static int by_place(const void *first, const void *second)
{
    const struct stored_piece *a = first, *b = second;
    int order = by_tensor(a->tensor, a->state, b);
    if (!order)
        order = read_compare(a->area.row, b->area.row);
    if (!order)
        order = read_compare(a->area.column, b->area.column);
    if (!order)
        order = read_compare(a->area.first, b->area.first);
    return order ? order : strcmp(a->file, b->file);
}

static bool same_tensor(const struct stored_piece *a, const struct stored_piece *b)
{
    return by_tensor(a->tensor, a->state, b) == 0;
}

/* Whether both pieces have the same values, so that replicas stored them. */
static bool same_values(const struct stored_piece *a, const struct stored_piece *b)
{
    return area_equal(&a->area, &b->area) && a->sum_count == b->sum_count &&
           memcmp(a->sums, b->sums, a->sum_count * sizeof(*a->sums)) == 0;
}

static int read_overlap_check(const struct stored_piece *a, const struct stored_piece *b, struct err *err)
{
    if (a->whole_rows != b->whole_rows || a->whole_columns != b->whole_columns)
        return err_set(err, ERR_CORRUPT, "%s%s is [%u, %u] in %s and [%u, %u] in %s", a->tensor,
                       piece_suffix(a->state), a->whole_rows, a->whole_columns, a->file, b->whole_rows,
                       b->whole_columns, b->file);
    uint64_t common = area_copy(&a->area, NULL, &b->area, NULL);
    if (common == 0)
        return 0;
    return err_set(err, ERR_CORRUPT, "%s and %s both hold %llu of the values of %s%s", a->file, b->file,
                   (unsigned long long)common, a->tensor, piece_suffix(a->state));
}

int piece_reader_ready(struct piece_reader *reader, struct err *err)
{
    size_t out = 0;
    if (reader->count > 0)
        qsort(reader->pieces, reader->count, sizeof(*reader->pieces), by_place);
    for (size_t p = 0; p < reader->count; p++) {
        struct stored_piece *before = out > 0 ? &reader->pieces[out - 1] : NULL, *piece = &reader->pieces[p];
        if (before && same_tensor(before, piece) && same_values(before, piece))
            free(piece->sums);
        else
            reader->pieces[out++] = *piece;
    }
    reader->count = out;
    for (size_t p = 0; p < reader->count; p++)
        for (size_t q = p + 1; q < reader->count && same_tensor(&reader->pieces[p], &reader->pieces[q]); q++)
            if (read_overlap_check(&reader->pieces[p], &reader->pieces[q], err) < 0)
                return -1;
    return 0;
}

uint32_t piece_reader_count(const struct piece_reader *reader)
{
    return (uint32_t)reader->count;
}

const struct stored_piece *piece_reader_at(const struct piece_reader *reader, uint32_t index)
{
    return &reader->pieces[index];
}

const struct stored_piece *piece_reader_find(const struct piece_reader *reader, const char *tensor,
                                             enum stage_state state)
{
    size_t low = 0, high = reader->count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (by_tensor(tensor, state, &reader->pieces[middle]) > 0)
            low = middle + 1;
        else
            high = middle;
    }
    return low < reader->count && by_tensor(tensor, state, &reader->pieces[low]) == 0 ? &reader->pieces[low]
                                                                                      : NULL;
}

/* --- values --- */

/* Narrows [*begin, *end) to what pieces of this file hold. */
static void read_narrow(const struct piece_reader *reader, const char *file, uint64_t *begin, uint64_t *end)
{
    uint64_t first = UINT64_MAX, last = 0;
    for (size_t p = 0; p < reader->count; p++) {
        const struct stored_piece *piece = &reader->pieces[p];
        const uint64_t to = piece->offset + piece->area.count * sizeof(float);
        if (piece->offset >= *end || to <= *begin || strcmp(piece->file, file) != 0)
            continue;
        first = piece->offset < first ? piece->offset : first;
        last = to > last ? to : last;
    }
    *begin = first > *begin ? first : *begin;
    *end = last < *end ? last : *end;
}

/* Copies bytes of a piece's file from the block that has them, which is fetched if it is not in memory. */
static int bytes_get(struct piece_reader *reader, const struct stored_piece *piece, uint64_t offset,
                     size_t size, void *dst, struct err *err)
{
    struct fetched_block *block = &reader->blocks[0];
    uint64_t begin = offset / BLOCK_BYTES * BLOCK_BYTES, end = begin + BLOCK_BYTES;
    if (offset + size > end)
        return reader->fetch(reader->arg, piece->file, offset, size, dst, err);
    for (uint32_t b = 0; b < BLOCKS; b++) {
        struct fetched_block *other = &reader->blocks[b];
        if (other->file && offset >= other->begin && offset + size <= other->end &&
            strcmp(other->file, piece->file) == 0) {
            other->used = ++reader->uses;
            memcpy(dst, other->bytes + (offset - other->begin), size);
            return 0;
        }
        if (other->used < block->used)
            block = other;
    }
    read_narrow(reader, piece->file, &begin, &end);
    block->file = NULL;
    uint8_t *bytes = realloc(block->bytes, end - begin);
    if (!bytes)
        return err_set(err, ERR_NOMEM, "no memory for %s", piece->tensor);
    block->bytes = bytes;
    if (reader->fetch(reader->arg, piece->file, begin, end - begin, bytes, err) < 0)
        return -1;
    *block = (struct fetched_block){piece->file, begin, end, ++reader->uses, bytes};
    memcpy(dst, bytes + (offset - begin), size);
    return 0;
}

/* Returns the part's values. If they are not in memory they are fetched, in place of the part that was not
 * used for longest. */
static int part_get(struct piece_reader *reader, const struct stored_piece *piece, uint32_t number,
                    const float **values, struct err *err)
{
    struct fetched_part *part = &reader->parts[0];
    for (uint32_t p = 0; p < reader->part_count; p++) {
        struct fetched_part *other = &reader->parts[p];
        if (other->piece == piece && other->number == number) {
            other->used = ++reader->uses;
            *values = other->values;
            return 0;
        }
        if (other->used < part->used)
            part = other;
    }
    uint64_t first = (uint64_t)number * WINDOW_VALUES, left = piece->area.count - first;
    uint64_t count = left < WINDOW_VALUES ? left : WINDOW_VALUES;
    uint8_t sum[DIGEST_SIZE];
    part->piece = NULL;
    float *room = realloc(part->values, count * sizeof(*room));
    if (!room)
        return err_set(err, ERR_NOMEM, "no memory for %s", piece->tensor);
    part->values = room;
    if (bytes_get(reader, piece, piece->offset + first * sizeof(*room), count * sizeof(*room), room, err) <
            0 ||
        digest_sha256(room, count * sizeof(*room), sum, err) < 0)
        return err_wrap(err, "%s%s in %s", piece->tensor, piece_suffix(piece->state), piece->file);
    if (memcmp(sum, piece->sums[number], sizeof(sum)) != 0)
        return err_set(err, ERR_CORRUPT, "values %llu to %llu of %s%s in %s are not those that were stored",
                       (unsigned long long)(piece->area.first + first),
                       (unsigned long long)(piece->area.first + first + count), piece->tensor,
                       piece_suffix(piece->state), piece->file);
    part->piece = piece;
    part->number = number;
    part->used = ++reader->uses;
    *values = room;
    return 0;
}

/* Copies the wanted values that a stored piece has. */
static int piece_copy(struct piece_reader *reader, const struct stored_piece *piece,
                      const struct area *wanted, float *dst, struct err *err)
{
    if (area_copy(&piece->area, NULL, wanted, NULL) == 0)
        return 0;
    for (uint32_t n = 0; n < piece->sum_count; n++) {
        const float *values = NULL;
        struct area part = piece->area;
        uint64_t first = (uint64_t)n * WINDOW_VALUES, left = piece->area.count - first;
        part.first += first;
        part.count = left < WINDOW_VALUES ? left : WINDOW_VALUES;
        if (area_copy(&part, NULL, wanted, NULL) == 0)
            continue;
        if (part_get(reader, piece, n, &values, err) < 0)
            return -1;
        (void)area_copy(&part, values, wanted, dst);
    }
    return 0;
}

int piece_reader_check(const struct piece_reader *reader, const struct piece_wanted *wanted, struct err *err)
{
    const char *suffix = piece_suffix(wanted->state);
    const struct stored_piece *first = piece_reader_find(reader, wanted->tensor, wanted->state),
                              *end = reader->pieces + reader->count;
    if (!first)
        return err_set(err, ERR_CORRUPT, "no file holds %s%s", wanted->tensor, suffix);
    if (first->whole_rows != wanted->whole_rows || first->whole_columns != wanted->whole_columns)
        return err_set(err, ERR_CORRUPT, "%s%s in %s has another shape than this model's [%u, %u]",
                       wanted->tensor, suffix, first->file, wanted->whole_rows, wanted->whole_columns);
    const struct area *area = &wanted->area;
    for (uint64_t at = area->first, next; at < area->first + area->count; at = next) {
        next = at;
        for (const struct stored_piece *p = first; next == at && p < end && same_tensor(first, p); p++)
            next = area_run(&p->area, area, at);
        if (next == at)
            return err_set(err, ERR_CORRUPT, "no file holds value [%llu, %llu] of %s%s",
                           (unsigned long long)(area->row + at / area->columns),
                           (unsigned long long)(area->column + at % area->columns), wanted->tensor, suffix);
    }
    return 0;
}

int piece_reader_read(struct piece_reader *reader, const struct piece_wanted *wanted, float *dst,
                      struct err *err)
{
    if (piece_reader_check(reader, wanted, err) < 0)
        return -1;
    const struct stored_piece *first = piece_reader_find(reader, wanted->tensor, wanted->state),
                              *end = reader->pieces + reader->count;
    for (const struct stored_piece *p = first; p < end && same_tensor(first, p); p++)
        if (piece_copy(reader, p, &wanted->area, dst, err) < 0)
            return -1;
    return 0;
}

/* --- a rank's pieces --- */

static struct piece_wanted wanted_of(const struct shard_piece *piece, enum stage_state state)
{
    return (struct piece_wanted){.tensor = piece->of.name,
                                 .state = state,
                                 .whole_rows = piece->of.whole_rows,
                                 .whole_columns = piece->of.whole_columns,
                                 .area = area_of_piece(piece)};
}

static int piece_read(struct piece_reader *reader, const struct piece_source *source, uint32_t index,
                      enum stage_state state, float *window, struct err *err)
{
    struct shard_piece piece = source->at(source->arg, index);
    for (uint64_t first = 0; first < piece.count; first += WINDOW_VALUES) {
        uint64_t left = piece.count - first, count = left < WINDOW_VALUES ? left : WINDOW_VALUES;
        struct piece_wanted wanted = wanted_of(&piece, state);
        struct shard_part part = {.piece = index, .state = state, .first = first, .count = count};
        wanted.area.first += first;
        wanted.area.count = count;
        if (piece_reader_read(reader, &wanted, window, err) < 0 ||
            source->write(source->arg, &part, window, err) < 0)
            return -1;
    }
    return 0;
}

int pieces_read(struct piece_reader *reader, const struct piece_source *source,
                const enum stage_state *states, uint32_t state_count, struct err *err)
{
    uint32_t count = source->count(source->arg);
    for (uint32_t s = 0; s < state_count; s++)
        for (uint32_t p = 0; p < count; p++) {
            struct shard_piece piece = source->at(source->arg, p);
            struct piece_wanted wanted = wanted_of(&piece, states[s]);
            if (piece.count > 0 && piece_reader_check(reader, &wanted, err) < 0)
                return -1;
        }
    float *window = malloc(PIECE_SUM_BYTES);
    int result = window ? 0 : err_set(err, ERR_NOMEM, "no memory for a checkpoint");
    for (uint32_t s = 0; s < state_count; s++)
        for (uint32_t p = 0; p < count && result == 0; p++)
            result = piece_read(reader, source, p, states[s], window, err);
    free(window);
    return result;
}
