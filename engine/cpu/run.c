/* Every op on the CPU: how it is cut into parts for the pool, and which kernel does a row.
 *
 * Rows are independent of each other in every op here except the sums, which are added in a fixed order
 * whatever the number of threads.
 */
#include "engine/cpu/cpu.h"
#include "engine/cpu/exact.h"
#include "engine/cpu/experts.h"
#include "engine/cpu/product.h"

#include <math.h>
#include <string.h>

enum {
    ROWS_PER_PART = 16,       /* of row kernels */
    CROSS_ENTROPY_ROWS = 256, /* whose losses are held before they are added */
    FLAT_PER_PART = 1 << 16   /* values of elementwise ops on flat arrays */
};

struct job {
    struct cpu_runner *runner;
    const struct op *op;
    uint32_t parts;
    double *partial;
};

bool cpu_runs(const struct op *op)
{
    struct operand_use uses[OP_OPERANDS_MAX];
    uint32_t count = op_operands(op, uses);
    for (uint32_t i = 0; i < count; i++) {
        const char *name = uses[i].name;
        enum dtype want = DTYPE_F32;
        if (strcmp(name, "ids") == 0 || strcmp(name, "targets") == 0)
            want = DTYPE_I32;
        else if (strcmp(name, "positions") == 0 || strcmp(name, "row_ids") == 0 ||
                 strcmp(name, "row_start") == 0 || strcmp(name, "index") == 0)
            want = DTYPE_U32;
        else if ((op->kind == OP_CROSS_ENTROPY && strcmp(name, "loss") == 0) ||
                 (op->kind == OP_SQUARE_SUM && strcmp(name, "out") == 0))
            want = DTYPE_F64;
        else if (cpu_experts_own(op->kind))
            want = cpu_experts_dtype(op->kind, name);
        if (uses[i].operand.dtype != want)
            return false;
    }
    uint32_t head_dim = 0, group = 1;
    if (cpu_experts_own(op->kind))
        return cpu_experts_fit(op);
    if (op->kind == OP_ATTENTION) {
        head_dim = op->attention.head_dim;
        group = op->attention.heads / op->attention.kv_heads;
    } else if (op->kind == OP_ATTENTION_BACKWARD) {
        head_dim = op->attention_backward.head_dim;
        group = op->attention_backward.heads / op->attention_backward.kv_heads;
    } else if (op->kind == OP_ATTENTION_CACHED) {
        head_dim = op->attention_cached.head_dim;
        group = op->attention_cached.heads / op->attention_cached.kv_heads;
    }
    return head_dim <= ATTENTION_HEAD_DIM_MAX && group <= ATTENTION_GROUP_MAX;
}

static uint32_t parts_of(uint64_t rows, uint32_t per_part)
{
    return (uint32_t)((rows + per_part - 1) / per_part);
}

/* Rows [begin, end) of part `index`. */
static void part_range(uint64_t rows, uint32_t per_part, uint32_t index, uint64_t *begin, uint64_t *end)
{
    *begin = (uint64_t)index * per_part;
    *end = *begin + per_part < rows ? *begin + per_part : rows;
}

static void run_copy(struct cpu_runner *runner, const struct op *op)
{
    const float *x = operand_at(&op->copy.x);
    float *y = operand_at(&op->copy.y);
    (void)runner;
    for (size_t i = 0; i < op->copy.rows; i++)
        memmove(y + i * op->copy.ldy, x + i * op->copy.ldx, op->copy.width * sizeof *y);
}

static void run_embed(struct cpu_runner *runner, const struct op *op)
{
    const int32_t *ids = operand_at(&op->embed.ids);
    const float *table = operand_at(&op->embed.table);
    float *out = operand_at(&op->embed.out);
    size_t width = op->embed.hidden;
    (void)runner;
    for (size_t i = 0; i < op->embed.tokens; i++)
        memcpy(out + i * width, table + (size_t)ids[i] * width, width * sizeof *out);
}

static void norm_part(void *context, uint32_t index, uint32_t thread)
{
    const struct job *job = context;
    uint64_t begin, end;
    (void)thread;
    if (job->op->kind == OP_RMSNORM) {
        const struct op_rmsnorm *op = &job->op->rmsnorm;
        const float *x = operand_at(&op->x), *weight = operand_at(&op->weight);
        float *y = operand_at(&op->y);
        part_range(op->rows, ROWS_PER_PART, index, &begin, &end);
        for (uint64_t i = begin; i < end; i++)
            job->runner->kernels->rmsnorm(x + i * op->width, weight, y + i * op->width, op->width, op->eps);
        return;
    }
    const struct op_rmsnorm_backward *op = &job->op->rmsnorm_backward;
    const float *x = operand_at(&op->x), *weight = operand_at(&op->weight), *dy = operand_at(&op->dy);
    float *dx = operand_at(&op->dx);
    part_range(op->rows, ROWS_PER_PART, index, &begin, &end);
    for (uint64_t i = begin; i < end; i++)
        job->runner->kernels->rmsnorm_backward(x + i * op->width, weight, dy + i * op->width,
                                               dx + i * op->width, op->width, op->eps, op->accumulate);
}

static void rope_part(void *context, uint32_t index, uint32_t thread)
{
    const struct job *job = context;
    const struct op_rope *op = &job->op->rope;
    const uint32_t *positions = operand_at(&op->positions);
    const float *table = operand_at(&op->table);
    float *x = operand_at(&op->x), sign = op->inverse ? -1.0f : 1.0f;
    size_t half = op->head_dim / 2;
    uint64_t begin, end;
    (void)thread;
    part_range(op->tokens, ROWS_PER_PART, index, &begin, &end);
    for (uint64_t i = begin; i < end; i++) {
        const float *cosines = table + (size_t)positions[i] * op->head_dim;
        for (uint32_t head = 0; head < op->heads; head++)
            job->runner->kernels->rope(x + i * op->ldx + (size_t)head * op->head_dim, cosines, cosines + half,
                                       half, sign);
    }
}

static void swiglu_part(void *context, uint32_t index, uint32_t thread)
{
    const struct job *job = context;
    const struct kernels *kernels = job->runner->kernels;
    uint64_t begin, end;
    (void)thread;
    if (job->op->kind == OP_GLU) {
        const struct op_glu *op = &job->op->glu;
        const float *gate_up = operand_at(&op->gate_up);
        float *act = operand_at(&op->act);
        part_range(op->tokens, ROWS_PER_PART, index, &begin, &end);
        for (uint64_t i = begin; i < end; i++) {
            const float *gate = gate_up + i * 2 * op->width;
            kernels->swiglu(gate, gate + op->width, act + i * op->width, op->width);
        }
        return;
    }
    const struct op_glu_backward *op = &job->op->glu_backward;
    float *gate_up = operand_at(&op->gate_up);
    const float *dact = operand_at(&op->dact);
    part_range(op->tokens, ROWS_PER_PART, index, &begin, &end);
    for (uint64_t i = begin; i < end; i++) {
        float *gate = gate_up + i * 2 * op->width;
        kernels->swiglu_backward(gate, gate + op->width, dact + i * op->width, op->width);
    }
}

static struct dropout_key dropout_key_of(float p, uint64_t seed, uint64_t step, uint32_t layer,
                                         uint32_t target)
{
    double kept = floor((1.0 - (double)p) * 65536.0 + 0.5);
    return (struct dropout_key){
        .key = {(uint32_t)seed, (uint32_t)(seed >> 32)},
        .step = (uint32_t)step,
        .site = layer << 20 | target << 16,
        .keep_last = (uint16_t)(kept < 1 ? 0 : kept - 1),
        .scale = 1.0f / (1.0f - p),
    };
}

static void dropout_part(void *context, uint32_t index, uint32_t thread)
{
    const struct job *job = context;
    const struct op_dropout *op = &job->op->dropout;
    const uint32_t *positions = operand_at(&op->positions), *row_ids = operand_at(&op->row_ids);
    const float *x = operand_at(&op->x);
    float *y = operand_at(&op->y);
    struct dropout_key key = dropout_key_of(op->p, op->seed, op->step, op->layer, op->target);
    uint64_t begin, end;
    (void)thread;
    part_range(op->tokens, ROWS_PER_PART, index, &begin, &end);
    for (uint64_t i = begin; i < end; i++) {
        key.position = positions[i];
        key.row_id = row_ids[i];
        job->runner->kernels->dropout(&key, x + i * op->width, y + i * op->width, op->width);
    }
}

static void dropout_backward_part(void *context, uint32_t index, uint32_t thread)
{
    const struct job *job = context;
    const struct op_dropout_backward *op = &job->op->dropout_backward;
    const uint32_t *positions = operand_at(&op->positions), *row_ids = operand_at(&op->row_ids);
    const float *x = operand_at(&op->x);
    float *t = operand_at(&op->t), *dx = operand_at(&op->dx);
    struct dropout_key key = dropout_key_of(op->p, op->seed, op->step, op->layer, op->target);
    uint64_t begin, end;
    (void)thread;
    part_range(op->tokens, ROWS_PER_PART, index, &begin, &end);
    for (uint64_t i = begin; i < end; i++) {
        key.position = positions[i];
        key.row_id = row_ids[i];
        job->runner->kernels->dropout_backward(&key, x + i * op->width, t + i * op->width,
                                               dx == NULL ? NULL : dx + i * op->width, op->width);
    }
}

static void run_gather(struct cpu_runner *runner, const struct op *op)
{
    const struct op_gather_rows *o = &op->gather_rows;
    const uint32_t *index = operand_at(&o->index);
    const float *x = operand_at(&o->x);
    float *y = operand_at(&o->y);
    (void)runner;
    for (size_t i = 0; i < o->rows; i++)
        memcpy(y + i * o->width, x + (size_t)index[i] * o->width, o->width * sizeof *y);
}

static void run_scatter(struct cpu_runner *runner, const struct op *op)
{
    const struct op_scatter_rows *o = &op->scatter_rows;
    const uint32_t *index = operand_at(&o->index);
    const float *x = operand_at(&o->x);
    float *y = operand_at(&o->y);
    memset(y, 0, (size_t)o->y_rows * o->width * sizeof *y);
    for (size_t i = 0; i < o->rows; i++)
        runner->kernels->scale(x + i * o->width, o->scale, y + (size_t)index[i] * o->width, o->width);
}

static void cross_entropy_part(void *context, uint32_t index, uint32_t thread)
{
    struct job *job = context;
    const struct op_cross_entropy *op = &job->op->cross_entropy;
    const int32_t *targets = operand_at(&op->targets);
    float *logits = operand_at(&op->logits);
    (void)thread;
    job->partial[index] = job->runner->kernels->cross_entropy(logits + (size_t)index * op->vocab, op->vocab,
                                                              (size_t)targets[index], op->gradient);
}

static void run_cross_entropy(struct cpu_runner *runner, const struct op *op)
{
    double losses[CROSS_ENTROPY_ROWS] = {0}, *loss = operand_at(&op->cross_entropy.loss);
    struct op piece = *op;
    for (uint32_t row = 0; row < op->cross_entropy.rows; row += CROSS_ENTROPY_ROWS) {
        uint32_t left = op->cross_entropy.rows - row;
        piece.cross_entropy.rows = left < CROSS_ENTROPY_ROWS ? left : CROSS_ENTROPY_ROWS;
        piece.cross_entropy.logits.at = op->cross_entropy.logits.at + 4ull * row * op->cross_entropy.vocab;
        piece.cross_entropy.targets.at = op->cross_entropy.targets.at + 4ull * row;
        struct job job = {.runner = runner, .op = &piece, .partial = losses};
        pool_run(runner->pool, piece.cross_entropy.rows, cross_entropy_part, &job);
        for (uint32_t i = 0; i < piece.cross_entropy.rows; i++)
            *loss += losses[i];
    }
}

static void run_square_sum(struct cpu_runner *runner, const struct op *op)
{
    const float *x = operand_at(&op->square_sum.x);
    double sum = 0, *out = operand_at(&op->square_sum.out);
    for (uint64_t at = 0; at < op->square_sum.count; at += FLAT_PER_PART) {
        uint64_t left = op->square_sum.count - at;
        sum += runner->kernels->square_sum(x + at, left < FLAT_PER_PART ? left : FLAT_PER_PART);
    }
    *out = sum;
}

static void adamw_part(void *context, uint32_t index, uint32_t thread)
{
    const struct job *job = context;
    const struct op_adamw *op = &job->op->adamw;
    const struct adamw_scalars scalars = {
        .decay = (float)(1.0 - op->learning_rate * op->weight_decay),
        .beta1 = (float)op->beta1,
        .beta2 = (float)op->beta2,
        .one_minus_beta1 = (float)(1.0 - op->beta1),
        .one_minus_beta2 = (float)(1.0 - op->beta2),
        .inverse_root_correction2 = (float)(1.0 / sqrt(op->bias_correction2)),
        .eps = (float)op->eps,
        .step_size = (float)(op->learning_rate / op->bias_correction1),
        .grad_scale = (float)op->grad_scale,
    };
    uint64_t begin, end;
    (void)thread;
    part_range(op->count, FLAT_PER_PART, index, &begin, &end);
    job->runner->kernels->adamw(
        &scalars, (float *)operand_at(&op->value) + begin, (const float *)operand_at(&op->gradient) + begin,
        (float *)operand_at(&op->moment1) + begin, (float *)operand_at(&op->moment2) + begin, end - begin);
}

static void run_rows(struct cpu_runner *runner, const struct op *op, uint64_t rows, uint32_t per_part,
                     void (*part)(void *, uint32_t, uint32_t))
{
    struct job job = {.runner = runner, .op = op, .parts = parts_of(rows, per_part)};
    pool_run(runner->pool, job.parts, part, &job);
}

int cpu_run(struct cpu_runner *runner, const struct op *op, struct err *err)
{
    if (op->exact && cpu_run_exact(runner, op))
        return 0;
    switch (op->kind) {
    case OP_GEMM:
        cpu_gemm(runner, op);
        break;
    case OP_COPY:
        run_copy(runner, op);
        break;
    case OP_EMBED:
        run_embed(runner, op);
        break;
    case OP_RMSNORM:
        run_rows(runner, op, op->rmsnorm.rows, ROWS_PER_PART, norm_part);
        break;
    case OP_RMSNORM_BACKWARD:
        run_rows(runner, op, op->rmsnorm_backward.rows, ROWS_PER_PART, norm_part);
        break;
    case OP_ROPE:
        run_rows(runner, op, op->rope.tokens, ROWS_PER_PART, rope_part);
        break;
    case OP_ATTENTION:
        cpu_attention(runner, &op->attention);
        break;
    case OP_ATTENTION_BACKWARD:
        cpu_attention_backward(runner, &op->attention_backward);
        break;
    case OP_ATTENTION_CACHED:
        cpu_attention_cached(runner, &op->attention_cached);
        break;
    case OP_GLU:
        run_rows(runner, op, op->glu.tokens, ROWS_PER_PART, swiglu_part);
        break;
    case OP_GLU_BACKWARD:
        run_rows(runner, op, op->glu_backward.tokens, ROWS_PER_PART, swiglu_part);
        break;
    case OP_DROPOUT:
        run_rows(runner, op, op->dropout.tokens, ROWS_PER_PART, dropout_part);
        break;
    case OP_DROPOUT_BACKWARD:
        run_rows(runner, op, op->dropout_backward.tokens, ROWS_PER_PART, dropout_backward_part);
        break;
    case OP_GATHER_ROWS:
        run_gather(runner, op);
        break;
    case OP_SCATTER_ROWS:
        run_scatter(runner, op);
        break;
    case OP_CROSS_ENTROPY:
        run_cross_entropy(runner, op);
        break;
    case OP_SQUARE_SUM:
        run_square_sum(runner, op);
        break;
    case OP_ADAMW:
        run_rows(runner, op, op->adamw.count, FLAT_PER_PART, adamw_part);
        break;
    case OP_ADAMW8:
    case OP_ADD:
    case OP_CAST:
    case OP_UNPACK:
    case OP_BIAS:
    case OP_COLUMN_SUM:
    case OP_EMBED_BACKWARD:
    case OP_EMBED_NOISE:
    case OP_SOFTCAP:
    case OP_KINDS:
        break;
    case OP_GEMM_GROUPED:
    case OP_ROUTE:
    case OP_ROUTE_BACKWARD:
    case OP_ROUTE_SORT:
    case OP_ROUTER_LOSS:
    case OP_COMBINE:
    case OP_COMBINE_BACKWARD:
        return cpu_run_experts(runner, op, err);
    }
    return 0;
}
