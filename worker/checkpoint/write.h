/* Makes the files of a rank's pieces: safetensors files of at most file_bytes of values, one after another,
 * with the lines of the index about each. A file is in memory only while the caller takes it. A piece that is
 * larger than a file is divided among several.
 *
 * In a file a whole parameter has its own name (with .exp_avg or .exp_avg_sq) and shape; a part of one is
 * called NAME@ROW,COLUMN+FIRST and has one dimension.
 */
#ifndef MOTLEY_WORKER_CHECKPOINT_WRITE_H
#define MOTLEY_WORKER_CHECKPOINT_WRITE_H

#include <stdbool.h>

#include "worker/checkpoint/pieces.h"

/* Where pieces are read from and written to: the stages of a rank, or a test's arrays. */
struct piece_source {
    uint32_t (*count)(void *arg);
    struct shard_piece (*at)(void *arg, uint32_t index);
    int (*read)(void *arg, const struct shard_part *part, float *dst, struct err *err);
    int (*write)(void *arg, const struct shard_part *part, const float *src, struct err *err);
    void *arg;
};

struct made_file {
    const char *name;
    const struct buf *bytes, *lines; /* borrowed during the call */
};
typedef int made_file_fn(void *arg, const struct made_file *file, struct err *err);

/* Makes the files PREFIX-0.safetensors, PREFIX-1.safetensors, … with the given states of the pieces that this
 * rank stores, and calls `take` for each file. `number` is the number of the next file. ERR_NOT_FINITE names
 * the tensor. */
struct piece_writer {
    const struct piece_source *source;
    const bool *stores; /* [piece] whether this rank stores it */
    const char *prefix;
    uint32_t number;
    uint64_t file_bytes; /* at most PIECE_FILE_BYTES; a multiple of 1,024 */
    made_file_fn *take;
    void *arg;
};
int pieces_write(struct piece_writer *writer, const enum stage_state *states, uint32_t state_count,
                 struct err *err);

#endif
