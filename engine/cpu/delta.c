/* Gates by rows, the convolution by strips of channels, and the delta rule by rows and heads: each part adds
 * its terms in the order of tokens, whatever the number of threads. */
#include "engine/cpu/delta.h"

#include <math.h>
#include <string.h>

#include "engine/cpu/parts.h"

static float *floats_at(const struct operand *operand, uint64_t at)
{
    return (float *)operand_at(operand) + at;
}

/* --- gates --- */

static void gate_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_gate *op = &job->op->gate;
    for (uint64_t i = begin; i < end; i++)
        for (uint64_t v = 0; v < op->vectors; v++) {
            uint64_t at = (i * op->vectors + v) * op->width;
            job->runner->kernels->gate(op->kind, floats_at(&op->x, at),
                                       floats_at(&op->z, i * op->ldz + v * op->vz), floats_at(&op->y, at),
                                       op->width);
        }
}

void cpu_gate(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->gate.rows, ROWS_PER_PART, gate_part);
}

static void gate_backward_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_gate_backward *b = &job->op->gate_backward;
    const struct op_gate *op = &b->forward;
    for (uint64_t i = begin; i < end; i++)
        for (uint64_t v = 0; v < op->vectors; v++) {
            uint64_t at = (i * op->vectors + v) * op->width, z = i * op->ldz + v * op->vz;
            job->runner->kernels->gate_backward(op->kind, floats_at(&op->x, at), floats_at(&op->z, z),
                                                floats_at(&b->dy, at), floats_at(&b->dx, at),
                                                floats_at(&b->dz, z), op->width);
        }
}

void cpu_gate_backward(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->gate_backward.forward.rows, ROWS_PER_PART, gate_backward_part);
}

/* --- the short convolution --- */

/* A strip of channels: its weights tap by tap, and where its tokens' values are. */
struct conv_strip {
    const struct op_conv *op;
    uint64_t begin;
    const uint32_t *positions;
    float weight[CONV_TAPS * COLUMNS_STRIP], zeros[COLUMNS_STRIP];
    struct conv_token token;
};

static void strip_init(const struct op_conv *op, uint64_t begin, uint64_t end, struct conv_strip *strip)
{
    size_t n = end - begin;
    size_t taps = op->taps;
    const float *weight = floats_at(&op->weight, begin * taps);
    *strip = (struct conv_strip){.op = op, .begin = begin, .positions = operand_at(&op->positions)};
    for (size_t i = 0; i < n; i++)
        for (size_t j = 0; j < taps; j++)
            strip->weight[j * n + i] = weight[i * taps + taps - 1 - j];
    strip->token = (struct conv_token){.taps = op->taps, .plain = op->plain, .n = n, .w = strip->weight};
    if (op->bias.buffer)
        strip->token.bias = floats_at(&op->bias, begin);
}

/* Points the token's taps at its own values and those of its predecessors; returns how many of these are in
 * its row. */
static uint32_t strip_token(struct conv_strip *strip, uint64_t t)
{
    const struct op_conv *op = strip->op;
    uint32_t before = strip->positions[t];
    for (uint32_t j = 0; j < op->taps; j++)
        strip->token.x[j] = j > before ? strip->zeros
                            : j <= t
                                ? floats_at(&op->x, (t - j) * op->ldx + strip->begin)
                                : floats_at(&op->past, (op->taps - 1 + t - j) * op->width + strip->begin);
    return before < op->taps - 1 ? before : op->taps - 1;
}

/* Keeps the last values of the row for the tokens to come. */
static void past_keep(const struct op_conv *op, uint64_t begin, size_t n)
{
    uint64_t kept = op->taps - 1;
    for (uint64_t i = 0; i < kept; i++) {
        uint64_t from = op->tokens + i; /* counted from the first value that past holds */
        const float *x = from < kept ? floats_at(&op->past, from * op->width + begin)
                                     : floats_at(&op->x, (from - kept) * op->ldx + begin);
        memmove(floats_at(&op->past, i * op->width + begin), x, n * sizeof(float));
    }
}

static void conv_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_conv *op = &job->op->conv;
    struct conv_strip strip;
    strip_init(op, begin, end, &strip);
    for (uint64_t t = 0; t < op->tokens; t++) {
        (void)strip_token(&strip, t);
        job->runner->kernels->conv(&strip.token, floats_at(&op->y, t * op->ldy + begin));
    }
    if (op->past.buffer)
        past_keep(op, begin, end - begin);
}

void cpu_conv(struct cpu_runner *runner, const struct op *op)
{
    run_parts(runner, op, NULL, op->conv.tokens == 0 ? 0 : op->conv.width, COLUMNS_STRIP, conv_part);
}

static void delta_sum_add(const struct operand *to, uint64_t at, double *sum)
{
    *floats_at(to, at) = (float)((double)*floats_at(to, at) + *sum);
    *sum = 0;
}

/* Adds a row's sums to the weights' gradient, so that packed rows give what single rows give. */
static void weight_add(const struct op_conv_backward *b, uint64_t begin, size_t n, double *dw)
{
    size_t taps = b->forward.taps;
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < taps; j++)
            delta_sum_add(&b->dweight, (begin + i) * taps + taps - 1 - j, &dw[j * n + i]);
        if (b->dbias.buffer)
            delta_sum_add(&b->dbias, begin + i, &dw[taps * n + i]);
    }
}

static void conv_backward_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_conv_backward *b = &job->op->conv_backward;
    const struct op_conv *op = &b->forward;
    struct conv_strip strip;
    size_t n = end - begin;
    double dw[(CONV_TAPS + 1) * COLUMNS_STRIP] = {0};
    float nowhere[COLUMNS_STRIP] = {0}, *dx[CONV_TAPS];
    strip_init(op, begin, end, &strip);
    for (uint64_t t = 0; t < op->tokens; t++) {
        if (b->dweight.buffer && strip.positions[t] == 0)
            weight_add(b, begin, n, dw);
        uint32_t before = strip_token(&strip, t);
        for (uint32_t j = 0; j < op->taps; j++)
            dx[j] = j > before ? nowhere : floats_at(&b->dx, (t - j) * b->lddx + begin);
        job->runner->kernels->conv_backward(&strip.token, floats_at(&b->dy, t * op->ldy + begin), dx,
                                            b->dweight.buffer ? dw : NULL);
    }
    if (b->dweight.buffer)
        weight_add(b, begin, n, dw);
}

void cpu_conv_backward(struct cpu_runner *runner, const struct op *op)
{
    const struct op_conv *forward = &op->conv_backward.forward;
    run_parts(runner, op, NULL, forward->tokens == 0 ? 0 : forward->width, COLUMNS_STRIP, conv_backward_part);
}

/* --- the gated delta rule --- */

/* What a head's numbers a and b say of a token. */
struct delta_gates {
    /* slope: of gamma_log by a; beta_slope: of log beta by b, or with scan by a */
    double gamma_log, slope, beta, beta_slope;
};

/* One head of one row. */
struct delta_head {
    const struct cpu_runner *runner;
    const struct op_delta *op;
    uint64_t head, begin, end; /* the row's tokens */
    double rate, dt_bias;      /* exp(decay) */
    float *state;              /* scratch [key_dim, token.ld] */
    struct delta_token token;
};

struct delta_job {
    struct cpu_runner *runner;
    const struct op_delta *op;
    const struct op_delta_backward *backward;
};

static struct delta_head head_of(const struct delta_job *job, uint32_t index, uint32_t thread)
{
    const struct op_delta *op = job->op;
    const uint32_t *row_start = operand_at(&op->row_start);
    uint64_t row = index / op->heads, head = index % op->heads;
    return (struct delta_head){.runner = job->runner,
                               .op = op,
                               .head = head,
                               .begin = row_start[row],
                               .end = row_start[row + 1],
                               .rate = exp((double)*floats_at(&op->decay, head)),
                               .dt_bias = (double)*floats_at(&op->dt_bias, head),
                               .state = job->runner->scratch + thread * job->runner->scratch_floats,
                               .token = {.keys = op->key_dim,
                                         .values = op->value_dim,
                                         .ld = (op->value_dim + 63ull) / 64 * 64,
                                         .scan = op->scan,
                                         .skip = op->scan ? *floats_at(&op->skip, head) : 0}};
}

static struct delta_gates gates_of(const struct delta_head *h, uint64_t t)
{
    double x = (double)*floats_at(&h->op->a, t * h->op->ldg + h->head) + h->dt_bias;
    double dt = (x > 0 ? x : 0) + log1p(exp(-fabs(x))), slope = 1 / (1 + exp(-x));
    struct delta_gates gates = {.gamma_log = -h->rate * dt,
                                .slope = -h->rate * slope,
                                .beta = dt,
                                .beta_slope = dt > 0 ? slope / dt : 1};
    if (h->op->scan)
        return gates;
    double b = (double)*floats_at(&h->op->b, t * h->op->ldg + h->head);
    gates.beta = 1 / (1 + exp(-b));
    gates.beta_slope = 1 - gates.beta;
    return gates;
}

/* Sets the token of which q, k, gamma and beta are. Returns the values from the start of `error` (or `out`)
 * to its own. */
static uint64_t token_set(struct delta_head *h, uint64_t t)
{
    const struct op_delta *op = h->op;
    struct delta_gates gates = gates_of(h, t);
    uint64_t key = t * op->ld + h->head / (op->heads / op->key_heads) * op->key_dim;
    h->token.q = floats_at(&op->q, key);
    h->token.k = floats_at(&op->k, key);
    h->token.v = floats_at(&op->v, t * op->ld + h->head * op->value_dim);
    h->token.gamma = (float)exp(gates.gamma_log);
    h->token.beta = (float)gates.beta;
    return (t * op->heads + h->head) * op->value_dim;
}

static float *error_at(const struct delta_head *h, uint64_t at)
{
    return h->op->scan ? NULL : floats_at(&h->op->error, at);
}

/* Copies a head's state [keys, values] from or to the cache's. */
static void state_copy(const struct delta_head *h, bool load)
{
    const struct op_delta *op = h->op;
    for (uint64_t i = 0; i < op->key_dim; i++) {
        float *kept = floats_at(&op->state, (h->head * op->key_dim + i) * op->value_dim);
        float *own = h->state + i * h->token.ld;
        memcpy(load ? own : kept, load ? kept : own, op->value_dim * sizeof(float));
    }
}

static void delta_part(void *context, uint32_t index, uint32_t thread)
{
    struct delta_head h = head_of(context, index, thread);
    const struct op_delta *op = h.op;
    memset(h.state, 0, op->key_dim * h.token.ld * sizeof(float));
    if (op->state.buffer && op->begin > 0)
        state_copy(&h, true);
    for (uint64_t t = h.begin; t < h.end; t++) {
        uint64_t at = token_set(&h, t);
        h.runner->kernels->delta(&h.token, h.state, error_at(&h, at), floats_at(&op->out, at));
    }
    if (op->state.buffer)
        state_copy(&h, false);
}

void cpu_delta(struct cpu_runner *runner, const struct op *op)
{
    struct delta_job job = {.runner = runner, .op = &op->delta};
    pool_run(runner->pool, op->delta.tokens == 0 ? 0 : op->delta.rows * op->delta.heads, delta_part, &job);
}

/* The arrays of op_delta_backward.work: each head's gradients of q and k, and what flows between tokens. */
struct delta_work {
    float *dq, *dk, *flow;
};

static struct delta_work work_of(const struct op_delta_backward *b, uint64_t t, uint64_t head)
{
    const struct op_delta *op = &b->forward;
    uint64_t all = (uint64_t)op->tokens * op->heads * op->key_dim, at = (t * op->heads + head) * op->key_dim;
    uint64_t blocks = (op->key_dim + 31) / 32;
    return (struct delta_work){.dq = floats_at(&b->work, at),
                               .dk = floats_at(&b->work, all + at),
                               .flow = floats_at(&b->work, 2 * all + (t * op->heads + head) * blocks)};
}

/* Vectors of one token with zeros behind `values`, as the kernels want them. */
struct delta_padded {
    float dout[DELTA_DIM_MAX], change[DELTA_DIM_MAX], dv[DELTA_DIM_MAX];
};

static uint64_t padded_set(struct delta_head *h, const struct op_delta_backward *b, uint64_t t,
                           struct delta_padded *p)
{
    uint64_t at = token_set(h, t), n = h->op->value_dim;
    memcpy(p->dout, floats_at(&b->dout, at), n * sizeof(float));
    const float *error = h->op->scan ? h->token.v : error_at(h, at);
    h->runner->kernels->scale(error, h->token.beta, p->change, n);
    h->token.dout = p->dout;
    h->token.change = p->change;
    return at;
}

/* From the last token to the first: the gradient of the state, and of v; what each token wrote for later
 * ones. */
static void head_reverse(struct delta_head *h, const struct op_delta_backward *b, struct delta_padded *p)
{
    const struct op_delta *op = h->op;
    const struct kernels *kernels = h->runner->kernels;
    memset(h->state, 0, op->key_dim * h->token.ld * sizeof(float));
    for (uint64_t t = h->end; t-- > h->begin;) {
        struct delta_work work = work_of(b, t, h->head);
        uint64_t at = padded_set(h, b, t, p);
        kernels->delta_reverse(&h->token, h->state, p->dv, work.dk);
        *work.flow = -kernels->dot(h->token.k, work.dk, op->key_dim);
        float *dv = floats_at(&b->dv, t * b->ldd + h->head * op->value_dim);
        memcpy(dv, p->dv, op->value_dim * sizeof(float));
        float beta_gradient = kernels->dot(dv, op->scan ? h->token.v : error_at(h, at), op->value_dim);
        *floats_at(op->scan ? &b->da : &b->db, t * op->ldg + h->head) =
            (float)((double)beta_gradient * gates_of(h, t).beta_slope);
        if (!op->scan)
            continue;
        *floats_at(&b->skips, t * op->heads + h->head) = kernels->dot(p->dout, h->token.v, op->value_dim);
        kernels->add(p->dout, h->token.skip, dv, op->value_dim);
    }
}

/* From the first token to the last: the state again, and what each token reads of it. */
static void head_reread(struct delta_head *h, const struct op_delta_backward *b, struct delta_padded *p)
{
    const struct op_delta *op = h->op;
    const struct kernels *kernels = h->runner->kernels;
    float dk[DELTA_DIM_MAX];
    memset(h->state, 0, op->key_dim * h->token.ld * sizeof(float));
    for (uint64_t t = h->begin; t < h->end; t++) {
        struct delta_work work = work_of(b, t, h->head);
        (void)padded_set(h, b, t, p);
        if (!op->scan)
            memcpy(p->dv, floats_at(&b->dv, t * b->ldd + h->head * op->value_dim),
                   op->value_dim * sizeof(float));
        kernels->delta_reread(&h->token, h->state, p->dv, work.dq, dk);
        *work.flow +=
            kernels->dot(h->token.q, work.dq, op->key_dim) + kernels->dot(h->token.k, dk, op->key_dim);
        float own =
            kernels->dot(p->dout, p->change, op->value_dim); /* the token's own output reads it, too */
        for (uint32_t i = 0; i < op->key_dim; i++) {
            work.dq[i] += own * h->token.k[i];
            work.dk[i] += own * h->token.q[i] + dk[i];
        }
    }
}

static void delta_backward_part(void *context, uint32_t index, uint32_t thread)
{
    const struct delta_job *job = context;
    const struct op_delta_backward *b = job->backward;
    struct delta_head h = head_of(job, index, thread);
    struct delta_padded padded = {.dout = {0}};
    double gradient = 0;
    head_reverse(&h, b, &padded);
    memset(padded.dv, 0, sizeof(padded.dv));
    head_reread(&h, b, &padded);
    for (uint64_t t = h.end; t-- > h.begin;) {
        struct delta_gates gates = gates_of(&h, t);
        float *da = floats_at(&b->da, t * h.op->ldg + h.head);
        gradient += (double)*work_of(b, t, h.head).flow;
        *da = (float)(gradient * gates.slope + (h.op->scan ? (double)*da : 0));
        *floats_at(&b->rates, t * h.op->heads + h.head) = (float)(gradient * gates.gamma_log);
    }
}

/* Adds the gradients of the heads that share q and k, in their order. */
static void delta_join_part(const struct parts_job *job, uint64_t begin, uint64_t end)
{
    const struct op_delta_backward *b = &job->op->delta_backward;
    const struct op_delta *op = &b->forward;
    uint32_t group = op->heads / op->key_heads;
    for (uint64_t i = begin; i < end; i++) {
        uint64_t t = i / op->key_heads, key = i % op->key_heads, at = t * b->ldd + key * op->key_dim;
        float *dq = floats_at(&b->dq, at), *dk = floats_at(&b->dk, at);
        for (uint32_t g = 0; g < group; g++) {
            struct delta_work work = work_of(b, t, key * group + g);
            for (uint32_t n = 0; n < op->key_dim; n++) {
                dq[n] = g == 0 ? work.dq[n] : dq[n] + work.dq[n];
                dk[n] = g == 0 ? work.dk[n] : dk[n] + work.dk[n];
            }
        }
    }
}

void cpu_delta_backward(struct cpu_runner *runner, const struct op *op)
{
    const struct op_delta *forward = &op->delta_backward.forward;
    struct delta_job job = {.runner = runner, .op = forward, .backward = &op->delta_backward};
    if (forward->tokens == 0)
        return;
    pool_run(runner->pool, forward->rows * forward->heads, delta_backward_part, &job);
    run_parts(runner, op, NULL, (uint64_t)forward->tokens * forward->key_heads, ROWS_PER_PART,
              delta_join_part);
}
