/* Describes which values of a tensor a rank or a file has, and finds the values that two areas share. The
 * functions are pure.
 *
 * A member of a tensor group keeps a rectangle of a matrix's rows and columns; elsewhere the rectangle is the
 * whole matrix. An area is a range of the rectangle's values in the order of its rows; a shard or a file has
 * such a range.
 */
#ifndef MOTLEY_WORKER_CHECKPOINT_AREA_H
#define MOTLEY_WORKER_CHECKPOINT_AREA_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/stage/shard.h"

struct area {
    uint32_t row, column;   /* where the rectangle begins in the whole tensor */
    uint32_t rows, columns; /* rows and columns of the rectangle */
    uint64_t first, count;  /* the area is values [first, first + count) of the rectangle, row by row */
};

/* Returns the area of a rank's piece. */
struct area area_of_piece(const struct shard_piece *piece);
/* Returns the area of all values of a tensor. */
struct area area_whole(uint32_t rows, uint32_t columns);
/* Whether both areas have the same values in the same order. */
bool area_equal(const struct area *a, const struct area *b);

/* Copies the values that both areas have from src to dst, which begin with the first values of `from` and
 * `to`. Returns the number of values copied; with src NULL it only counts them. */
uint64_t area_copy(const struct area *from, const float *src, const struct area *to, float *dst);
/* Returns the end of the run of values, from value `at` of `to`'s rectangle on, that both areas have; `at`
 * when `from` does not have that value. */
uint64_t area_run(const struct area *from, const struct area *to, uint64_t at);

#endif
