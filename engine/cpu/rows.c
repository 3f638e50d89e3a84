/* Ops on rows. Rows are independent of each other except in sums over rows. Threads divide those by columns
 * (and losses by rows); terms are always added in the order of rows, whatever the number of threads.
 */
#include "engine/cpu/rows.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/parts.h"
#include "engine/cpu/values.h"

enum {
    STRETCH = 512,            /* values of a row converted to fp32 at once, for operands in 16 bits */
    CROSS_ENTROPY_ROWS = 256, /* rows whose losses are computed before they are added up */
    NORM_VECTORS_MAX = 4096 /* vectors whose norms (norm_of) are stored, in the first thread's scratch memory,
                               until the weight's gradient uses them */
};

void cpu_copy(struct cpu_runner *runner, const struct op *op)
{
    const float *x = operand_at(&op->copy.x);
    float *y = operand_at(&op->copy.y);
    (void)runner;
    for (size_t i = 0; i < op->copy.rows; i++)
        for (size_t v = 0; v < op->copy.vectors; v++)
            memmove(y + i * op->copy.ldy + v * op->copy.vy, x + i * op->copy.ldx + v * op->copy.vx,
                    op->copy.width * sizeof(*y));
}

static void rows_add_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_add *op = &job->op->add;
    const float *x = operand_at(&op->x);
    float *y = operand_at(&op->y);
    for (uint64_t i = begin; i < end; i++)
        job->runner->kernels->add(x + i * op->ldx, op->alpha, y + i * op->ldy, op->width);
}

void cpu_add(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->add.rows, ROWS_PER_PART, rows_add_part);
}

static void bias_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_bias *op = &job->op->bias;
    const float *bias = operand_at(&op->bias);
    float *x = operand_at(&op->x);
    for (uint64_t i = begin; i < end; i++)
        job->runner->kernels->add(bias, 1.0f, x + i * op->ldx, op->width);
}

void cpu_bias(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->bias.rows, ROWS_PER_PART, bias_part);
}

static void softcap_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_softcap *op = &job->op->softcap;
    job->runner->kernels->softcap((float *)operand_at(&op->x) + begin * op->width, (end - begin) * op->width,
                                  1.0f, op->cap);
}

void cpu_softcap(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->softcap.rows, ROWS_PER_PART, softcap_part);
}

static void scale_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_scale *op = &job->op->scale;
    float *x = (float *)operand_at(&op->x) + begin * op->width;
    job->runner->kernels->scale(x, *(const float *)operand_at(&op->factor), x, (end - begin) * op->width);
}

void cpu_scale(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->scale.rows, ROWS_PER_PART, scale_part);
}

static void column_sum_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_column_sum *op = &job->op->column_sum;
    const float *x = operand_at(&op->x);
    float *y = operand_at(&op->y);
    job->runner->kernels->column_sum(x + begin, op->ldx, op->rows, y + begin, end - begin);
}

void cpu_column_sum(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->column_sum.rows == 0 ? 0 : op->column_sum.width, COLUMNS_STRIP,
              column_sum_part);
}

/* Stands for the weight of a norm without one. */
static const float no_weight[NORM_ALONE_MAX];

static const float *weight_of(const struct operand *weight)
{
    return weight->buffer ? operand_at(weight) : no_weight;
}

/* Norms one vector; the result goes to y from value `at` on. */
static void rmsnorm_vector(const struct kernels *kernels, const struct op_rmsnorm *op, const float *x,
                           uint64_t at)
{
    const float *weight = weight_of(&op->weight);
    const float *bias = op->bias.buffer ? operand_at(&op->bias) : NULL;
    const struct norm_of norm = kernels->norm_of(x, op->width, op->eps, op->centred);
    float y[STRETCH];
    if (op->y.dtype == DTYPE_F32) {
        kernels->rmsnorm(x, weight, bias, (float *)operand_at(&op->y) + at, op->width, norm, op->offset);
        return;
    }
    for (uint32_t i = 0; i < op->width; i += STRETCH) {
        uint32_t n = op->width - i < STRETCH ? op->width - i : STRETCH;
        kernels->rmsnorm(x + i, weight + i, bias ? bias + i : NULL, y, n, norm, op->offset);
        values_write(kernels, y, &op->y, at + i, n);
    }
}

static void rmsnorm_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_rmsnorm *op = &job->op->rmsnorm;
    for (uint64_t i = begin; i < end; i++) {
        const float *x = (const float *)operand_at(&op->x) + i * op->ldx;
        for (size_t v = 0; v < op->vectors; v++)
            rmsnorm_vector(job->runner->kernels, op, x + v * op->width, i * op->ldy + v * op->width);
    }
}

void cpu_rmsnorm(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->rmsnorm.rows, ROWS_PER_PART, rmsnorm_part);
}

/* Computes the input's gradient row by row. What the vectors are normed with goes to `extra`, for the
 * weight's gradient. */
static void rmsnorm_backward_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_rmsnorm_backward *op = &job->op->rmsnorm_backward;
    const float *weight = weight_of(&op->weight);
    struct norm_of *norms = job->extra;
    float *all = operand_at(&op->dx);
    for (uint64_t i = begin; i < end; i++) {
        const float *x = (const float *)operand_at(&op->x) + i * op->ldx;
        const float *dy = (const float *)operand_at(&op->dy) + i * op->lddy;
        float *dx = !all ? NULL : all + i * op->lddx;
        for (size_t v = 0; v < op->vectors; v++) {
            size_t at = v * op->width;
            struct norm_of norm =
                job->runner->kernels->rmsnorm_backward(op, x + at, weight, dy + at, !dx ? NULL : dx + at);
            if (norms)
                norms[i * op->vectors + v] = norm;
        }
    }
}

static void norm_weight_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_rmsnorm_backward *op = &job->op->rmsnorm_backward;
    const struct norm_rows rows = {
        .x = (const float *)operand_at(&op->x) + begin,
        .dy = (const float *)operand_at(&op->dy) + begin,
        .norms = job->extra,
        .rows = op->rows,
        .vectors = op->vectors,
        .width = op->width,
        .ldx = op->ldx,
        .lddy = op->lddy,
    };
    job->runner->kernels->norm_weight_sum(&rows, (float *)operand_at(&op->dweight) + begin, end - begin);
}

/* A piece of the op, from `row` on, with as many rows as there is room for inverse norms. */
static struct op norm_rows_of(const struct op *op, uint32_t row)
{
    struct op piece = *op;
    struct op_rmsnorm_backward *o = &piece.rmsnorm_backward;
    uint32_t most = o->vectors < NORM_VECTORS_MAX ? NORM_VECTORS_MAX / o->vectors : 1;
    o->rows = o->rows - row < most ? o->rows - row : most;
    o->x.at += 4ull * row * o->ldx;
    o->dy.at += 4ull * row * o->lddy;
    o->dx.at += 4ull * row * o->lddx;
    return piece;
}

void cpu_rmsnorm_backward(struct cpu_runner *runner, const struct op *op)
{
    const struct op_rmsnorm_backward *o = &op->rmsnorm_backward;
    if (!o->dweight.buffer) {
        run_parts(runner, op, NULL, o->rows, ROWS_PER_PART, rmsnorm_backward_part);
        return;
    }
    bool in_place = o->dx.buffer == o->dy.buffer && o->dx.at == o->dy.at;
    for (uint32_t row = 0; row < o->rows;) {
        struct op piece = norm_rows_of(op, row), norms = piece;
        uint32_t rows = piece.rmsnorm_backward.rows;
        if (in_place) /* the weight's gradient must read dy before dx overwrites it */
            norms.rmsnorm_backward.dx.buffer = NULL;
        run_parts(runner, &norms, runner->scratch, rows, ROWS_PER_PART, rmsnorm_backward_part);
        run_parts(runner, &piece, runner->scratch, o->width, COLUMNS_STRIP, norm_weight_part);
        if (in_place)
            run_parts(runner, &piece, NULL, rows, ROWS_PER_PART, rmsnorm_backward_part);
        row += rows;
    }
}

static void rope_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_rope *op = &job->op->rope;
    const uint32_t *positions = operand_at(&op->positions);
    const float *table = operand_at(&op->table);
    float *x = operand_at(&op->x), sign = op->inverse ? -1.0f : 1.0f;
    size_t half = op->rotary_dim / 2;
    const struct kernels *k = job->runner->kernels;
    for (uint64_t i = begin; i < end; i++) {
        const float *cosines = table + (size_t)positions[i] * op->rotary_dim;
        for (uint32_t head = 0; head < op->heads; head++)
            (op->adjacent ? k->rope_pairs : k->rope)(x + i * op->ldx + (size_t)head * op->head_dim, cosines,
                                                     cosines + half, half, sign);
    }
}

void cpu_rope(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->rope.tokens, ROWS_PER_PART, rope_part);
}

/* Computes the gate for part of a row in 16 bits, converted to fp32 and back. */
static void glu_stretch(const struct kernels *kernels, const struct op_glu *op, uint64_t row, uint32_t i,
                        uint32_t n)
{
    float gate[STRETCH], up[STRETCH], act[STRETCH];
    uint64_t at = row * op_glu_across(&op->form, op->width) + i;
    values_read(kernels, &op->gate_up, at, gate, n);
    if (!op->form.plain)
        values_read(kernels, &op->gate_up, at + op->width, up, n);
    kernels->glu(&op->form, gate, op->form.plain ? NULL : up, act, n);
    values_write(kernels, act, &op->act, row * op->width + i, n);
}

static void glu_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_glu *op = &job->op->glu;
    const struct kernels *kernels = job->runner->kernels;
    bool wide = op->gate_up.dtype == DTYPE_F32 && op->act.dtype == DTYPE_F32;
    for (uint64_t row = begin; row < end; row++) {
        if (wide) {
            const float *gate =
                (const float *)operand_at(&op->gate_up) + row * op_glu_across(&op->form, op->width);
            kernels->glu(&op->form, gate, op->form.plain ? NULL : gate + op->width,
                         (float *)operand_at(&op->act) + row * op->width, op->width);
            continue;
        }
        for (uint32_t i = 0; i < op->width; i += STRETCH)
            glu_stretch(kernels, op, row, i, op->width - i < STRETCH ? op->width - i : STRETCH);
    }
}

void cpu_glu(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->glu.tokens, ROWS_PER_PART, glu_part);
}

/* Computes the gate's gradient for part of a row in 16 bits, converted to fp32 and back. */
static void glu_backward_stretch(const struct kernels *kernels, const struct op_glu_backward *op,
                                 uint64_t row, uint32_t i, uint32_t n)
{
    float gate[STRETCH], up[STRETCH], dact[STRETCH];
    uint64_t at = row * op_glu_across(&op->form, op->width) + i;
    values_read(kernels, &op->dact, row * op->width + i, dact, n);
    values_read(kernels, &op->gate_up, at, gate, n);
    if (!op->form.plain)
        values_read(kernels, &op->gate_up, at + op->width, up, n);
    kernels->glu_backward(&op->form, gate, op->form.plain ? NULL : up, dact, n);
    values_write(kernels, gate, &op->gate_up, at, n);
    if (!op->form.plain)
        values_write(kernels, up, &op->gate_up, at + op->width, n);
}

static void glu_backward_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_glu_backward *op = &job->op->glu_backward;
    const struct kernels *kernels = job->runner->kernels;
    for (uint64_t row = begin; row < end; row++) {
        uint64_t at = row * op_glu_across(&op->form, op->width);
        if (op->gate_up.dtype == DTYPE_F32 && op->dact.dtype == DTYPE_F32) {
            const float *dact = (const float *)operand_at(&op->dact) + row * op->width;
            float *gate = (float *)operand_at(&op->gate_up) + at;
            kernels->glu_backward(&op->form, gate, op->form.plain ? NULL : gate + op->width, dact, op->width);
            continue;
        }
        for (uint32_t i = 0; i < op->width; i += STRETCH)
            glu_backward_stretch(kernels, op, row, i, op->width - i < STRETCH ? op->width - i : STRETCH);
    }
}

void cpu_glu_backward(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->glu_backward.tokens, ROWS_PER_PART, glu_backward_part);
}

/* Runs dropout, or its gradient (where dx may be NULL), on rows [begin, end). */
static void dropout_rows(const struct kernels *kernels, const struct op_dropout *op, bool backward, float *dx,
                         uint64_t begin, uint64_t end)
{
    const uint32_t *positions = operand_at(&op->positions), *row_ids = operand_at(&op->row_ids);
    const float *x = operand_at(&op->x);
    float *y = operand_at(&op->y);
    struct dropout_key key = dropout_key_of(op);
    key.step = *(const uint32_t *)operand_at(&op->step);
    for (uint64_t i = begin; i < end; i++) {
        uint64_t at = i * op->width;
        key.position = positions[i];
        key.row_id = row_ids[i];
        if (backward)
            kernels->dropout_backward(&key, x + at, y + at, !dx ? NULL : dx + at, op->width);
        else
            kernels->dropout(&key, x + at, y + at, op->width);
    }
}

static void dropout_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    dropout_rows(job->runner->kernels, &job->op->dropout, false, NULL, begin, end);
}

void cpu_dropout(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->dropout.tokens, ROWS_PER_PART, dropout_part);
}

static void dropout_backward_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_dropout_backward *op = &job->op->dropout_backward;
    dropout_rows(job->runner->kernels, &op->forward, true, operand_at(&op->dx), begin, end);
}

void cpu_dropout_backward(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->dropout_backward.forward.tokens, ROWS_PER_PART, dropout_backward_part);
}

void cpu_gather_rows(struct cpu_runner *runner, const struct op *op)
{
    const struct op_gather_rows *o = &op->gather_rows;
    const uint32_t *index = operand_at(&o->index);
    const float *x = operand_at(&o->x);
    float *y = operand_at(&o->y);
    (void)runner;
    for (size_t i = 0; i < o->rows; i++)
        memcpy(y + i * o->width, x + (size_t)index[i] * o->width, o->width * sizeof(*y));
}

void cpu_scatter_rows(struct cpu_runner *runner, const struct op *op)
{
    const struct op_scatter_rows *o = &op->scatter_rows;
    const uint32_t *index = operand_at(&o->index);
    const float *x = operand_at(&o->x);
    float *y = operand_at(&o->y);
    memset(y, 0, (size_t)o->y_rows * o->width * sizeof(*y));
    for (size_t i = 0; i < o->rows; i++)
        runner->kernels->scale(x + i * o->width, o->scale, y + (size_t)index[i] * o->width, o->width);
}

static void cross_entropy_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_cross_entropy *op = &job->op->cross_entropy;
    const struct kernels *kernels = job->runner->kernels;
    const int32_t *targets = operand_at(&op->targets);
    double *losses = job->extra;
    const struct cross_entropy_scalars scalars = {
        .smoothing = op->smoothing, .cap = op->cap, .gradient = op->gradient};
    for (uint64_t i = begin; i < end; i++) {
        float *row = (float *)operand_at(&op->logits) + i * op->vocab;
        if (targets[i] < 0) {
            memset(row, 0, op->gradient ? op->vocab * sizeof(*row) : 0);
            losses[i] = 0;
            continue;
        }
        losses[i] = kernels->cross_entropy(&scalars, row, op->vocab, (size_t)targets[i]);
        if (op->gradient && op->gradient_scale != 1.0f)
            kernels->scale(row, op->gradient_scale, row, op->vocab);
    }
}

void cpu_cross_entropy(struct cpu_runner *runner, const struct op *op)
{
    double losses[CROSS_ENTROPY_ROWS] = {0}, *loss = operand_at(&op->cross_entropy.loss);
    struct op piece = *op;
    for (uint32_t row = 0; row < op->cross_entropy.rows; row += CROSS_ENTROPY_ROWS) {
        uint32_t left = op->cross_entropy.rows - row;
        piece.cross_entropy.rows = left < CROSS_ENTROPY_ROWS ? left : CROSS_ENTROPY_ROWS;
        piece.cross_entropy.logits.at = op->cross_entropy.logits.at + 4ull * row * op->cross_entropy.vocab;
        piece.cross_entropy.targets.at = op->cross_entropy.targets.at + 4ull * row;
        run_parts(runner, &piece, losses, piece.cross_entropy.rows, 1, cross_entropy_part);
        for (uint32_t i = 0; i < piece.cross_entropy.rows; i++)
            *loss += losses[i];
    }
}
