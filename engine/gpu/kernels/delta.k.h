/* Kernels of gated delta nets: gates, the short convolution and the delta rule. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_DELTA_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_DELTA_K_H

#include "engine/gpu/kernels/flat.k.h"
#include "engine/gpu/kernels/team.h"

#define DELTA_KERNELS(X)                                                                                     \
    X(gate_rows, 256)                                                                                        \
    X(gate_rows_backward, 256)                                                                               \
    X(conv_rows, 256)                                                                                        \
    X(conv_past, 256)                                                                                        \
    X(conv_rows_backward, 256)                                                                               \
    X(conv_weights, 256)                                                                                     \
    X(delta_forward, 128)                                                                                    \
    X(delta_values, 128)                                                                                     \
    X(delta_reads, 128)                                                                                      \
    X(delta_writes, 128) X(delta_join, 256) X(delta_decay, 128)

enum {
    DELTA_LANES = 32, /* rows or columns of a state that a block of the delta rule's kernels has */
    DELTA_PARTS = 4,  /* groups of threads that share them, each with the same number of the other side */
    DELTA_SIDE = DELTA_LANES * DELTA_PARTS, /* the longest side of a state: DELTA_DIM_MAX */
    CONV_KERNEL_TAPS = 4                    /* CONV_TAPS */
};

/* y[rows, vectors * width] = x * f(z), for `count` = rows * vectors vectors (op_gate). silu: f is silu;
 * plain: f(z) is z; else sigmoid. Backward also reads dy and writes dx and dz. */
struct gate_rows_args {
    uint64_t x, z, y, dy, dx, dz;
    uint32_t count, vectors, width, ldz, vz, silu, plain, wide;
};
struct gate_rows_backward_args {
    struct gate_rows_args of;
};

/* op_conv and op_conv_backward. Forward handles four channels of a token in a thread. partial[chunk, width *
 * taps], f64, gets the weights' gradient of `chunk_tokens` tokens, and partial_bias[chunk, width] the
 * bias's. */
struct conv_rows_args {
    uint64_t x, weight, bias, positions, past, y, dy, dx, partial, partial_bias;
    uint32_t tokens, width, ldx, ldy, lddx, wide, chunk_tokens, taps, plain;
};
struct conv_past_args {
    struct conv_rows_args of;
};
struct conv_rows_backward_args {
    struct conv_rows_args of;
};
struct conv_weights_args {
    struct conv_rows_args of;
};

/* op_delta and op_delta_backward; the fields have these ops' names. eq and ek [tokens, heads, key_dim] are
 * each head's gradients of q and k, flow [tokens, heads, blocks] what a token reads of the state minus what
 * is read of its own, by blocks of DELTA_LANES rows of the state. With scan `error` is v. lde: the row
 * distance of error. */
struct delta_forward_args {
    uint64_t q, k, v, a, b, decay, dt_bias, row_start, state, error, out;
    uint64_t dout, eq, ek, flow, dq, dk, dv, da, db, rates, skip, skips;
    uint32_t rows, tokens, heads, key_heads, key_dim, value_dim, ld, ldg, ldd, lde, begin, blocks, scan;
};
struct delta_values_args {
    struct delta_forward_args of;
};
struct delta_reads_args {
    struct delta_forward_args of;
};
struct delta_writes_args {
    struct delta_forward_args of;
};
struct delta_join_args {
    struct delta_forward_args of;
};
struct delta_decay_args {
    struct delta_forward_args of;
};

#ifdef GPU_KERNELS

/* --- gates --- */

KERNEL(gate_rows, 256)
{
    struct four_position at = place_in_rows(args.count, args.width);
    uint64_t row = at.row / args.vectors, z_at = row * args.ldz + at.row % args.vectors * args.vz + at.column;
    uint64_t own = at.row * args.width + at.column;
    struct four x = four_load(POINTER(const float, args.x), own, at.n, args.wide);
    struct four z = four_load(POINTER(const float, args.z), z_at, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++)
        x.v[j] *= args.plain ? z.v[j] : (args.silu ? z.v[j] : 1.0f) * sigmoid(z.v[j]);
    four_store(POINTER(float, args.y), own, at.n, args.wide, x);
}

KERNEL(gate_rows_backward, 256)
{
    const struct gate_rows_args *op = &args.of;
    struct four_position at = place_in_rows(op->count, op->width);
    uint64_t row = at.row / op->vectors, z_at = row * op->ldz + at.row % op->vectors * op->vz + at.column;
    uint64_t own = at.row * op->width + at.column;
    struct four x = four_load(POINTER(const float, op->x), own, at.n, op->wide);
    struct four z = four_load(POINTER(const float, op->z), z_at, at.n, op->wide);
    struct four dy = four_load(POINTER(const float, op->dy), own, at.n, op->wide);
    for (uint32_t j = 0; j < 4; j++) {
        float s = sigmoid(z.v[j]), slope = s * (1.0f - s);
        x.v[j] *= dy.v[j] * (op->plain ? 1.0f : op->silu ? s + z.v[j] * slope : slope);
        dy.v[j] *= op->plain ? z.v[j] : op->silu ? z.v[j] * s : s;
    }
    four_store(POINTER(float, op->dz), z_at, at.n, op->wide, x);
    four_store(POINTER(float, op->dx), own, at.n, op->wide, dy);
}

/* --- the short convolution --- */

/* Four channels' values of the token j places before t, or 0 where t has no such predecessor. */
FUNCTION struct four conv_before(const struct conv_rows_args *op, uint64_t t, uint32_t j, uint32_t before,
                                 uint64_t column, uint32_t n)
{
    if (j > before)
        n = 0;
    if (j > t)
        return four_load(POINTER(const float, op->past), (op->taps - 1 + t - j) * op->width + column, n, 0);
    return four_load(POINTER(const float, op->x), (t - (n ? j : 0)) * op->ldx + column, n, op->wide);
}

/* The sums of four channels at token t; taps[j] gets their weights of the token j places before it. */
FUNCTION struct four conv_sums(const struct conv_rows_args *op, uint64_t t, uint64_t column, uint32_t n)
{
    const float *weight = POINTER(const float, op->weight);
    uint32_t before = n == 0 ? 0 : LOAD(POINTER(const uint32_t, op->positions), t);
    struct four sum = four_load(POINTER(const float, op->bias), column, op->bias ? n : 0, 0);
    UNROLL
    for (uint32_t j = 0; j < CONV_KERNEL_TAPS; j++) {
        struct four x = conv_before(op, t, j, before, column, j < op->taps ? n : 0);
        for (uint32_t i = 0; i < 4; i++)
            if (i < n && j < op->taps)
                sum.v[i] =
                    math_fma(LOAD(weight, (column + i) * op->taps + op->taps - 1 - j), x.v[i], sum.v[i]);
    }
    return sum;
}

KERNEL(conv_rows, 256)
{
    struct four_position at = place_in_rows(args.tokens, args.width);
    struct four s = conv_sums(&args, at.row, at.column, at.n);
    for (uint32_t i = 0; i < 4; i++)
        s.v[i] *= args.plain ? 1.0f : sigmoid(s.v[i]);
    four_store(POINTER(float, args.y), at.row * args.ldy + at.column, at.n, args.wide, s);
}

/* Each thread moves a channel's last values to `past`. */
KERNEL(conv_past, 256)
{
    const struct conv_rows_args *op = &args.of;
    uint64_t column = (uint64_t)block_x() * 256 + thread();
    float *past = POINTER(float, op->past);
    if (column >= op->width)
        return;
    for (uint32_t i = 0; i < op->taps - 1; i++) {
        uint64_t from = (uint64_t)op->tokens + i; /* counted from the first value that past holds */
        float x;
        if (from < op->taps - 1)
            x = LOAD(past, from * op->width + column);
        else
            x = LOAD(POINTER(const float, op->x), (from - (op->taps - 1)) * op->ldx + column);
        STORE(past, i * op->width + column, x);
    }
}

/* The gradient of the sum s, whose silu (or itself) is y. */
FUNCTION float conv_slope(const struct conv_rows_args *op, float s, float dy)
{
    float f = sigmoid(s);
    return op->plain ? dy : dy * math_fma(s * f, 1.0f - f, f);
}

KERNEL(conv_rows_backward, 256)
{
    const struct conv_rows_args *op = &args.of;
    struct four_position at = place_in_rows(op->tokens, op->width);
    const float *weight = POINTER(const float, op->weight);
    struct four dx = conv_before(op, at.row, CONV_KERNEL_TAPS, 0, at.column, 0);
    ROLLED
    for (uint32_t j = 0; j < op->taps && at.n > 0 && at.row + j < op->tokens; j++) {
        uint64_t t = at.row + j;
        if (LOAD(POINTER(const uint32_t, op->positions), t) < j)
            break; /* the token is of the next row */
        struct four s = conv_sums(op, t, at.column, at.n);
        struct four dy = four_load(POINTER(const float, op->dy), t * op->ldy + at.column, at.n, op->wide);
        for (uint32_t i = 0; i < 4; i++)
            if (i < at.n)
                dx.v[i] = math_fma(LOAD(weight, (at.column + i) * op->taps + op->taps - 1 - j),
                                   conv_slope(op, s.v[i], dy.v[i]), dx.v[i]);
    }
    four_store(POINTER(float, op->dx), at.row * op->lddx + at.column, at.n, op->wide, dx);
}

/* A thread has a channel (block_x) of a chunk of tokens (block_y). */
KERNEL(conv_weights, 256)
{
    const struct conv_rows_args *op = &args.of;
    uint64_t column = (uint64_t)block_x() * 256 + thread();
    uint32_t begin = block_y() * op->chunk_tokens, left = op->tokens - begin;
    uint32_t end = begin + (left < op->chunk_tokens ? left : op->chunk_tokens);
    double sum0 = 0.0, sum1 = 0.0, sum2 = 0.0, sum3 = 0.0, bias = 0.0;
    if (column >= op->width)
        return;
    for (uint64_t t = begin; t < end; t++) {
        uint32_t before = LOAD(POINTER(const uint32_t, op->positions), t);
        float s = conv_sums(op, t, column, 1).v[0];
        double ds = (double)conv_slope(op, s, LOAD(POINTER(const float, op->dy), t * op->ldy + column));
        bias += ds;
        sum0 += ds * (double)conv_before(op, t, 0, before, column, 1).v[0];
        sum1 += ds * (double)conv_before(op, t, 1, before, column, 1).v[0];
        sum2 += ds * (double)conv_before(op, t, 2, before, column, op->taps > 2).v[0];
        sum3 += ds * (double)conv_before(op, t, 3, before, column, op->taps > 3).v[0];
    }
    double *partial = POINTER(double, op->partial);
    uint64_t to = ((uint64_t)block_y() * op->width + column) * op->taps;
    if (op->taps > 3)
        STORE(partial, to + op->taps - 4, sum3);
    if (op->taps > 2)
        STORE(partial, to + op->taps - 3, sum2);
    STORE(partial, to + op->taps - 2, sum1);
    STORE(partial, to + op->taps - 1, sum0);
    if (op->partial_bias != 0)
        STORE(POINTER(double, op->partial_bias), (uint64_t)block_y() * op->width + column, bias);
}

/* --- the gated delta rule ---
 *
 * A block has DELTA_LANES columns of a head's state S[key_dim, value_dim], or as many rows: columns are
 * independent where v follows from the state, and rows where q and k do. Thread `lane` of part p has values
 * p * DELTA_LANES … of its row or column in registers. Sums over a row or column are made of the parts' sums
 * in order. */

struct delta_place {
    uint32_t lane, part, side; /* side: the number of the thread's row or column */
    uint32_t head, key_head;
    uint64_t begin, end; /* the tokens of the block's row */
};

FUNCTION struct delta_place delta_place_of(const struct delta_forward_args *op)
{
    struct delta_place place;
    const uint32_t *row_start = POINTER(const uint32_t, op->row_start);
    place.lane = thread() % DELTA_LANES;
    place.part = thread() / DELTA_LANES;
    place.side = block_x() * DELTA_LANES + place.lane;
    place.head = block_y();
    place.key_head = place.head / (op->heads / op->key_heads);
    place.begin = LOAD(row_start, block_z());
    place.end = LOAD(row_start, block_z() + 1);
    assert_device(place.begin <= place.end && place.end <= op->tokens);
    return place;
}

/* log gamma of a token and its slope by `a`, and the softplus dt, whose logarithm has the slope dt_slope.
 * log(1 + y) is log(u) * y / (u - 1) for u = 1 + y, which keeps the digits of a small y. */
struct delta_rate {
    float log_gamma, slope, dt, dt_slope;
};

FUNCTION struct delta_rate delta_rate_of(const struct delta_forward_args *op, uint64_t token, uint32_t head)
{
    struct delta_rate rate;
    float x = LOAD(POINTER(const float, op->a), token * op->ldg + head) +
              LOAD(POINTER(const float, op->dt_bias), head);
    float y = math_exp(x < 0.0f ? x : -x), u = 1.0f + y;
    float log1p = u == 1.0f ? y : math_log(u) * (y / (u - 1.0f));
    float speed = -math_exp(LOAD(POINTER(const float, op->decay), head));
    rate.dt = math_max(x, 0.0f) + log1p;
    rate.dt_slope = x < -20.0f ? 1.0f : sigmoid(x) / rate.dt;
    rate.log_gamma = speed * rate.dt;
    rate.slope = speed * sigmoid(x);
    return rate;
}

/* dt: that of the token's rate. */
FUNCTION float delta_beta_of(const struct delta_forward_args *op, uint64_t token, uint32_t head, float dt)
{
    return op->scan ? dt : sigmoid(LOAD(POINTER(const float, op->b), token * op->ldg + head));
}

FUNCTION uint64_t delta_key_at(const struct delta_forward_args *op, uint64_t token, uint32_t key_head)
{
    return token * op->ld + (uint64_t)key_head * op->key_dim;
}

/* Loads p[at + i] for the thread's number i < n, else 0. */
FUNCTION float delta_load(uint64_t p, uint64_t at, uint32_t i, uint32_t n)
{
    return i < n ? LOAD(POINTER(const float, p), at + i) : 0.0f;
}

KERNEL(delta_forward, 128)
{
    SHARED(float, q, DELTA_SIDE);
    SHARED(float, k, DELTA_SIDE);
    SHARED(float, sums, DELTA_SIDE);
    SHARED(float, outs, DELTA_SIDE);
    struct delta_place me = delta_place_of(&args);
    uint32_t first = me.part * DELTA_LANES;
    float s[DELTA_LANES];
    float *state = POINTER(float, args.state);
    UNROLL
    for (uint32_t i = 0; i < DELTA_LANES; i++) {
        uint64_t row = (uint64_t)me.head * args.key_dim + first + i;
        s[i] = 0.0f;
        if (args.state != 0 && args.begin > 0 && first + i < args.key_dim && me.side < args.value_dim)
            s[i] = LOAD(state, row * args.value_dim + me.side);
    }
    for (uint64_t t = me.begin; t < me.end; t++) {
        uint64_t key = delta_key_at(&args, t, me.key_head);
        uint64_t value = (uint64_t)me.head * args.value_dim, own = t * args.heads * args.value_dim + value;
        PUT(q, thread(), delta_load(args.q, key, thread(), args.key_dim));
        PUT(k, thread(), delta_load(args.k, key, thread(), args.key_dim));
        float v = delta_load(args.v, t * args.ld + value, me.side, args.value_dim);
        struct delta_rate rate = delta_rate_of(&args, t, me.head);
        float gamma = math_exp(rate.log_gamma), beta = delta_beta_of(&args, t, me.head, rate.dt);
        float sum = 0.0f, out = 0.0f;
        barrier();
        UNROLL
        for (uint32_t i = 0; i < DELTA_LANES; i++)
            sum = math_fma(s[i], GET(k, first + i), sum);
        PUT(sums, thread(), sum);
        barrier();
        sum = 0.0f;
        for (uint32_t p = 0; p < DELTA_PARTS; p++)
            sum += GET(sums, p * DELTA_LANES + me.lane);
        float error = math_fma(args.scan ? 0.0f : -gamma, sum, v), change = beta * error;
        UNROLL
        for (uint32_t i = 0; i < DELTA_LANES; i++) {
            s[i] = math_fma(GET(k, first + i), change, gamma * s[i]);
            out = math_fma(s[i], GET(q, first + i), out);
        }
        PUT(outs, thread(), out);
        barrier();
        if (me.part == 0 && me.side < args.value_dim) {
            out = args.scan ? LOAD(POINTER(const float, args.skip), me.head) * error : 0.0f;
            for (uint32_t p = 0; p < DELTA_PARTS; p++)
                out += GET(outs, p * DELTA_LANES + me.lane);
            STORE(POINTER(float, args.out), own + me.side, out);
            if (!args.scan)
                STORE(POINTER(float, args.error), own + me.side, error);
        }
    }
    UNROLL
    for (uint32_t i = 0; i < DELTA_LANES; i++) {
        uint64_t row = (uint64_t)me.head * args.key_dim + first + i;
        if (args.state != 0 && first + i < args.key_dim && me.side < args.value_dim)
            STORE(state, row * args.value_dim + me.side, s[i]);
    }
}

/* dv, from the last token to the first: columns of dS. */
KERNEL(delta_values, 128)
{
    SHARED(float, q, DELTA_SIDE);
    SHARED(float, k, DELTA_SIDE);
    SHARED(float, sums, DELTA_SIDE);
    const struct delta_forward_args *op = &args.of;
    struct delta_place me = delta_place_of(op);
    uint32_t first = me.part * DELTA_LANES;
    float d[DELTA_LANES];
    UNROLL
    for (uint32_t i = 0; i < DELTA_LANES; i++)
        d[i] = 0.0f;
    for (uint64_t t = me.end; t-- > me.begin;) {
        uint64_t key = delta_key_at(op, t, me.key_head), value = (uint64_t)me.head * op->value_dim;
        barrier(); /* all have read the token before */
        PUT(q, thread(), delta_load(op->q, key, thread(), op->key_dim));
        PUT(k, thread(), delta_load(op->k, key, thread(), op->key_dim));
        float dout = delta_load(op->dout, t * op->heads * op->value_dim + value, me.side, op->value_dim);
        struct delta_rate rate = delta_rate_of(op, t, me.head);
        float gamma = math_exp(rate.log_gamma), sum = 0.0f;
        barrier();
        UNROLL
        for (uint32_t i = 0; i < DELTA_LANES; i++) {
            d[i] = math_fma(GET(q, first + i), dout, d[i]);
            sum = math_fma(d[i], GET(k, first + i), sum);
        }
        PUT(sums, thread(), sum);
        barrier();
        sum = 0.0f;
        for (uint32_t p = 0; p < DELTA_PARTS; p++)
            sum += GET(sums, p * DELTA_LANES + me.lane);
        float dv = delta_beta_of(op, t, me.head, rate.dt) * sum;
        UNROLL
        for (uint32_t i = 0; i < DELTA_LANES; i++)
            d[i] = gamma * math_fma(-GET(k, first + i), op->scan ? 0.0f : dv, d[i]);
        if (me.part == 0 && me.side < op->value_dim)
            STORE(POINTER(float, op->dv), t * op->ldd + value + me.side, dv);
    }
}

/* A token's vectors of value_dim values, in shared memory: dout, dv (with scan 0) and beta * error. */
FUNCTION void delta_share_values(const struct delta_forward_args *op, const struct delta_place *me,
                                 uint64_t t, float dt, float *dout, float *dv, float *change)
{
    uint64_t value = (uint64_t)me->head * op->value_dim, own = t * op->heads * op->value_dim + value;
    float beta = delta_beta_of(op, t, me->head, dt);
    PUT(dout, thread(), delta_load(op->dout, own, thread(), op->value_dim));
    PUT(dv, thread(), delta_load(op->dv, t * op->ldd + value, thread(), op->scan ? 0 : op->value_dim));
    PUT(change, thread(), beta * delta_load(op->error, t * op->lde + value, thread(), op->value_dim));
}

/* Adds the lanes' shares of a token's flow to flow[token, head, block]. */
FUNCTION void delta_flow(const struct delta_forward_args *op, const struct delta_place *me, uint64_t t,
                         float share, uint32_t first)
{
    uint64_t at = (t * op->heads + me->head) * op->blocks + block_x();
    float *flow = POINTER(float, op->flow), sum = warp_sum(me->part == 0 ? share : 0.0f);
    if (thread() == 0)
        STORE(flow, at, first ? sum : LOAD(flow, at) + sum);
}

/* What each token reads of the state, from the first token to the last: rows of S. */
KERNEL(delta_reads, 128)
{
    SHARED(float, dout, DELTA_SIDE);
    SHARED(float, dv, DELTA_SIDE);
    SHARED(float, change, DELTA_SIDE);
    SHARED(float, q_sums, DELTA_SIDE);
    SHARED(float, k_sums, DELTA_SIDE);
    const struct delta_forward_args *op = &args.of;
    struct delta_place me = delta_place_of(op);
    uint32_t first = me.part * DELTA_LANES;
    float s[DELTA_LANES];
    UNROLL
    for (uint32_t j = 0; j < DELTA_LANES; j++)
        s[j] = 0.0f;
    for (uint64_t t = me.begin; t < me.end; t++) {
        uint64_t key = delta_key_at(op, t, me.key_head);
        uint64_t own = (t * op->heads + me.head) * op->key_dim + me.side;
        float q = delta_load(op->q, key, me.side, op->key_dim);
        float k = delta_load(op->k, key, me.side, op->key_dim);
        struct delta_rate rate = delta_rate_of(op, t, me.head);
        float gamma = math_exp(rate.log_gamma), dq = 0.0f, dk = 0.0f;
        barrier();
        delta_share_values(op, &me, t, rate.dt, dout, dv, change);
        barrier();
        UNROLL
        for (uint32_t j = 0; j < DELTA_LANES; j++) {
            float x = gamma * s[j];
            dq = math_fma(x, GET(dout, first + j), dq);
            dk = math_fma(-x, GET(dv, first + j), dk);
            s[j] = math_fma(k, GET(change, first + j), x);
        }
        PUT(q_sums, thread(), dq);
        PUT(k_sums, thread(), dk);
        barrier();
        dq = dk = 0.0f;
        for (uint32_t p = 0; p < DELTA_PARTS; p++) {
            dq += GET(q_sums, p * DELTA_LANES + me.lane);
            dk += GET(k_sums, p * DELTA_LANES + me.lane);
        }
        if (me.part == 0 && me.side < op->key_dim) {
            STORE(POINTER(float, op->eq), own, dq);
            STORE(POINTER(float, op->ek), own, dk);
        }
        delta_flow(op, &me, t, math_fma(q, dq, k * dk), 1);
    }
}

/* What later tokens read of each token, from the last token to the first: rows of dS. */
KERNEL(delta_writes, 128)
{
    SHARED(float, dout, DELTA_SIDE);
    SHARED(float, dv, DELTA_SIDE);
    SHARED(float, change, DELTA_SIDE);
    SHARED(float, sums, DELTA_SIDE);
    const struct delta_forward_args *op = &args.of;
    struct delta_place me = delta_place_of(op);
    uint32_t first = me.part * DELTA_LANES;
    float d[DELTA_LANES];
    UNROLL
    for (uint32_t j = 0; j < DELTA_LANES; j++)
        d[j] = 0.0f;
    for (uint64_t t = me.end; t-- > me.begin;) {
        uint64_t key = delta_key_at(op, t, me.key_head);
        uint64_t own = (t * op->heads + me.head) * op->key_dim + me.side;
        float q = delta_load(op->q, key, me.side, op->key_dim);
        float k = delta_load(op->k, key, me.side, op->key_dim);
        struct delta_rate rate = delta_rate_of(op, t, me.head);
        float gamma = math_exp(rate.log_gamma), dk = 0.0f, *ek;
        barrier();
        delta_share_values(op, &me, t, rate.dt, dout, dv, change);
        barrier();
        UNROLL
        for (uint32_t j = 0; j < DELTA_LANES; j++) {
            dk = math_fma(d[j], GET(change, first + j), dk);
            d[j] = gamma * math_fma(-k, GET(dv, first + j), math_fma(q, GET(dout, first + j), d[j]));
        }
        PUT(sums, thread(), dk);
        barrier();
        dk = 0.0f;
        for (uint32_t p = 0; p < DELTA_PARTS; p++)
            dk += GET(sums, p * DELTA_LANES + me.lane);
        ek = POINTER(float, op->ek);
        if (me.part == 0 && me.side < op->key_dim)
            STORE(ek, own, LOAD(ek, own) + dk);
        delta_flow(op, &me, t, -k * dk, 0);
    }
}

/* A warp has a token's head of q and k: it adds the gradients of the heads of v that share it, and what a
 * token's output reads of the token itself; and it makes db, or with scan skips, and dt's part of da. */
KERNEL(delta_join, 256)
{
    const struct delta_forward_args *op = &args.of;
    uint64_t count = (uint64_t)op->tokens * op->key_heads;
    uint32_t group = op->heads / op->key_heads;
    for (uint64_t i = team_warp_index(256); i < count; i += team_warp_count(256)) {
        uint64_t t = i / op->key_heads, key_head = i % op->key_heads;
        uint64_t key = delta_key_at(op, t, (uint32_t)key_head), to = t * op->ldd + key_head * op->key_dim;
        for (uint32_t g = 0; g < group; g++) {
            uint32_t head = (uint32_t)key_head * group + g;
            uint64_t value = (uint64_t)head * op->value_dim, own = t * op->heads * op->value_dim + value;
            struct delta_rate rate = delta_rate_of(op, t, head);
            float beta = delta_beta_of(op, t, head, rate.dt), read = 0.0f, db = 0.0f;
            float *values = POINTER(float, op->dv);
            for (uint32_t j = lane(); j < op->value_dim; j += warp_size()) {
                float error = LOAD(POINTER(const float, op->error), t * op->lde + value + j);
                float dout = LOAD(POINTER(const float, op->dout), own + j);
                float dv = LOAD(values, t * op->ldd + value + j);
                read = math_fma(dout, error, read);
                db = math_fma(dv, error, db);
                if (op->scan)
                    STORE(values, t * op->ldd + value + j,
                          math_fma(LOAD(POINTER(const float, op->skip), head), dout, dv));
            }
            read = warp_sum(read);
            db = warp_sum(db);
            if (lane() == 0 && op->scan) {
                STORE(POINTER(float, op->skips), t * op->heads + head, read);
                STORE(POINTER(float, op->da), t * op->ldg + head, db * rate.dt_slope);
            } else if (lane() == 0) {
                STORE(POINTER(float, op->db), t * op->ldg + head, db * (1.0f - beta));
            }
            read *= beta;
            for (uint32_t j = lane(); j < op->key_dim; j += warp_size()) {
                uint64_t from = (t * op->heads + head) * op->key_dim + j;
                float *dq = POINTER(float, op->dq), *dk = POINTER(float, op->dk);
                float eq = math_fma(LOAD(POINTER(const float, op->k), key + j), read,
                                    LOAD(POINTER(const float, op->eq), from));
                float ek = math_fma(LOAD(POINTER(const float, op->q), key + j), read,
                                    LOAD(POINTER(const float, op->ek), from));
                STORE(dq, to + j, g == 0 ? eq : LOAD(dq, to + j) + eq);
                STORE(dk, to + j, g == 0 ? ek : LOAD(dk, to + j) + ek);
            }
        }
    }
}

/* The gradient of log gamma, from the last token of a row to the first; a thread has a head (block_x) of a
 * row (block_y). */
KERNEL(delta_decay, 128)
{
    const struct delta_forward_args *op = &args.of;
    const uint32_t *row_start = POINTER(const uint32_t, op->row_start);
    uint32_t head = block_x() * 128 + thread(), begin = LOAD(row_start, block_y());
    double gradient = 0.0;
    if (head >= op->heads)
        return;
    for (uint64_t t = LOAD(row_start, block_y() + 1); t-- > begin;) {
        struct delta_rate rate = delta_rate_of(op, t, head);
        for (uint32_t i = 0; i < op->blocks; i++)
            gradient += (double)LOAD(POINTER(const float, op->flow), (t * op->heads + head) * op->blocks + i);
        float *da = POINTER(float, op->da);
        double own = op->scan ? (double)LOAD(da, t * op->ldg + head) : 0.0;
        STORE(da, t * op->ldg + head, (float)(gradient * (double)rate.slope + own));
        STORE(POINTER(float, op->rates), t * op->heads + head, (float)(gradient * (double)rate.log_gamma));
    }
}

#endif
#endif
