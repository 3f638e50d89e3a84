/* Ops on embedding tables and flat arrays. Where rows of a table are added to, threads divide its columns, so
 * that each value is summed in the order of tokens.
 */
#include "engine/cpu/flat.h"

#include <math.h>
#include <string.h>

#include "common/rand.h"
#include "engine/cpu/parts.h"
#include "engine/cpu/values.h"
#include "model/files/gguf.h"

static void embed_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_embed *op = &job->op->embed;
    const int32_t *ids = operand_at(&op->ids);
    const struct kernels *kernels = job->runner->kernels;
    struct err err;
    for (uint64_t i = begin; i < end; i++) {
        float *out = (float *)operand_at(&op->out) + i * op->hidden;
        uint64_t at = (uint64_t)ids[i] * op->hidden;
        if (op->turned)
            for (uint64_t j = 0; j < op->hidden; j++)
                values_read(kernels, &op->table, j * op->vocab + (uint32_t)ids[i], &out[j], 1);
        else if (pack_from_file(op->pack))
            /* cannot fail: these are whole blocks of a supported type */
            (void)tensor_dequantise(pack_type(op->pack),
                                    (const uint8_t *)operand_at(&op->table) + pack_bytes(op->pack, at),
                                    op->hidden, out, &err);
        else
            values_read(kernels, &op->table, at, out, op->hidden);
        if (op->scale != 1.0f)
            kernels->scale(out, op->scale, out, op->hidden);
    }
}

void cpu_embed(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->embed.tokens, ROWS_PER_PART, embed_part);
}

static void embed_backward_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_embed_backward *op = &job->op->embed_backward;
    const int32_t *ids = operand_at(&op->ids);
    const float *dout = operand_at(&op->dout);
    float *dtable = operand_at(&op->dtable);
    for (size_t i = 0; i < op->tokens && op->turned; i++)
        for (size_t j = begin; j < end; j++)
            dtable[j * op->vocab + (uint32_t)ids[i]] += op->scale * dout[i * op->hidden + j];
    for (size_t i = 0; i < op->tokens && !op->turned; i++)
        job->runner->kernels->add(dout + i * op->hidden + begin, op->scale,
                                  dtable + (size_t)ids[i] * op->hidden + begin, end - begin);
}

void cpu_embed_backward(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->embed_backward.hidden, COLUMNS_STRIP, embed_backward_part);
}

/* The row that contains `token`: the last one that begins at or before it. */
static uint32_t flat_row_of(const uint32_t *row_start, uint32_t rows, uint64_t token)
{
    uint32_t low = 0, high = rows;
    while (low + 1 < high) {
        uint32_t middle = low + (high - low) / 2;
        if (row_start[middle] <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Adds noise to x[width], the token at `position` of its row. The sum is in double, so that all devices round
 * the same number. */
static void noise_row(const struct op_embed_noise *op, uint32_t position, uint32_t row_id, uint32_t step,
                      double size, float *x)
{
    const uint32_t key[2] = {(uint32_t)op->seed, (uint32_t)(op->seed >> 32)};
    for (uint32_t i = 0; i < op->width; i += 4) {
        const uint32_t counter[4] = {position, row_id, step, 0xFFFFFu << 12 | i / 4};
        uint32_t numbers[4];
        rand_u32x4(key, counter, numbers);
        for (uint32_t j = 0; j < 4 && i + j < op->width; j++)
            x[i + j] = (float)((double)x[i + j] + size * ((numbers[j] >> 8) * 0x1p-23 - 1.0));
    }
}

static void embed_noise_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_embed_noise *op = &job->op->embed_noise;
    const uint32_t *row_start = operand_at(&op->row_start), *row_ids = operand_at(&op->row_ids);
    uint32_t step = *(const uint32_t *)operand_at(&op->step);
    for (uint64_t i = begin; i < end; i++) {
        uint32_t row = flat_row_of(row_start, op->rows, i), length = row_start[row + 1] - row_start[row];
        double size = (double)op->alpha / sqrt((double)length * op->width);
        noise_row(op, (uint32_t)(i - row_start[row]), row_ids[i], step, size,
                  (float *)operand_at(&op->x) + i * op->width);
    }
}

void cpu_embed_noise(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->embed_noise.tokens, ROWS_PER_PART, embed_noise_part);
}

static void cast_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    enum { AT_ONCE = 512 };
    const struct op_cast *op = &job->op->cast;
    const struct kernels *kernels = job->runner->kernels;
    float wide[AT_ONCE];
    for (; begin < end; begin += AT_ONCE) {
        size_t n = end - begin < AT_ONCE ? end - begin : AT_ONCE;
        if (op->y.dtype == DTYPE_F32) {
            values_read(kernels, &op->x, begin, (float *)operand_at(&op->y) + begin, n);
            continue;
        }
        values_read(kernels, &op->x, begin, wide, n);
        values_write(kernels, wide, &op->y, begin, n);
    }
}

void cpu_cast(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->cast.count, FLAT_PER_PART, cast_part);
}

void cpu_square_sum(struct cpu_runner *runner, const struct op *op)
{
    const float *x = operand_at(&op->square_sum.x);
    double sum = 0, *out = operand_at(&op->square_sum.out);
    for (uint64_t at = 0; at < op->square_sum.count; at += FLAT_PER_PART) {
        uint64_t left = op->square_sum.count - at;
        sum += runner->kernels->square_sum(x + at, left < FLAT_PER_PART ? left : FLAT_PER_PART);
    }
    *out = sum;
}

static void adamw_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_adamw *op = &job->op->adamw;
    const struct adamw_scalars scalars = adamw_scalars_of(&op->rule);
    job->runner->kernels->adamw(
        &scalars, (float *)operand_at(&op->value) + begin, (const float *)operand_at(&op->gradient) + begin,
        (float *)operand_at(&op->moment1) + begin, (float *)operand_at(&op->moment2) + begin, end - begin);
}

void cpu_adamw(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->adamw.count, FLAT_PER_PART, adamw_part);
}
