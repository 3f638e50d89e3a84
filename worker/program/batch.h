/* The rows of one execution of a program, cut into micro-batches.
 *
 * Plain data. The compute thread owns it while no program runs; all threads may read it while one does.
 */
#ifndef MOTLEY_WORKER_PROGRAM_BATCH_H
#define MOTLEY_WORKER_PROGRAM_BATCH_H

#include <stdint.h>

#include "common/err.h"
#include "engine/stage/stage.h"
#include "model/rows/rows.h"
#include "program/program.h"

struct batch {
    uint32_t rows;              /* rows of all micro-batches together */
    uint64_t tokens, labelled;  /* of all micro-batches together; labelled: positions that have a label */
    uint32_t micro_batch_count; /* the plan's micro_batch_count */
    struct micro_batch *micro;  /* [micro_batch_count]; an empty micro-batch has 0 rows */
    /* the memory that `micro` points into */
    uint32_t *row_ids; /* [rows] number of each row in its data set */
    /* [rows + micro_batch_count] first token of each row, counted within its micro-batch */
    uint32_t *row_start;
    int32_t *ids, *labels;
    uint64_t tokens_capacity;
    uint32_t rows_capacity;
};

/* Allocates room for plan->batch_rows rows. Release with batch_fini. */
int batch_init(struct batch *batch, const struct plan *plan, struct err *err);
void batch_fini(struct batch *batch);

/* Fills the batch with rows numbers[0..count) of `rows` for step `step`. ERR_TOO_BIG when a micro-batch or
 * row exceeds the plan's bounds (the plan was made for other data); ERR_INTERNAL for a row number that `rows`
 * does not have. */
int batch_fill(struct batch *batch, const struct plan *plan, const struct rows *rows, const uint32_t *numbers,
               uint32_t count, uint64_t step, struct err *err);

/* Fills micro-batch 0 with one row of ids without labels, for the programs prefill and generate. */
int batch_fill_ids(struct batch *batch, const struct plan *plan, const int32_t *ids, uint32_t count,
                   struct err *err);

/* Returns the tokens of rows [row_begin, row_end) of a micro-batch and sets *before to the tokens of the rows
 * in front of them. row_end may be PLAN_ROWS_ALL. */
uint32_t batch_tokens(const struct micro_batch *micro, uint32_t row_begin, uint32_t row_end,
                      uint32_t *before);

#endif
