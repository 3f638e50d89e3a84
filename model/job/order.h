/* Which rows step t takes, and how they are cut into micro-batches.
 *
 * Pure: equal inputs give equal answers, on every machine; no memory grows with the number of rows. The
 * planner's histogram and every worker use exactly this, so a job resumed anywhere, on any split, sees the
 * same rows.
 *
 * Rows are taken in passes ("epochs") over 0..row_count. With shuffle each pass is another permutation, drawn
 * from a counter-based generator keyed by (seed, pass): a Feistel network over the smallest even-bit domain
 * that holds row_count, walked until it lands inside (Black and Rogaway, "Ciphers with Arbitrary Finite
 * Domains", 2002). Without shuffle a pass is the file order.
 *
 * By steps: step t takes positions t*batch_rows .. (t+1)*batch_rows of the endless sequence of passes, so a
 * batch may begin in one pass and end in the next, and every batch is full. By epochs: each pass ends with
 * what is left: the last batch of an epoch may be short; no batch spans two passes.
 */
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
    uint64_t steps;      /* exactly one of steps and epochs is not 0 */
    uint32_t epochs;
};

/* Refuse what the other functions could not serve: ERR_INVALID naming the field. */
int order_check(const struct order *order, struct err *err);

/* Steps in the whole job. */
uint64_t order_step_count(const struct order *order);

/* Rows of step t: batch_rows, or less at the end of an epoch. Steps beyond the end are answered as if the job
 * went on (a resumed job may go beyond). */
uint32_t order_step_row_count(const struct order *order, uint64_t step);

/* The row numbers of step t in order, into rows_out[0..order_step_row_count(step)), room for batch_rows.
 * Returns how many were written. */
uint32_t order_step_rows(const struct order *order, uint64_t step, uint32_t *rows_out);

/* Which pass over the rows step t begins in (epoch number, from 0). */
uint64_t order_step_epoch(const struct order *order, uint64_t step);

/* Micro-batches that a batch of 'rows' makes: ceil(rows / micro_batch_rows). A plan holds
 * order_micro_batch_count(batch_rows, m) of them; in a short batch the last ones are short or empty. */
uint32_t order_micro_batch_count(uint32_t rows, uint32_t micro_batch_rows);

/* Micro-batch m of a batch of 'rows': consecutive rows [*begin, *end) of the step's list; empty beyond the
 * end. */
void order_micro_batch(uint32_t rows, uint32_t micro_batch_rows, uint32_t index, uint32_t *begin,
                       uint32_t *end);

#endif
