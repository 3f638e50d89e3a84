#include "worker/checkpoint/area.h"

#include <string.h>

struct area area_of_piece(const struct shard_piece *piece)
{
    return (struct area){.row = piece->of.row_begin,
                         .column = piece->of.column_begin,
                         .rows = piece->of.rows,
                         .columns = piece->of.columns,
                         .first = piece->first,
                         .count = piece->count};
}

struct area area_whole(uint32_t rows, uint32_t columns)
{
    return (struct area){.rows = rows, .columns = columns, .count = (uint64_t)rows * columns};
}

bool area_equal(const struct area *a, const struct area *b)
{
    return a->row == b->row && a->column == b->column && a->rows == b->rows && a->columns == b->columns &&
           a->first == b->first && a->count == b->count;
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t area_least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t end_of(const struct area *area)
{
    return (int64_t)(area->first + area->count);
}

static bool same_columns(const struct area *a, const struct area *b)
{
    return a->column == b->column && a->columns == b->columns;
}

/* Copies from one area to the other. The n values to copy follow one another in both rectangles, from value i
 * of `from`'s and from value j of `to`'s; values that one of the areas lacks are left out. Returns the number
 * of values copied. */
static uint64_t area_run_copy(const struct area *from, const float *src, int64_t i, const struct area *to,
                              float *dst, int64_t j, int64_t n)
{
    int64_t begin = most(0, most((int64_t)from->first - i, (int64_t)to->first - j));
    int64_t end = area_least(n, area_least(end_of(from) - i, end_of(to) - j));
    if (begin >= end)
        return 0;
    if (src)
        memcpy(dst + (j + begin - (int64_t)to->first), src + (i + begin - (int64_t)from->first),
               (size_t)(end - begin) * sizeof(*dst));
    return (uint64_t)(end - begin);
}

uint64_t area_copy(const struct area *from, const float *src, const struct area *to, float *dst)
{
    if (from->count == 0 || to->count == 0)
        return 0;
    if (same_columns(from, to)) {
        int64_t ahead = ((int64_t)to->row - from->row) * from->columns;
        return ahead >= 0 ? area_run_copy(from, src, ahead, to, dst, 0, INT64_MAX)
                          : area_run_copy(from, src, 0, to, dst, -ahead, INT64_MAX);
    }
    int64_t column = most(from->column, to->column);
    int64_t columns =
        area_least((int64_t)from->column + from->columns, (int64_t)to->column + to->columns) - column;
    int64_t row = most(from->row + (int64_t)(from->first / from->columns),
                       to->row + (int64_t)(to->first / to->columns));
    int64_t last =
        area_least(from->row + (end_of(from) - 1) / from->columns, to->row + (end_of(to) - 1) / to->columns);
    uint64_t copied = 0;
    for (; columns > 0 && row <= last; row++)
        copied += area_run_copy(from, src, (row - from->row) * from->columns + column - from->column, to, dst,
                                (row - to->row) * to->columns + column - to->column, columns);
    return copied;
}

uint64_t area_run(const struct area *from, const struct area *to, uint64_t at)
{
    int64_t row = to->row + (int64_t)(at / to->columns), column = to->column + (int64_t)(at % to->columns);
    int64_t i = (row - from->row) * from->columns + column - from->column;
    bool inside = column >= from->column && column < (int64_t)from->column + from->columns &&
                  row >= from->row && i >= (int64_t)from->first && i < end_of(from);
    if (!inside)
        return at;
    int64_t values = area_least(end_of(from) - i, end_of(to) - (int64_t)at);
    if (!same_columns(from, to))
        values = area_least(
            values,
            area_least((int64_t)from->column + from->columns, (int64_t)to->column + to->columns) - column);
    return at + (uint64_t)values;
}
