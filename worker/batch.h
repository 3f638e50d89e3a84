/* The rows of one execution of a program, cut into its micro-batches.
 *
 * Plain data owned by the compute thread while no program runs; read by all threads while one does. */
#ifndef MOTLEY_WORKER_BATCH_H
#define MOTLEY_WORKER_BATCH_H

#include <stdint.h>

#include "common/err.h"
#include "engine/stage.h"
#include "model/rows.h"
#include "program/program.h"

struct batch {
    uint32_t rows;              /* in all micro-batches */
    uint64_t tokens, labelled;  /* likewise; labelled: positions learnt */
    uint32_t micro_batch_count; /* the plan's */
    struct micro_batch *micro;  /* [micro_batch_count]; empty ones have rows 0 */
    /* what micro points into */
    uint32_t *row_ids;   /* [rows] */
    uint32_t *row_start; /* [rows + micro_batch_count], each micro-batch's from 0 */
    int32_t *ids, *labels;
    uint64_t tokens_capacity;
    uint32_t rows_capacity;
};

/* Memory for plan->batch_rows rows; batch_fini releases. */
int batch_init(struct batch *batch, const struct plan *plan, struct err *err);
void batch_fini(struct batch *batch);

/* Rows numbers[0..count) of `rows`, for step `step`. ERR_TOO_BIG when a micro-batch or row is beyond the
 * plan's bounds (the plan was made for other data); ERR_INTERNAL for a row number beyond the rows. */
int batch_fill(struct batch *batch, const struct plan *plan, const struct rows *rows, const uint32_t *numbers,
               uint32_t count, uint64_t step, struct err *err);

/* One row of ids without labels in micro-batch 0: prefill and generate. */
int batch_fill_ids(struct batch *batch, const struct plan *plan, const int32_t *ids, uint32_t count,
                   struct err *err);

/* Tokens of rows [row_begin, row_end) of a micro-batch (row_end PLAN_ROWS_ALL: all), and of those before. */
uint32_t batch_tokens(const struct micro_batch *micro, uint32_t row_begin, uint32_t row_end,
                      uint32_t *before);

#endif
