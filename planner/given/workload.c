/* Bytes per value, release and checks of workloads. */
#include "planner/given/workload.h"

#include <stdlib.h>
#include <string.h>

#include "model/job/order.h"

#define SEQUENCE_TOKENS_MAX (1u << 20)
#define BATCH_ROWS_MAX (1u << 20)
#define STEP_TOKENS_MAX (1u << 30)

static void names_free(char **names, uint32_t count)
{
    for (uint32_t i = 0; names && i < count; i++)
        free(names[i]);
    free(names);
}

void workload_fini(struct workload *workload)
{
    free(workload->rows);
    free(workload->eval_rows);
    free(workload->routing);
    names_free(workload->devices, workload->device_count);
    names_free(workload->exclude, workload->exclude_count);
    *workload = (struct workload){0};
}

static int workload_rows_check(const struct workload *w, const struct workload_row *rows, uint32_t count,
                               const char *what, struct err *err)
{
    for (uint32_t i = 0; i < count; i++)
        if (rows[i].tokens < 1 || rows[i].tokens > w->sequence_tokens || rows[i].labelled > rows[i].tokens)
            return err_set(err, ERR_INVALID,
                           "%s: row %u holds %u tokens, %u of them learnt; sequence_tokens is %u", what, i,
                           rows[i].tokens, rows[i].labelled, w->sequence_tokens);
    return 0;
}

int workload_check(const struct workload *w, struct err *err)
{
    if (!w->config)
        return err_set(err, ERR_INVALID, "workload: no model");
    if (w->batch_rows == 0 || w->batch_rows > BATCH_ROWS_MAX)
        return err_set(err, ERR_INVALID, "train.batch_rows: %u is not within 1..%u", w->batch_rows,
                       BATCH_ROWS_MAX);
    if (w->sequence_tokens < 1 || w->sequence_tokens > SEQUENCE_TOKENS_MAX)
        return err_set(err, ERR_INVALID, "data.sequence_tokens: %u is not within 1..%u", w->sequence_tokens,
                       SEQUENCE_TOKENS_MAX);
    if ((uint64_t)w->batch_rows * w->sequence_tokens > STEP_TOKENS_MAX)
        return err_set(
            err, ERR_TOO_BIG,
            "train.batch_rows: %u rows of data.sequence_tokens, %u, are more than %u tokens a step",
            w->batch_rows, w->sequence_tokens, STEP_TOKENS_MAX);
    if (w->micro_batch_rows > w->batch_rows)
        return err_set(err, ERR_INVALID, "placement.micro_batch_rows: %u is more than train.batch_rows, %u",
                       w->micro_batch_rows, w->batch_rows);
    if (w->method == METHOD_LORA && (w->lora_rank == 0 || w->target_count == 0))
        return err_set(err, ERR_INVALID, "method: LoRA of rank %u on %u targets", w->lora_rank,
                       w->target_count);
    if (w->place < -1 || w->place >= PLACE_COUNT || w->target_count > WORKLOAD_TARGETS_MAX)
        return err_set(err, ERR_INVALID, "placement.kind: number %d is not known", w->place);
    if (w->prompt_tokens > w->sample_tokens)
        return err_set(err, ERR_INVALID, "sample: a prompt of %u tokens in a cache of %u", w->prompt_tokens,
                       w->sample_tokens);
    if (workload_rows_check(w, w->rows, w->row_count, "data.train", err) < 0)
        return -1;
    return workload_rows_check(w, w->eval_rows, w->eval_row_count, "data.eval", err);
}

uint64_t workload_step_count(const struct workload *workload)
{
    const struct order order = {.row_count = workload->row_count,
                                .batch_rows = workload->batch_rows,
                                .steps = workload->steps,
                                .epochs = workload->epochs};
    if (workload->steps > 0 || workload->row_count == 0)
        return workload->steps;
    return order_step_count(&order);
}

uint32_t workload_rows_most(const struct workload *w)
{
    return w->micro_batch_rows ? w->micro_batch_rows : w->batch_rows;
}

/* In NF4 a value takes 4 bits, and each 64 values have a scale: in fp32, or in 8 bits with an fp32 scale for
 * each 256 scales (Dettmers et al. 2023, section 3). */
double workload_matrix_bytes(const struct workload *w)
{
    static const double bytes[] = {[BASE_FP32] = 4, [BASE_BF16] = 2, [BASE_FP16] = 2, [BASE_NF4] = 0.516};
    if (w->base == BASE_PACKED)
        return w->packed_matrix_bytes;
    return w->base == BASE_NF4 && w->single_quant ? 0.5625 : bytes[w->base];
}

double workload_other_bytes(const struct workload *w)
{
    if (w->base == BASE_PACKED)
        return w->packed_table_bytes;
    return w->base == BASE_FP32 ? 4 : 2;
}

/* Each moment takes 8 bits, with an fp32 scale for each 256 values (Dettmers et al. 2022, 8-bit
 * optimizers). */
double workload_moment_bytes(const struct workload *w)
{
    return w->moments8 ? 2 * (1 + 4.0 / 256) : 8;
}

bool workload_packs(const struct workload *w)
{
    return w->base == BASE_NF4 || w->base == BASE_PACKED;
}

int workload_compute_read(const char *word, enum workload_compute *compute)
{
    for (int i = 0; word && plan_dtype_names[i]; i++) {
        if (strcmp(plan_dtype_names[i], word) == 0) {
            *compute = (enum workload_compute)i;
            return 0;
        }
    }
    return -1;
}

/* An odd hidden size allows boundary tensors in fp32 only (engine/stage/stage.h). */
void workload_compute_set(struct workload *w, enum workload_compute compute)
{
    w->compute = compute;
    w->compute_open = false;
    if (w->boundary_open)
        w->boundary = w->config->hidden % 2 != 0 ? PLAN_F32 : (enum plan_dtype)compute;
}

double workload_value_bytes(const struct workload *w)
{
    return w->compute == COMPUTE_FP32 ? 4 : 2;
}

bool workload_names(char *const *names, uint32_t count, const char *name)
{
    for (uint32_t i = 0; i < count; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return false;
}
