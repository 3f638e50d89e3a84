/* Compares the ops of gated delta nets and of Mamba-2's state spaces with their definitions in double, and
 * their gradients with finite differences. Decay is slow in half of the trials (a rate of 0.05), because a
 * state that is soon forgotten hides what leaks between rows. */
#pragma once

#include "engine/harness.h"

/* --- gates --- */

static void gate_set(struct trial *t, struct op_gate *o)
{
    o->kind = (enum gate_kind)draw_below(t, 3);
    o->rows = draw_rows(t, 20);
    o->vectors = 1 + draw_below(t, 3);
    o->width = 1 + draw_below(t, 40);
    o->vz = o->width;
    o->ldz = draw_ld(t, o->vectors * o->width);
    bind(t, &o->x);
    bind(t, &o->z);
}

static double gate_times(enum gate_kind kind, double z)
{
    return kind == GATE_PLAIN ? z : (kind == GATE_SILU ? z : 1) / (1 + exp(-z));
}

static void gate_draw(struct trial *t)
{
    struct op_gate *o = &t->op.gate;
    t->op.kind = OP_GATE;
    gate_set(t, o);
    if (draw_below(t, 2)) { /* what lies between the gates is not theirs */
        o->vz = o->width + 1 + draw_below(t, 9);
        o->ldz = draw_ld(t, (o->vectors - 1) * o->vz + o->width);
    }
    bind(t, &o->y);
}

static void gate_want(struct trial *t)
{
    const struct op_gate *o = &t->op.gate;
    const double *x = values(t, "x"), *z = values(t, "z");
    double *y = expected(t, "y");
    for (size_t i = 0; i < (size_t)o->rows * o->vectors; i++)
        for (size_t j = 0; j < o->width; j++)
            y[i * o->width + j] =
                x[i * o->width + j] *
                gate_times(o->kind, z[i / o->vectors * o->ldz + i % o->vectors * o->vz + j]);
}

static void gate_backward_draw(struct trial *t)
{
    struct op_gate_backward *o = &t->op.gate_backward;
    t->op.kind = OP_GATE_BACKWARD;
    gate_set(t, &o->forward);
    bind(t, &o->dy);
    bind(t, &o->dx);
    bind(t, &o->dz);
}

static double gate_loss(const struct trial *t)
{
    const struct op_gate *o = &t->op.gate_backward.forward;
    const double *x = values(t, "x"), *z = values(t, "z"), *dy = values(t, "dy");
    double loss = 0;
    for (size_t i = 0; i < o->rows; i++)
        for (size_t j = 0; j < (size_t)o->vectors * o->width; j++) {
            size_t at = i * o->vectors * o->width + j;
            loss += dy[at] * x[at] * gate_times(o->kind, z[i * o->ldz + j]);
        }
    return loss;
}

/* --- the short convolution --- */

static void conv_set(struct trial *t, struct op_conv *o)
{
    o->tokens = draw_rows(t, 30);
    o->width = 1 + draw_below(t, 90);
    o->taps = 2 + draw_below(t, CONV_TAPS - 1);
    o->plain = draw_below(t, 2);
    o->ldx = draw_ld(t, o->width);
    o->ldy = draw_ld(t, o->width);
    bind(t, &o->x);
    bind(t, &o->weight);
    if (draw_below(t, 2))
        bind(t, &o->bias);
    bind_as(t, &o->positions, FILL_BELOW, 1);
}

/* Draws the rows' lengths, from one token up. */
static void conv_prepare(struct trial *t)
{
    double *positions = values(t, "positions");
    uint32_t tokens = t->op.kind == OP_CONV ? t->op.conv.tokens : t->op.conv_backward.forward.tokens;
    bool cached = t->op.kind == OP_CONV && t->op.conv.past.buffer;
    for (uint32_t i = 0, at = cached ? draw_below(t, 6) : 0; i < tokens; i++, at++) {
        at = !cached && draw_below(t, 5) == 0 ? 0 : at;
        positions[i] = at;
    }
}

static double conv_sum(const struct op_conv *o, const struct trial *t, size_t i, size_t c)
{
    const double *x = values(t, "x"), *weight = values(t, "weight"), *positions = values(t, "positions");
    const struct array *past = array_named(t, "past");
    double sum = o->bias.buffer ? values(t, "bias")[c] : 0;
    for (size_t j = 0; j < o->taps && j <= positions[i]; j++)
        sum += weight[c * o->taps + o->taps - 1 - j] *
               (j <= i ? x[(i - j) * o->ldx + c] : past->original[(o->taps - 1 + i - j) * o->width + c]);
    return sum;
}

static double conv_value(const struct op_conv *o, const struct trial *t, size_t i, size_t c)
{
    double sum = conv_sum(o, t, i, c);
    return o->plain ? sum : gate_times(GATE_SILU, sum);
}

static void conv_draw(struct trial *t)
{
    struct op_conv *o = &t->op.conv;
    t->op.kind = OP_CONV;
    conv_set(t, o);
    if (draw_below(t, 2))
        bind(t, &o->past);
    bind(t, &o->y);
}

static void conv_want(struct trial *t)
{
    const struct op_conv *o = &t->op.conv;
    const double *x = values(t, "x");
    const struct array *past = array_named(t, "past");
    double *y = expected(t, "y");
    for (size_t i = 0; i < o->tokens; i++)
        for (size_t c = 0; c < o->width; c++)
            y[i * o->ldy + c] = conv_value(o, t, i, c);
    double *kept = past ? expected(t, "past") : NULL;
    size_t before = o->taps - 1;
    for (size_t i = 0; kept && o->tokens > 0 && i < before; i++)
        for (size_t c = 0; c < o->width; c++)
            kept[i * o->width + c] = i + o->tokens < before ? past->original[(i + o->tokens) * o->width + c]
                                                            : x[(i + o->tokens - before) * o->ldx + c];
}

static void conv_backward_draw(struct trial *t)
{
    struct op_conv_backward *o = &t->op.conv_backward;
    t->op.kind = OP_CONV_BACKWARD;
    conv_set(t, &o->forward);
    o->lddx = draw_ld(t, o->forward.width);
    bind(t, &o->dy);
    bind(t, &o->dx);
    if (!draw_below(t, 2))
        return;
    bind(t, &o->dweight);
    if (o->forward.bias.buffer)
        bind(t, &o->dbias);
}

static double conv_loss(const struct trial *t)
{
    const struct op_conv *o = &t->op.conv_backward.forward;
    const double *dy = values(t, "dy");
    double loss = 0;
    for (size_t i = 0; i < o->tokens; i++)
        for (size_t c = 0; c < o->width; c++)
            loss += dy[i * o->ldy + c] * conv_value(o, t, i, c);
    return loss;
}

/* --- the gated delta rule --- */

static void delta_set(struct trial *t, struct op_delta *o)
{
    o->rows = 1 + draw_below(t, 3);
    o->tokens = draw_rows(t, 20);
    o->key_heads = 1 + draw_below(t, 2);
    o->heads = o->key_heads * (1 + draw_below(t, 2));
    o->key_dim = 1 + draw_below(t, draw_below(t, 4) == 0 ? DELTA_DIM_MAX : 12);
    o->value_dim = 1 + draw_below(t, draw_below(t, 4) == 0 ? DELTA_DIM_MAX : 12);
    uint32_t keys = o->key_heads * o->key_dim, wide = o->heads * o->value_dim;
    o->ld = draw_ld(t, keys > wide ? keys : wide);
    o->ldg = draw_ld(t, o->heads);
    o->scan = draw_below(t, 2);
    bind(t, &o->q);
    bind(t, &o->k);
    bind(t, &o->v);
    bind(t, &o->a);
    bind(t, o->scan ? &o->skip : &o->b);
    bind(t, &o->decay);
    bind(t, &o->dt_bias);
    bind_as(t, &o->row_start, FILL_STARTS, o->tokens);
    if (!o->scan)
        bind(t, &o->error);
}

static const struct op_delta *delta_of(const struct trial *t)
{
    return t->op.kind == OP_DELTA ? &t->op.delta : &t->op.delta_backward.forward;
}

/* q and k of length 1, and slow decay in half of the trials. */
static void delta_scale(struct trial *t)
{
    const struct op_delta *o = delta_of(t);
    double *sides[] = {values(t, "q"), values(t, "k")}, *decay = values(t, "decay");
    bool slow = draw_below(t, 2);
    for (size_t s = 0; s < 2; s++)
        for (size_t i = 0; i < (size_t)o->tokens * o->key_heads; i++) {
            double *x = sides[s] + i / o->key_heads * o->ld + i % o->key_heads * o->key_dim, sum = 0;
            for (size_t j = 0; j < o->key_dim; j++)
                sum += x[j] * x[j];
            for (size_t j = 0; j < o->key_dim; j++)
                x[j] /= sqrt(sum);
        }
    for (size_t h = 0; h < o->heads && slow; h++)
        decay[h] = log(0.05);
}

/* Token whose rate of decay is multiplied by e^delta_bend, for the gradient of one token's rate. */
static double delta_bend;
static size_t delta_bent;

/* Runs one head through all rows. For each token `visit` gets error and out, of value_dim values. */
static void delta_run(const struct trial *t, size_t head, double *state,
                      void (*visit)(const struct trial *t, size_t head, size_t token, const double *error,
                                    const double *out, void *arg),
                      void *arg)
{
    const struct op_delta *o = delta_of(t);
    const double *q = values(t, "q"), *k = values(t, "k"), *v = values(t, "v"), *a = values(t, "a"),
                 *b = o->scan ? NULL : values(t, "b"), *starts = values(t, "row_start");
    double rate = values(t, "decay")[head], bias = values(t, "dt_bias")[head];
    size_t n = o->value_dim, key_at = head / (o->heads / o->key_heads) * o->key_dim, row = 0;
    double error[DELTA_DIM_MAX], out[DELTA_DIM_MAX], skip = o->scan ? values(t, "skip")[head] : 0;
    for (size_t i = 0; i < o->tokens; i++) {
        double x = a[i * o->ldg + head] + bias, speed = exp(rate + (i == delta_bent ? delta_bend : 0));
        double dt = log1p(exp(x)), gamma = exp(-speed * dt);
        double beta = o->scan ? dt : 1 / (1 + exp(-b[i * o->ldg + head]));
        const double *ks = k + i * o->ld + key_at, *qs = q + i * o->ld + key_at;
        while (row < o->rows && starts[row] <= i)
            row++;
        if (i == starts[row - 1] && !(o->state.buffer && o->begin > 0))
            memset(state, 0, o->key_dim * n * sizeof(*state));
        for (size_t j = 0; j < n; j++) {
            double predicted = 0;
            for (size_t d = 0; !o->scan && d < o->key_dim; d++)
                predicted += state[d * n + j] * gamma * ks[d];
            error[j] = v[i * o->ld + head * n + j] - predicted;
            out[j] = skip * error[j];
            for (size_t d = 0; d < o->key_dim; d++) {
                state[d * n + j] = state[d * n + j] * gamma + beta * ks[d] * error[j];
                out[j] += state[d * n + j] * qs[d];
            }
        }
        visit(t, head, i, error, out, arg);
    }
}

static void delta_draw(struct trial *t)
{
    struct op_delta *o = &t->op.delta;
    t->op.kind = OP_DELTA;
    delta_set(t, o);
    if (draw_below(t, 2)) {
        o->rows = 1;
        o->begin = draw_below(t, 3);
        bind(t, &o->state);
    }
    bind(t, &o->out);
}

static void delta_keep(const struct trial *t, size_t head, size_t token, const double *error,
                       const double *out, void *arg)
{
    const struct op_delta *o = delta_of(t);
    double **to = arg;
    size_t at = (token * o->heads + head) * o->value_dim;
    if (to[0])
        memcpy(to[0] + at, error, o->value_dim * sizeof(*error));
    memcpy(to[1] + at, out, o->value_dim * sizeof(*out));
}

static void delta_want(struct trial *t)
{
    const struct op_delta *o = &t->op.delta;
    double *to[] = {o->scan ? NULL : expected(t, "error"), expected(t, "out")},
           own[DELTA_DIM_MAX * DELTA_DIM_MAX] = {0};
    double *state = o->state.buffer && o->tokens > 0 ? expected(t, "state") : NULL;
    delta_bend = 0;
    for (size_t h = 0; h < o->heads; h++)
        delta_run(t, h, state ? state + h * o->key_dim * o->value_dim : own, delta_keep, to);
}

static void delta_backward_draw(struct trial *t)
{
    struct op_delta_backward *o = &t->op.delta_backward;
    t->op.kind = OP_DELTA_BACKWARD;
    delta_set(t, &o->forward);
    o->ldd = o->forward.ld;
    bind(t, &o->dout);
    bind(t, &o->work);
    bind(t, &o->dq);
    bind(t, &o->dk);
    bind(t, &o->dv);
    bind(t, &o->da);
    bind(t, o->forward.scan ? &o->skips : &o->db);
    bind(t, &o->rates);
}

static void delta_error(const struct trial *t, size_t head, size_t token, const double *error,
                        const double *out, void *arg)
{
    const struct op_delta *o = delta_of(t);
    (void)out;
    memcpy((double *)arg + (token * o->heads + head) * o->value_dim, error, o->value_dim * sizeof(*error));
}

static void delta_backward_prepare(struct trial *t)
{
    double state[DELTA_DIM_MAX * DELTA_DIM_MAX];
    delta_scale(t);
    delta_bend = 0;
    for (size_t h = 0; h < delta_of(t)->heads && !delta_of(t)->scan; h++)
        delta_run(t, h, state, delta_error, values(t, "error"));
}

static void delta_add(const struct trial *t, size_t head, size_t token, const double *error,
                      const double *out, void *arg)
{
    const struct op_delta *o = delta_of(t);
    const double *dout = values(t, "dout");
    (void)error;
    for (size_t j = 0; j < o->value_dim; j++)
        *(double *)arg += dout[(token * o->heads + head) * o->value_dim + j] * out[j];
}

static double delta_head_loss(const struct trial *t, size_t head)
{
    double loss = 0, state[DELTA_DIM_MAX * DELTA_DIM_MAX];
    delta_run(t, head, state, delta_add, &loss);
    return loss;
}

static double delta_loss(const struct trial *t)
{
    double loss = 0;
    delta_bend = 0;
    for (size_t h = 0; h < delta_of(t)->heads; h++)
        loss += delta_head_loss(t, h);
    return loss;
}

/* The gradient of each token's rate of decay, and of the factor with which it adds v to its output. */
static void delta_backward_want(struct trial *t)
{
    const struct op_delta *o = delta_of(t);
    double *rates = expected(t, "rates"), *skips = o->scan ? expected(t, "skips") : NULL;
    const double *dout = values(t, "dout"), *v = values(t, "v");
    for (size_t i = 0; i < (size_t)o->tokens * o->heads; i++) {
        delta_bent = i / o->heads;
        delta_bend = 1e-5;
        double up = delta_head_loss(t, i % o->heads);
        delta_bend = -1e-5;
        rates[i] = (up - delta_head_loss(t, i % o->heads)) / 2e-5;
        for (size_t j = 0; skips && j < o->value_dim; j++)
            skips[i] = (j == 0 ? 0 : skips[i]) +
                       dout[i * o->value_dim + j] * v[i / o->heads * o->ld + i % o->heads * o->value_dim + j];
    }
    delta_bend = 0;
}

static const struct op_case delta_cases[] = {
    {.name = "gate", .draw = gate_draw, .want = gate_want, .tolerance = 1e-6},
    {.name = "gate_backward",
     .draw = gate_backward_draw,
     .loss = gate_loss,
     .slopes = {{"x", "dx"}, {"z", "dz"}},
     .tolerance = 1e-6},
    {.name = "conv", .draw = conv_draw, .prepare = conv_prepare, .want = conv_want, .tolerance = 1e-6},
    {.name = "conv_backward",
     .draw = conv_backward_draw,
     .prepare = conv_prepare,
     .loss = conv_loss,
     .slopes = {{"x", "dx"}, {"weight", "dweight"}, {"bias", "dbias"}},
     .tolerance = 2e-6},
    {.name = "delta", .draw = delta_draw, .prepare = delta_scale, .want = delta_want, .tolerance = 3e-6},
    {.name = "delta_backward",
     .draw = delta_backward_draw,
     .prepare = delta_backward_prepare,
     .want = delta_backward_want,
     .loss = delta_loss,
     .slopes = {{"q", "dq"}, {"k", "dk"}, {"v", "dv"}, {"a", "da"}, {"b", "db"}},
     .tolerance = 5e-6},
};

/* --- rows of a micro-batch that lie one behind the other --- */

enum { PACKED_ROWS = 4, PACKED_TOKENS = 109, PACKED_HEADS = 2, PACKED_DIM = 16, PACKED_OUTPUTS = 10 };

/* The ops of a gated delta net, or of a state space, on the same inputs, with outputs of their own. */
struct packed_run {
    uint32_t begin, tokens, rows, taps; /* taps: of a convolution with silu; fewer than CONV_TAPS: without */
    bool scan;
    struct operand x, weight, positions, q, k, v, gates, head, dout, work, row_start;
    struct operand
        out[PACKED_OUTPUTS]; /* y, dx, out, dq, dk, dv, da and db, rates, error or skips, dweight */
};

static const uint32_t packed_width[PACKED_OUTPUTS] = {PACKED_DIM,
                                                      PACKED_DIM,
                                                      PACKED_HEADS *PACKED_DIM,
                                                      PACKED_DIM,
                                                      PACKED_DIM,
                                                      PACKED_HEADS *PACKED_DIM,
                                                      2 * PACKED_HEADS,
                                                      PACKED_HEADS,
                                                      PACKED_HEADS *PACKED_DIM,
                                                      0};

static struct operand packed_at(const struct packed_run *run, struct operand operand, uint32_t width)
{
    operand.at += 4ull * run->begin * width;
    return operand;
}

static struct operand packed_out(const struct packed_run *run, uint32_t output)
{
    return packed_at(run, run->out[output], packed_width[output]);
}

static void packed_submit(struct bench *b, const struct packed_run *r)
{
    enum { D = PACKED_DIM, V = PACKED_HEADS * PACKED_DIM, G = 2 * PACKED_HEADS };
    struct operand gates = packed_at(r, r->gates, G), dgates = packed_out(r, 6), b_at = gates, db = dgates;
    struct operand none = {0}, dbias = r->scan ? r->out[9] : none;
    b_at.at += 4 * PACKED_HEADS;
    db.at += 4 * PACKED_HEADS;
    dbias.at += 4ull * r->taps * D;
    const struct op_conv conv = {.tokens = r->tokens,
                                 .width = D,
                                 .ldx = D,
                                 .ldy = D,
                                 .taps = r->taps,
                                 .plain = r->taps < CONV_TAPS,
                                 .x = packed_at(r, r->x, D),
                                 .weight = r->weight,
                                 .bias = r->scan ? r->weight : none,
                                 .positions = packed_at(r, r->positions, 1)};
    const struct op_delta delta = {.rows = r->rows,
                                   .tokens = r->tokens,
                                   .heads = PACKED_HEADS,
                                   .key_heads = 1,
                                   .key_dim = D,
                                   .value_dim = D,
                                   .ld = V,
                                   .ldg = G,
                                   .q = packed_at(r, r->q, V),
                                   .k = packed_at(r, r->k, V),
                                   .v = packed_at(r, r->v, V),
                                   .a = gates,
                                   .b = b_at,
                                   .decay = r->head,
                                   .dt_bias = r->head,
                                   .row_start = r->row_start,
                                   .scan = r->scan,
                                   .skip = r->head,
                                   .error = packed_out(r, 8)};
    struct op op = {.kind = OP_CONV, .conv = conv};
    op.conv.y = packed_out(r, 0);
    submit(b, op);
    submit(b, (struct op){.kind = OP_CONV_BACKWARD,
                          .conv_backward = {.forward = conv,
                                            .lddx = D,
                                            .dy = packed_at(r, r->x, D),
                                            .dx = packed_out(r, 1),
                                            .dweight = r->out[9],
                                            .dbias = dbias}});
    op = (struct op){.kind = OP_DELTA, .delta = delta};
    op.delta.out = packed_out(r, 2);
    submit(b, op);
    struct op_delta_backward backward = {.forward = delta,
                                         .ldd = V,
                                         .dout = packed_at(r, r->dout, V),
                                         .work = r->work,
                                         .dv = packed_out(r, 5),
                                         .da = dgates,
                                         .db = db,
                                         .rates = packed_out(r, 7),
                                         .skips = packed_at(r, r->out[8], PACKED_HEADS)};
    /* the heads of q and k are half as wide as those of v, but the op has one row distance for all */
    backward.dq = packed_at(r, r->out[3], V);
    backward.dk = packed_at(r, r->out[4], V);
    submit(b, (struct op){.kind = OP_DELTA_BACKWARD, .delta_backward = backward});
}

static void packed_inputs(struct bench *b, const uint32_t starts[PACKED_ROWS + 1], uint32_t taps, bool scan,
                          struct packed_run *run)
{
    enum { V = PACKED_HEADS * PACKED_DIM, T = PACKED_TOKENS };
    const float slow[PACKED_HEADS] = {-2.9957323f, -2.9957323f}; /* log 0.05 */
    uint32_t positions[T];
    double copy[T * V];
    for (uint32_t row = 0; row < PACKED_ROWS; row++)
        for (uint32_t t = starts[row]; t < starts[row + 1]; t++)
            positions[t] = t - starts[row];
    *run = (struct packed_run){.tokens = T, .rows = PACKED_ROWS, .taps = taps, .scan = scan};
    run->x = normal(b, T * PACKED_DIM, copy);
    run->weight = normal(b, PACKED_DIM * taps, copy);
    run->positions = bytes_in(b, positions, sizeof(positions), DTYPE_U32);
    struct operand *const wide[] = {&run->q, &run->k, &run->v, &run->dout};
    for (int i = 0; i < 4; i++)
        *wide[i] = normal(b, T * V, copy);
    run->gates = normal(b, T * 2 * PACKED_HEADS, copy);
    run->head = bytes_in(b, slow, sizeof(slow), DTYPE_F32);
    run->work = empty(b, T * PACKED_HEADS * (2 * PACKED_DIM + 1));
    run->row_start = bytes_in(b, starts, 4 * (PACKED_ROWS + 1), DTYPE_U32);
}

static void packed_outputs(struct bench *b, struct packed_run *run)
{
    static const float zeros[PACKED_TOKENS * PACKED_HEADS * PACKED_DIM];
    for (uint32_t i = 0; i < PACKED_OUTPUTS; i++)
        run->out[i] = bytes_in(b, zeros, sizeof(zeros), DTYPE_F32);
}

static void packed_rows_with(struct bench *b, bool weights, uint32_t taps, bool scan)
{
    static const uint32_t starts[PACKED_ROWS + 1] = {0, 5, 75, 76, PACKED_TOKENS};
    static uint32_t first[PACKED_TOKENS * PACKED_HEADS * PACKED_DIM],
        second[PACKED_TOKENS * PACKED_HEADS * PACKED_DIM];
    struct packed_run packed, alone;
    struct err err;
    packed_inputs(b, starts, taps, scan, &packed);
    alone = packed;
    packed_outputs(b, &packed);
    packed_outputs(b, &alone);
    packed_submit(b, &packed);
    for (uint32_t row = 0; row < PACKED_ROWS; row++) {
        const uint32_t one[] = {0, starts[row + 1] - starts[row]};
        alone.begin = starts[row];
        alone.tokens = one[1];
        alone.rows = 1;
        alone.row_start = bytes_in(b, one, sizeof(one), DTYPE_U32);
        packed_submit(b, &alone);
    }
    for (uint32_t i = 0; i < (weights ? PACKED_OUTPUTS : PACKED_OUTPUTS - 1); i++) {
        check(buffer_read(packed.out[i].buffer, 0, first, sizeof(first), &err));
        check(buffer_read(alone.out[i].buffer, 0, second, sizeof(second), &err));
        check(device_sync(b->device, &err));
        for (uint32_t at = 0; at < sizeof(first) / 4; at++)
            if (first[at] != second[at])
                fail_msg("output %u differs at %u (%s, %s)", i, at, device_kind(b->device),
                         device_isa(b->device));
    }
}

/* Four packed rows give, to the bit, what each gives alone: outputs and gradients, with slow decay, so that a
 * state or a convolution that crossed from one row to the next would show. `weights`: those of the
 * convolution's weights, too, which devices may add in another order. */
static inline void packed_rows_are_single_rows_on(struct bench *b, bool weights)
{
    for (uint32_t taps = CONV_TAPS - 1; taps <= CONV_TAPS; taps++)
        packed_rows_with(b, weights, taps, false);
    packed_rows_with(b, weights, CONV_TAPS, true);
}
