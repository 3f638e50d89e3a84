/* Determines which rows step t takes, and how they are cut into micro-batches.
 *
 * All functions are pure: equal inputs give equal answers on every machine, and no memory grows with the
 * number of rows. The planner's histogram and every worker use these functions, so a job that is resumed on
 * other devices, with another split, sees the same rows.
 *
 * Rows are taken in passes ("epochs") over 0..row_count. With shuffle each pass is another permutation, drawn
 * from a counter-based generator keyed by (seed, pass): a Feistel network over the smallest even-bit domain
 * that holds row_count, applied until it gives a row (Black and Rogaway, "Ciphers with Arbitrary Finite
 * Domains", 2002). Without shuffle a pass is the file order.
 *
 * In a job of steps, step t takes positions t*batch_rows .. (t+1)*batch_rows of the endless sequence of
 * passes, so a batch may begin in one pass and end in the next, and every batch is full. In a job of epochs
 * no batch spans two passes, so the last batch of an epoch may be short. */
#ifndef MOTLEY_MODEL_JOB_ORDER_H
#define MOTLEY_MODEL_JOB_ORDER_H

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"

struct order {
    uint64_t seed;
    bool shuffle;
    uint32_t row_count;  /* >= 1 */
    uint32_t batch_rows; /* >= 1 */
    uint64_t steps;      /* steps in all; 0: those of the epochs */
    uint32_t epochs;     /* not 0: passes end as in a job of epochs */
};

/* Refuses values that the other functions do not handle: ERR_INVALID naming the field. */
int order_check(const struct order *order, struct err *err);

/* Returns the number of steps in the whole job. */
uint64_t order_step_count(const struct order *order);

/* Returns the number of rows of step t: batch_rows, or less at the end of an epoch. Steps beyond the job's
 * end are answered as if the job went on, because a resumed job may go beyond it. */
uint32_t order_step_row_count(const struct order *order, uint64_t step);

/* Writes the row numbers of step t in order to rows_out, which has room for batch_rows. Returns their number,
 * order_step_row_count(step). */
uint32_t order_step_rows(const struct order *order, uint64_t step, uint32_t *rows_out);

/* Returns the number of micro-batches in a batch of 'rows': ceil(rows / micro_batch_rows). A plan has
 * order_micro_batch_count(batch_rows, m) of them; in a short batch the last ones are short or empty. */
uint32_t order_micro_batch_count(uint32_t rows, uint32_t micro_batch_rows);

#endif
