/* Rows are copied next to each other, so that a micro-batch is one contiguous run of ids. */
#include "worker/program/batch.h"

#include <stdlib.h>
#include <string.h>

int batch_init(struct batch *batch, const struct plan *plan, struct err *err)
{
    memset(batch, 0, sizeof(*batch));
    batch->micro_batch_count = plan->micro_batch_count;
    batch->rows_capacity = plan->batch_rows ? plan->batch_rows : 1;
    batch->micro = calloc((size_t)plan->micro_batch_count + 1, sizeof(*batch->micro));
    batch->row_ids = calloc((size_t)batch->rows_capacity + 1, sizeof(*batch->row_ids));
    batch->row_start =
        calloc((size_t)batch->rows_capacity + plan->micro_batch_count + 1, sizeof(*batch->row_start));
    if (!batch->micro || !batch->row_ids || !batch->row_start) {
        batch_fini(batch);
        return err_set(err, ERR_NOMEM, "no memory for a batch of %u rows", plan->batch_rows);
    }
    return 0;
}

void batch_fini(struct batch *batch)
{
    free(batch->micro);
    free(batch->row_ids);
    free(batch->row_start);
    free(batch->ids);
    free(batch->labels);
    memset(batch, 0, sizeof(*batch));
}

static int reserve_tokens(struct batch *batch, uint64_t tokens, struct err *err)
{
    if (tokens <= batch->tokens_capacity)
        return 0;
    if (tokens > SIZE_MAX / sizeof(int32_t))
        return err_set(err, ERR_TOO_BIG, "a batch of %llu tokens is too big", (unsigned long long)tokens);
    free(batch->ids);
    free(batch->labels);
    batch->ids = malloc(tokens * sizeof(*batch->ids));
    batch->labels = malloc(tokens * sizeof(*batch->labels));
    batch->tokens_capacity = batch->ids && batch->labels ? tokens : 0;
    if (batch->tokens_capacity == 0)
        return err_set(err, ERR_NOMEM, "no memory for a batch of %llu tokens", (unsigned long long)tokens);
    return 0;
}

static void point_micro_batches(struct batch *batch, const struct plan *plan, uint32_t count, uint64_t step)
{
    uint64_t token = 0;
    uint32_t *starts = batch->row_start;
    for (uint32_t m = 0; m < plan->micro_batch_count; m++) {
        struct micro_batch *micro = &batch->micro[m];
        uint32_t begin, end;
        plan_micro_batch_rows(plan, m, count, &begin, &end);
        *micro = (struct micro_batch){.rows = end - begin,
                                      .row_ids = batch->row_ids + begin,
                                      .row_start = starts,
                                      .ids = batch->ids + token,
                                      .labels = batch->labels + token,
                                      .step = step,
                                      .index = m};
        /* row_start holds the rows' lengths up to here; replace them by prefix sums */
        uint32_t at = 0;
        for (uint32_t r = 0; r < micro->rows; r++) {
            uint32_t length = starts[r];
            starts[r] = at;
            at += length;
        }
        starts[micro->rows] = at;
        token += at;
        starts += micro->rows + 1;
    }
}

/* Writes the rows' lengths into row_start, leaving one free entry after each micro-batch, and checks the
 * plan's bounds. */
static int batch_measure(struct batch *batch, const struct plan *plan, const struct rows *rows,
                         const uint32_t *numbers, uint32_t count, struct err *err)
{
    uint32_t at = 0;
    batch->tokens = 0;
    for (uint32_t m = 0; m < plan->micro_batch_count; m++, at++) {
        uint32_t begin, end;
        uint64_t tokens = 0;
        plan_micro_batch_rows(plan, m, count, &begin, &end);
        for (uint32_t r = begin; r < end; r++, at++) {
            if (numbers[r] >= rows->count)
                return err_set(err, ERR_INTERNAL, "row %u was asked for, and there are %u", numbers[r],
                               rows->count);
            uint64_t length = rows->offset[numbers[r] + 1] - rows->offset[numbers[r]];
            if (length > plan->sequence_bound)
                return err_set(err, ERR_TOO_BIG, "row %u holds %llu tokens and the plan allows %u",
                               numbers[r], (unsigned long long)length, plan->sequence_bound);
            batch->row_start[at] = (uint32_t)length;
            tokens += length;
        }
        if (tokens > plan->tokens_bound)
            return err_set(err, ERR_TOO_BIG,
                           "micro-batch %u holds %llu tokens and the plan allows %u: resume the job, which "
                           "makes a new plan, or submit it with fewer rows a batch (train.batch_rows)",
                           m, (unsigned long long)tokens, plan->tokens_bound);
        batch->tokens += tokens;
    }
    return 0;
}

int batch_fill(struct batch *batch, const struct plan *plan, const struct rows *rows, const uint32_t *numbers,
               uint32_t count, uint64_t step, struct err *err)
{
    if (count > batch->rows_capacity)
        return err_set(err, ERR_INTERNAL, "a step of %u rows does not fit a plan of %u", count,
                       plan->batch_rows);
    if (batch_measure(batch, plan, rows, numbers, count, err) < 0 ||
        reserve_tokens(batch, batch->tokens, err) < 0)
        return -1;
    batch->rows = count;
    batch->labelled = 0;
    uint64_t token = 0;
    for (uint32_t r = 0; r < count; r++) {
        uint64_t first = rows->offset[numbers[r]], length = rows->offset[numbers[r] + 1] - first;
        batch->row_ids[r] = numbers[r];
        memcpy(batch->ids + token, rows->ids + first, length * sizeof(*batch->ids));
        memcpy(batch->labels + token, rows->labels + first, length * sizeof(*batch->labels));
        for (uint64_t t = 1; t < length; t++)
            batch->labelled += rows->labels[first + t] != ROWS_IGNORE;
        token += length;
    }
    point_micro_batches(batch, plan, count, step);
    return 0;
}

int batch_fill_ids(struct batch *batch, const struct plan *plan, const int32_t *ids, uint32_t count,
                   struct err *err)
{
    if (count > plan->tokens_bound || count > plan->sequence_bound)
        return err_set(err, ERR_TOO_BIG, "a prompt of %u tokens, and the plan allows %u", count,
                       plan->tokens_bound < plan->sequence_bound ? plan->tokens_bound : plan->sequence_bound);
    if (reserve_tokens(batch, count, err) < 0)
        return -1;
    memcpy(batch->ids, ids, count * sizeof(*ids));
    for (uint32_t t = 0; t < count; t++)
        batch->labels[t] = ROWS_IGNORE;
    batch->rows = 1;
    batch->tokens = count;
    batch->labelled = 0;
    batch->row_ids[0] = 0;
    batch->row_start[0] = count;
    point_micro_batches(batch, plan, 1, 0);
    return 0;
}

uint32_t batch_tokens(const struct micro_batch *micro, uint32_t row_begin, uint32_t row_end, uint32_t *before)
{
    if (row_end > micro->rows)
        row_end = micro->rows;
    if (row_begin > row_end)
        row_begin = row_end;
    *before = micro->row_start[row_begin];
    return micro->row_start[row_end] - micro->row_start[row_begin];
}
