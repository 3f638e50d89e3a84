/* The index of a checkpoint, which says which file holds which values, with checksums.
 *
 * A line is one JSON object: {"tensor": name, "state": "value", "exp_avg" or "exp_avg_sq", "whole": [rows,
 * columns] ([values] of a vector), "part": [row, column, rows, columns], "values": [first, count], "file":
 * name, "offset": bytes, "sha256": [hex, …]}. From `offset` on the file has f32 values [first, first + count)
 * of the rectangle `part`, little-endian. Each checksum is of the next PIECE_SUM_BYTES of these values. So
 * any range can be read and verified without the rest of a file.
 */
#ifndef MOTLEY_WORKER_CHECKPOINT_PIECES_H
#define MOTLEY_WORKER_CHECKPOINT_PIECES_H

#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/digest.h"
#include "common/err.h"
#include "worker/checkpoint/area.h"

enum {
    PIECE_SUM_BYTES = 4 << 20,   /* bytes covered by one checksum, the least that a read fetches */
    PIECE_FILE_BYTES = 32 << 20, /* most bytes of values in a file, as it is made in memory */
    PIECE_NAME_MAX = 256,
    PIECE_FILE_NAME_MAX = 96
};

struct stored_piece {
    char tensor[PIECE_NAME_MAX];
    enum stage_state state;
    uint32_t whole_rows, whole_columns;
    bool vector; /* the tensor has one dimension; its area has one column */
    struct area area;
    char file[PIECE_FILE_NAME_MAX];
    uint64_t offset;
    uint32_t sum_count;
    uint8_t (*sums)[DIGEST_SIZE]; /* [sum_count] */
};

/* Returns what follows a tensor's name in files and messages for this state: "", ".exp_avg" or
 * ".exp_avg_sq". */
const char *piece_suffix(enum stage_state state);
/* Returns how many sums a piece of `values` values has: one for each PIECE_SUM_BYTES begun. */
uint32_t piece_sum_count(uint64_t values);
/* Computes the checksums of `count` values. */
int piece_sums(const void *values, uint64_t count, uint8_t (*sums)[DIGEST_SIZE], struct err *err);

/* Appends the line of a piece to an index. */
int piece_line_add(struct buf *index, const struct stored_piece *piece, struct err *err);
/* Calls take for each line of an index; the piece is borrowed during the call. ERR_CORRUPT names the line. */
typedef int piece_take_fn(void *arg, const struct stored_piece *piece, struct err *err);
int piece_lines_read(const char *text, size_t size, piece_take_fn *take, void *arg, struct err *err);

#endif
