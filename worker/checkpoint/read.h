/* Reads a checkpoint's values by range from the files that hold them.
 *
 * Each range is verified by the checksums of the index, and memory holds only a few fetched parts, and blocks
 * of small ones. Errors are ERR_CORRUPT and name the tensor, the values and the file.
 */
#ifndef MOTLEY_WORKER_CHECKPOINT_READ_H
#define MOTLEY_WORKER_CHECKPOINT_READ_H

#include <stdbool.h>

#include "worker/checkpoint/pieces.h"
#include "worker/checkpoint/write.h"

/* Copies bytes [offset, offset + size) of a file to dst. */
typedef int piece_fetch_fn(void *arg, const char *file, uint64_t offset, size_t size, void *dst,
                           struct err *err);

struct piece_reader;

/* Makes a reader that gets its bytes from `fetch`. fetch and arg are borrowed until piece_reader_destroy.
 * part_count: how many parts of PIECE_SUM_BYTES stay in memory; at least one for each file that has a part of
 * the same rows. */
int piece_reader_create(piece_fetch_fn *fetch, void *arg, uint32_t part_count, struct piece_reader **out,
                        struct err *err);
void piece_reader_destroy(struct piece_reader *reader);

/* Says whether the reader keeps a piece of an index. A NULL filter keeps all pieces. */
typedef bool piece_filter_fn(void *arg, const struct stored_piece *piece);
/* Adds the lines of an index. piece_reader_ready must follow the last one. */
int piece_reader_add(struct piece_reader *reader, const char *lines, size_t size, piece_filter_fn *filter,
                     void *arg, struct err *err);
/* Orders the added pieces. A piece that was stored twice with equal checksums counts once; ERR_CORRUPT when
 * two pieces overlap otherwise. */
int piece_reader_ready(struct piece_reader *reader, struct err *err);

/* Return the number of pieces that passed the filter, and piece `index` of them. They are ordered by tensor
 * and then by state. */
uint32_t piece_reader_count(const struct piece_reader *reader);
const struct stored_piece *piece_reader_at(const struct piece_reader *reader, uint32_t index);
/* Returns the first piece with this state of a tensor, or NULL. */
const struct stored_piece *piece_reader_find(const struct piece_reader *reader, const char *tensor,
                                             enum stage_state state);

/* A request for values of a tensor. */
struct piece_wanted {
    const char *tensor;
    enum stage_state state;
    uint32_t whole_rows, whole_columns;
    struct area area;
};
/* Checks that all wanted values exist, without fetching any. */
int piece_reader_check(const struct piece_reader *reader, const struct piece_wanted *wanted, struct err *err);
/* Reads the wanted values to dst[area.count]. */
int piece_reader_read(struct piece_reader *reader, const struct piece_wanted *wanted, float *dst,
                      struct err *err);

/* Reads the given states of all of a rank's pieces from the checkpoint: checks first that no value is
 * missing, then loads range by range. */
int pieces_read(struct piece_reader *reader, const struct piece_source *source,
                const enum stage_state *states, uint32_t state_count, struct err *err);

#endif
