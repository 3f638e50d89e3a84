/* The definitions of the ops, written down in double. */
#include "engine/cpu/exact.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/values.h"

static double value_get(const struct kernels *kernels, const struct operand *operand, size_t at)
{
    float x;
    values_read(kernels, operand, at, &x, 1);
    return (double)x;
}

static void value_set(const struct kernels *kernels, const struct operand *operand, size_t at, double x)
{
    float once = (float)x;
    values_write(kernels, &once, operand, at, 1);
}

static double inverse_rms(const float *x, size_t n, double eps)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return 1.0 / sqrt(sum / (double)n + eps);
}

/* eps comes as a float; what was meant is the decimal number. */
static double decimal(float eps)
{
    double scale = pow(10.0, 8 - floor(log10((double)eps)));
    return eps > 0.0f ? round((double)eps * scale) / scale : 0.0;
}

static void rmsnorm(const struct kernels *kernels, const struct op_rmsnorm *op)
{
    const float *w = operand_at(&op->weight);
    double eps = decimal(op->eps), offset = (double)op->offset;
    for (size_t row = 0; row < op->rows; row++)
        for (size_t v = 0; v < op->vectors; v++) {
            const float *x = (const float *)operand_at(&op->x) + row * op->ldx + v * op->width;
            double r = inverse_rms(x, op->width, eps);
            for (size_t i = 0; i < op->width; i++)
                value_set(kernels, &op->y, row * op->ldy + v * op->width + i,
                          (double)x[i] * r * (offset + (double)w[i]));
        }
}

/* One vector: dx unless NULL, and its part of the weight's gradient into sums unless NULL. */
static void rmsnorm_backward_vector(const struct op_rmsnorm_backward *op, double eps, const float *x,
                                    const float *dy, float *dx, double *sums)
{
    const float *w = operand_at(&op->weight);
    double r = inverse_rms(x, op->width, eps), sum = 0, offset = (double)op->offset;
    size_t n = op->width;
    for (size_t i = 0; sums != NULL && i < n; i++)
        sums[i] += (double)dy[i] * (double)x[i] * r;
    if (dx == NULL)
        return;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (offset + (double)w[i]) * (double)dy[i];
    sum *= r * r * r / (double)n;
    for (size_t i = 0; i < n; i++)
        dx[i] = (float)((op->accumulate ? (double)dx[i] : 0.0) + (offset + (double)w[i]) * (double)dy[i] * r -
                        (double)x[i] * sum);
}

static void rmsnorm_backward(const struct op_rmsnorm_backward *op, double *scratch)
{
    float *all = operand_at(&op->dx), *dweight = operand_at(&op->dweight);
    double eps = decimal(op->eps), *sums = dweight == NULL ? NULL : scratch;
    for (size_t i = 0; sums != NULL && i < op->width; i++)
        sums[i] = (double)dweight[i];
    for (size_t row = 0; row < op->rows; row++)
        for (size_t v = 0; v < op->vectors; v++) {
            const float *x = (const float *)operand_at(&op->x) + row * op->ldx + v * op->width;
            const float *dy = (const float *)operand_at(&op->dy) + row * op->lddy + v * op->width;
            rmsnorm_backward_vector(op, eps, x, dy, all == NULL ? NULL : all + row * op->lddx + v * op->width,
                                    sums);
        }
    for (size_t i = 0; sums != NULL && i < op->width; i++)
        dweight[i] = (float)sums[i];
}

static void add(const struct op_add *op)
{
    for (size_t row = 0; row < op->rows; row++) {
        const float *x = (const float *)operand_at(&op->x) + row * op->ldx;
        float *y = (float *)operand_at(&op->y) + row * op->ldy;
        for (size_t i = 0; i < op->width; i++)
            y[i] = (float)((double)y[i] + (double)op->alpha * (double)x[i]);
    }
}

static bool seen_before(const int32_t *ids, size_t t)
{
    for (size_t i = 0; i < t; i++)
        if (ids[i] == ids[t])
            return true;
    return false;
}

/* One row of the table at a time, with all tokens that have it. */
static void embed_backward(const struct op_embed_backward *op, double *sums)
{
    const int32_t *ids = operand_at(&op->ids);
    const float *dout = operand_at(&op->dout);
    for (size_t t = 0; t < op->tokens; t++) {
        float *row = (float *)operand_at(&op->dtable) + (size_t)ids[t] * op->hidden;
        if (seen_before(ids, t))
            continue;
        for (size_t i = 0; i < op->hidden; i++)
            sums[i] = (double)row[i];
        for (size_t u = t; u < op->tokens; u++)
            for (size_t i = 0; ids[u] == ids[t] && i < op->hidden; i++)
                sums[i] += (double)op->scale * (double)dout[u * op->hidden + i];
        for (size_t i = 0; i < op->hidden; i++)
            row[i] = (float)sums[i];
    }
}

static void rope(const struct op_rope *op)
{
    const uint32_t *positions = operand_at(&op->positions);
    const float *table = operand_at(&op->table);
    size_t half = op->rotary_dim / 2;
    double sign = op->inverse ? -1 : 1;
    for (size_t t = 0; t < op->tokens; t++) {
        float *x = (float *)operand_at(&op->x) + t * op->ldx;
        const float *cosines = table + (size_t)positions[t] * op->rotary_dim, *sines = cosines + half;
        for (uint32_t head = 0; head < op->heads; head++, x += op->head_dim)
            for (size_t i = 0; i < half; i++) {
                double a = (double)x[i], b = (double)x[half + i], c = (double)cosines[i],
                       s = sign * (double)sines[i];
                x[i] = (float)(a * c - b * s);
                x[half + i] = (float)(b * c + a * s);
            }
    }
}

/* The sigmoid by which a gate multiplies itself, and the slope of what the sigmoid is of (kernels_body.h). */
static double gate_sigmoid(enum glu_kind kind, double x, double *slope)
{
    const double twice = sqrt(8 / 3.14159265358979323846);
    *slope = kind == GLU_SILU ? 1 : twice * (1 + 3 * 0.044715 * x * x);
    return 1 / (1 + exp(kind == GLU_SILU ? -x : -twice * (x + 0.044715 * x * x * x)));
}

static void glu(const struct kernels *kernels, const struct op_glu *op)
{
    double slope;
    for (size_t t = 0; t < op->tokens; t++)
        for (size_t i = 0; i < op->width; i++) {
            size_t at = 2 * t * op->width + i;
            double g = value_get(kernels, &op->gate_up, at),
                   u = value_get(kernels, &op->gate_up, at + op->width);
            value_set(kernels, &op->act, t * op->width + i, g * gate_sigmoid(op->kind, g, &slope) * u);
        }
}

static void glu_backward(const struct kernels *kernels, const struct op_glu_backward *op)
{
    const float *dact = operand_at(&op->dact);
    for (size_t t = 0; t < op->tokens; t++)
        for (size_t i = 0; i < op->width; i++) {
            size_t at = 2 * t * op->width + i;
            double g = value_get(kernels, &op->gate_up, at),
                   u = value_get(kernels, &op->gate_up, at + op->width), d = (double)dact[t * op->width + i],
                   slope, s = gate_sigmoid(op->kind, g, &slope);
            value_set(kernels, &op->gate_up, at, d * u * (s + g * s * (1 - s) * slope));
            value_set(kernels, &op->gate_up, at + op->width, d * g * s);
        }
}

static double capped(double x, double cap)
{
    return cap > 0 ? cap * tanh(x / cap) : x;
}

static double cap_slope(double y, double cap)
{
    return cap > 0 ? 1 - y / cap * (y / cap) : 1;
}

static void softcap(const struct op_softcap *op)
{
    float *x = operand_at(&op->x);
    for (size_t i = 0; i < (size_t)op->rows * op->width; i++)
        x[i] = (float)capped((double)x[i], (double)op->cap);
}

static void cross_entropy(const struct op_cross_entropy *op)
{
    const int32_t *targets = operand_at(&op->targets);
    float *x = operand_at(&op->logits);
    double *loss = operand_at(&op->loss), cap = (double)op->cap, share = (double)op->smoothing / op->vocab;
    double hit = 1.0 - (double)op->smoothing;
    for (size_t row = 0; row < op->rows; row++, x += op->vocab) {
        double max = -INFINITY, sum = 0, all = 0, at_target = capped((double)x[targets[row]], cap);
        for (size_t i = 0; i < op->vocab; i++)
            max = (double)x[i] > max ? (double)x[i] : max;
        max = capped(max, cap);
        for (size_t i = 0; i < op->vocab; i++) {
            double y = capped((double)x[i], cap);
            sum += exp(y - max);
            all += y;
        }
        // cppcheck-suppress invalidFunctionArg ; the largest term is 1
        *loss += log(sum) + max - hit * at_target - share * all;
        for (size_t i = 0; op->gradient && i < op->vocab; i++) {
            double y = capped((double)x[i], cap);
            double d = exp(y - max) / sum - share - (i == (size_t)targets[row] ? hit : 0.0);
            x[i] = (float)(d * cap_slope(y, cap) * (double)op->gradient_scale);
        }
    }
}

static double dot(const float *x, const float *y, size_t n)
{
    double sum = 0;
    for (size_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)y[i];
    return sum;
}

/* p[0..count) = exp(y - base) of y = scale * q k^T, under the cap, *sum their sum; base, which is returned,
 * is the greatest y, or with `whole` the next whole power of two. slopes[0..count) (unless NULL): of y by q
 * k^T. Keys lie ld apart. */
static double exponentials(const float *q, const float *k, size_t ld, size_t count, size_t dim, double scale,
                           double cap, bool whole, double *p, double *slopes, double *sum)
{
    double base = -INFINITY;
    for (size_t j = 0; j < count; j++) {
        p[j] = capped(scale * dot(q, k + j * ld, dim), cap);
        if (slopes != NULL)
            slopes[j] = scale * cap_slope(p[j], cap);
        base = p[j] > base ? p[j] : base;
    }
    if (whole)
        base = ceil(base / log(2)) * log(2);
    *sum = 0;
    for (size_t j = 0; j < count; j++) {
        p[j] = exp(p[j] - base);
        *sum += p[j];
    }
    return base;
}

/* To `compute`, by way of fp32. */
static double rounded(const struct kernels *kernels, enum dtype compute, double x)
{
    float y = (float)x;
    uint16_t half;
    if (compute == DTYPE_F32)
        return x;
    if (compute == DTYPE_BF16) {
        kernels->to_bf16(&y, &half, 1);
        kernels->from_bf16(&half, &y, 1);
    } else {
        kernels->to_f16(&y, &half, 1);
        kernels->from_f16(&half, &y, 1);
    }
    return (double)y;
}

/* Rows of head_dim values, *ld apart in the end: where they lie, or in 16 bits rounded to `room`. */
static const float *rows_of(const struct kernels *kernels, enum dtype compute, const struct operand *x,
                            size_t at, size_t rows, size_t dim, size_t *ld, float *room)
{
    if (compute == DTYPE_F32)
        return (const float *)operand_at(x) + at;
    for (size_t i = 0; i < rows; i++)
        for (size_t d = 0; d < dim; d++)
            room[i * dim + d] = (float)rounded(kernels, compute, value_get(kernels, x, at + i * *ld + d));
    *ld = dim;
    return room;
}

/* The first position of the row from `begin` that position i sees. */
static size_t window_begin(size_t begin, size_t i, uint32_t window)
{
    return window == 0 || i - begin < window ? begin : i - window + 1;
}

struct exact_job {
    struct cpu_runner *runner;
    const struct op *op;
};

/* Scratch of one part: in double p, dp, slopes [tokens], dk, dv [tokens, dim], dq [dim]; then, where they are
 * rounded, k and v [tokens, dim] in fp32. */
static size_t sums_doubles(size_t tokens, size_t dim)
{
    return 3 * tokens + 2 * tokens * dim + dim;
}

static float *keys_room(double *scratch, size_t tokens, size_t dim)
{
    return (float *)(void *)(scratch + sums_doubles(tokens, dim));
}

static void attention_part(void *context, uint32_t index, uint32_t thread)
{
    const struct exact_job *job = context;
    const struct op_attention *op = &job->op->attention;
    const struct kernels *kernels = job->runner->kernels;
    const uint32_t *row_start = operand_at(&op->row_start);
    uint32_t row = index / op->heads, head = index % op->heads, kv = head / (op->heads / op->kv_heads);
    double *p = (double *)(void *)(job->runner->scratch + thread * job->runner->scratch_floats);
    size_t begin = row_start[row], dim = op->head_dim, tokens = row_start[row + 1] - begin;
    size_t ldk = op->ld, ldv = op->ld, ldq = op->ld;
    float *room = keys_room(p, tokens, dim), one[ATTENTION_HEAD_DIM_MAX], *lse = operand_at(&op->lse);
    const float *k =
        rows_of(kernels, op->compute, &op->k, begin * op->ld + kv * dim, tokens, dim, &ldk, room);
    const float *v = rows_of(kernels, op->compute, &op->v, begin * op->ld + kv * dim, tokens, dim, &ldv,
                             room + tokens * dim);
    for (size_t i = begin; i < begin + tokens; i++) {
        size_t first = window_begin(begin, i, op->window), count = i - first + 1;
        const float *q = rows_of(kernels, op->compute, &op->q, i * op->ld + head * dim, 1, dim, &ldq, one);
        double sum, base = exponentials(q, k + (first - begin) * ldk, ldk, count, dim, (double)op->scale,
                                        (double)op->cap, op->compute != DTYPE_F32, p, NULL, &sum);
        // cppcheck-suppress invalidFunctionArg ; the largest term is 1/2 or more
        lse[i * op->heads + head] = (float)(base + log(sum));
        for (size_t j = 0; j < count; j++)
            p[j] = rounded(kernels, op->compute, p[j]);
        for (size_t d = 0; d < dim; d++) {
            double out = 0;
            for (size_t j = 0; j < count; j++)
                out += p[j] * (double)v[(first - begin + j) * ldv + d];
            value_set(kernels, &op->out, (i * op->heads + head) * dim + d,
                      rounded(kernels, op->compute, out / sum));
        }
    }
}

/* One row and key head of attention_backward. */
struct exact_row {
    const struct op_attention_backward *op;
    const struct kernels *kernels;
    size_t begin, tokens;
    const float *k, *v; /* rounded, ld apart */
    size_t ldk, ldv;
    double *p, *dp, *slopes, *dk, *dv, *dq;
};

/* <dout, out>, dout not rounded; in fp32 from the probabilities, which know out better. */
static double row_delta(const struct exact_row *r, uint32_t head, size_t i, size_t count)
{
    const struct op_attention_backward *op = r->op;
    const float *dout = operand_at(&op->dout);
    size_t at = (i * op->heads + head) * op->head_dim;
    double delta = 0;
    for (size_t j = 0; op->compute == DTYPE_F32 && j < count; j++)
        delta += r->p[j] * r->dp[j];
    for (size_t d = 0; op->compute != DTYPE_F32 && d < op->head_dim; d++)
        delta +=
            (double)dout[at + d] * rounded(r->kernels, op->compute, value_get(r->kernels, &op->out, at + d));
    return delta;
}

/* Query i (of the whole micro-batch) of one head, against the keys of its row. */
static void attention_backward_query(const struct exact_row *r, uint32_t head, size_t i)
{
    const struct op_attention_backward *op = r->op;
    size_t dim = op->head_dim, ldq = op->ld, ldo = (size_t)op->heads * dim;
    size_t first = window_begin(r->begin, i, op->window), count = i - first + 1, skip = first - r->begin;
    float query[ATTENTION_HEAD_DIM_MAX], gradient[ATTENTION_HEAD_DIM_MAX];
    const float *q = rows_of(r->kernels, op->compute, &op->q, i * op->ld + head * dim, 1, dim, &ldq, query);
    const float *dout =
        rows_of(r->kernels, op->compute, &op->dout, (i * op->heads + head) * dim, 1, dim, &ldo, gradient);
    float *to = (float *)operand_at(&op->dq) + i * op->ld + head * dim;
    double *dk = r->dk + skip * dim, *dv = r->dv + skip * dim, sum;
    exponentials(q, r->k + skip * r->ldk, r->ldk, count, dim, (double)op->scale, (double)op->cap, false, r->p,
                 r->slopes, &sum);
    memset(r->dq, 0, dim * sizeof *r->dq);
    for (size_t j = 0; j < count; j++) {
        r->p[j] /= sum;
        r->dp[j] = dot(dout, r->v + (skip + j) * r->ldv, dim);
    }
    double delta = row_delta(r, head, i, count);
    for (size_t j = 0; j < count; j++) {
        double p = rounded(r->kernels, op->compute, r->p[j]);
        double ds = rounded(r->kernels, op->compute, r->p[j] * (r->dp[j] - delta) * r->slopes[j]);
        for (size_t d = 0; d < dim; d++) {
            r->dq[d] += ds * (double)r->k[(skip + j) * r->ldk + d];
            dk[j * dim + d] += ds * (double)q[d];
            dv[j * dim + d] += p * (double)dout[d];
        }
    }
    for (size_t d = 0; d < dim; d++)
        to[d] = (float)r->dq[d];
}

static void attention_backward_part(void *context, uint32_t index, uint32_t thread)
{
    const struct exact_job *job = context;
    const struct op_attention_backward *op = &job->op->attention_backward;
    const uint32_t *row_start = operand_at(&op->row_start);
    uint32_t row = index / op->kv_heads, kv = index % op->kv_heads, group = op->heads / op->kv_heads;
    size_t begin = row_start[row], tokens = row_start[row + 1] - begin, dim = op->head_dim;
    size_t at = begin * op->ld + kv * dim;
    double *scratch = (double *)(void *)(job->runner->scratch + thread * job->runner->scratch_floats);
    struct exact_row r = {.op = op,
                          .kernels = job->runner->kernels,
                          .begin = begin,
                          .tokens = tokens,
                          .ldk = op->ld,
                          .ldv = op->ld,
                          .p = scratch,
                          .dp = scratch + tokens,
                          .slopes = scratch + 2 * tokens,
                          .dk = scratch + 3 * tokens,
                          .dv = scratch + 3 * tokens + tokens * dim,
                          .dq = scratch + 3 * tokens + 2 * tokens * dim};
    float *room = keys_room(scratch, tokens, dim), *delta = operand_at(&op->delta);
    float *dk_to = (float *)operand_at(&op->dk) + at, *dv_to = (float *)operand_at(&op->dv) + at;
    r.k = rows_of(r.kernels, op->compute, &op->k, at, tokens, dim, &r.ldk, room);
    r.v = rows_of(r.kernels, op->compute, &op->v, at, tokens, dim, &r.ldv, room + tokens * dim);
    memset(r.dk, 0, 2 * tokens * dim * sizeof *r.dk);
    for (uint32_t head = kv * group; head < (kv + 1) * group; head++)
        for (size_t i = begin; i < begin + tokens; i++) {
            delta[i * op->heads + head] = 0; /* not used here */
            attention_backward_query(&r, head, i);
        }
    for (size_t j = 0; j < tokens; j++)
        for (size_t d = 0; d < dim; d++) {
            dk_to[j * op->ld + d] = (float)r.dk[j * dim + d];
            dv_to[j * op->ld + d] = (float)r.dv[j * dim + d];
        }
}

static bool rows_fit(const struct cpu_runner *runner, const struct operand *row_start, uint32_t rows,
                     uint32_t dim, enum dtype compute)
{
    const uint32_t *start = operand_at(row_start);
    for (uint32_t row = 0; row < rows; row++) {
        size_t tokens = start[row + 1] - start[row], keys = compute == DTYPE_F32 ? 0 : tokens * dim;
        if (sums_doubles(tokens, dim) + keys > runner->scratch_floats / 2)
            return false;
    }
    return true;
}

bool cpu_run_exact(struct cpu_runner *runner, const struct op *op)
{
    struct exact_job job = {.runner = runner, .op = op};
    double *scratch = (double *)(void *)runner->scratch;
    switch (op->kind) {
    case OP_RMSNORM:
        rmsnorm(runner->kernels, &op->rmsnorm);
        return true;
    case OP_RMSNORM_BACKWARD:
        if (op->rmsnorm_backward.width > runner->scratch_floats / 2)
            return false;
        rmsnorm_backward(&op->rmsnorm_backward, scratch);
        return true;
    case OP_ADD:
        add(&op->add);
        return true;
    case OP_EMBED_BACKWARD:
        if (op->embed_backward.hidden > runner->scratch_floats / 2)
            return false;
        embed_backward(&op->embed_backward, scratch);
        return true;
    case OP_ROPE:
        rope(&op->rope);
        return true;
    case OP_GLU:
        glu(runner->kernels, &op->glu);
        return true;
    case OP_GLU_BACKWARD:
        glu_backward(runner->kernels, &op->glu_backward);
        return true;
    case OP_SOFTCAP:
        softcap(&op->softcap);
        return true;
    case OP_CROSS_ENTROPY:
        cross_entropy(&op->cross_entropy);
        return true;
    case OP_ATTENTION:
        if (!rows_fit(runner, &op->attention.row_start, op->attention.rows, op->attention.head_dim,
                      op->attention.compute))
            return false;
        pool_run(runner->pool, op->attention.rows * op->attention.heads, attention_part, &job);
        return true;
    case OP_ATTENTION_BACKWARD:
        if (!rows_fit(runner, &op->attention_backward.row_start, op->attention_backward.rows,
                      op->attention_backward.head_dim, op->attention_backward.compute))
            return false;
        pool_run(runner->pool, op->attention_backward.rows * op->attention_backward.kv_heads,
                 attention_backward_part, &job);
        return true;
    default:
        return false;
    }
}
