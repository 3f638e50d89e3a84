/* Kernels on flat arrays and plain rows, with four values per thread. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_FLAT_K_H
#define MOTLEY_ENGINE_GPU_KERNELS_FLAT_K_H

#include "engine/gpu/kernels/four.h"

#define FLAT_KERNELS(X)                                                                                      \
    X(add_rows, 256)                                                                                         \
    X(copy_rows, 256)                                                                                        \
    X(bias_rows, 256)                                                                                        \
    X(softcap, 256) X(scale, 256) X(glu, 256) X(glu_backward, 256) X(cast, 256) X(cast_rows, 256)

/* y[rows,width] += alpha * x. For `wide`, here and in other kernels, see four.h. */
struct add_rows_args {
    uint64_t x, y;
    uint32_t rows, width, ldx, ldy, wide;
    float alpha;
};

/* y[rows,width] = x, or `vectors` such vectors in a row, vx and vy values apart */
struct copy_rows_args {
    uint64_t x, y;
    uint32_t rows, width, ldx, ldy, wide, vectors, vx, vy;
};

/* x[rows,width] += bias[width] */
struct bias_rows_args {
    uint64_t x, bias;
    uint32_t rows, width, ldx, wide;
};

/* x[count] = cap * tanh(x / cap) */
struct scale_args {
    uint64_t x, factor, count;
    uint32_t wide;
};

struct softcap_args {
    uint64_t x, count;
    uint32_t wide;
    float cap;
};

/* The form of a gate (glu_form in op.h): gelu is its tanh form; alpha is 1 unless it is clamped. */
struct glu_gate {
    uint32_t gelu, clamped;
    float limit, alpha;
};

/* act[tokens,width] = f(gate) * up, with gate_up[tokens, 2 * width]; types are ELEMENT_… (four.h) */
struct glu_args {
    uint64_t gate_up, act;
    uint32_t tokens, width, gate_up_as, act_as, wide;
    struct glu_gate gate;
};

/* gate_up is replaced by its gradient */
struct glu_backward_args {
    uint64_t gate_up, dact;
    uint32_t tokens, width, gate_up_as, dact_as, wide;
    struct glu_gate gate;
};

/* y[count] = x, converted from type x_as to y_as (ELEMENT_…, four.h) */
struct cast_args {
    uint64_t x, y, count;
    uint32_t x_as, y_as, wide;
};

/* y[rows,width] = x, which is f32; rows of y begin at multiples of 16 bytes. */
struct cast_rows_args {
    uint64_t x, y;
    uint32_t rows, width, ldx, ldy, y_as, wide;
};

#ifdef GPU_KERNELS

KERNEL(add_rows, 256)
{
    struct four_position at = place_in_rows(args.rows, args.width);
    const float *x = POINTER(const float, args.x);
    float *y = POINTER(float, args.y);
    struct four a = four_load(x, at.row * args.ldx + at.column, at.n, args.wide);
    struct four b = four_load(y, at.row * args.ldy + at.column, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++)
        b.v[j] = math_fma(args.alpha, a.v[j], b.v[j]);
    four_store(y, at.row * args.ldy + at.column, at.n, args.wide, b);
}

KERNEL(copy_rows, 256)
{
    struct four_position at = place_in_rows((uint64_t)args.rows * args.vectors, args.width);
    uint64_t row = at.row, vector = 0;
    if (args.vectors > 1) {
        row = at.row / args.vectors;
        vector = at.row % args.vectors;
    }
    struct four a = four_load(POINTER(const float, args.x), row * args.ldx + vector * args.vx + at.column,
                              at.n, args.wide);
    four_store(POINTER(float, args.y), row * args.ldy + vector * args.vy + at.column, at.n, args.wide, a);
}

KERNEL(bias_rows, 256)
{
    struct four_position at = place_in_rows(args.rows, args.width);
    float *x = POINTER(float, args.x);
    struct four a = four_load(x, at.row * args.ldx + at.column, at.n, args.wide);
    struct four b = four_load(POINTER(const float, args.bias), at.column, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++)
        a.v[j] += b.v[j];
    four_store(x, at.row * args.ldx + at.column, at.n, args.wide, a);
}

FUNCTION float softcapped(float x, float cap)
{
    return cap * math_tanh(x / cap);
}

KERNEL(softcap, 256)
{
    struct four_position at = place_in_array(args.count);
    float *x = POINTER(float, args.x);
    struct four a = four_load(x, at.column, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++)
        a.v[j] = softcapped(a.v[j], args.cap);
    four_store(x, at.column, at.n, args.wide, a);
}

KERNEL(scale, 256)
{
    struct four_position at = place_in_array(args.count);
    float *x = POINTER(float, args.x), factor = LOAD(POINTER(const float, args.factor), 0);
    struct four a = four_load(x, at.column, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++)
        a.v[j] *= factor;
    four_store(x, at.column, at.n, args.wide, a);
}

FUNCTION float sigmoid(float x)
{
    return 1.0f / (1.0f + math_exp(-x));
}

/* All gates are x * sigmoid(z(x)). For silu z is x, clamped it is alpha * x. The tanh form of gelu has z =
 * sqrt(8 / pi) * (x + 0.044715 x^3), because 1 + tanh(u) = 2 * sigmoid(2u). */
FUNCTION float gate_sigmoid(const struct glu_gate *gate, float x)
{
    float z = x * gate->alpha;
    if (gate->gelu)
        z = x * math_fma(x * x, 0.0713548163f, 1.59576912f);
    return sigmoid(z);
}

/* dz / dx of the gate's z(x), which gate_sigmoid describes. */
FUNCTION float gate_slope(const struct glu_gate *gate, float x)
{
    return gate->gelu ? math_fma(x * x, 0.214064449f, 1.59576912f) : gate->alpha;
}

/* Clamps gate and up, and adds 1 to up, where the form is clamped. */
FUNCTION void glu_clamp(const struct glu_gate *gate, float *g, float *u)
{
    if (!gate->clamped)
        return;
    *g = *g > gate->limit ? gate->limit : *g;
    *u = *u > gate->limit ? gate->limit : *u;
    *u = (*u < -gate->limit ? -gate->limit : *u) + 1.0f;
}

KERNEL(glu, 256)
{
    struct four_position at = place_in_rows(args.tokens, args.width);
    uint64_t gate = at.row * 2 * args.width + at.column;
    struct four g = four_load_as(args.gate_up_as, args.gate_up, gate, at.n, args.wide);
    struct four u = four_load_as(args.gate_up_as, args.gate_up, gate + args.width, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++) {
        float x = g.v[j], up = u.v[j];
        glu_clamp(&args.gate, &x, &up);
        g.v[j] = x * gate_sigmoid(&args.gate, x) * up;
    }
    four_store_as(args.act_as, args.act, at.row * args.width + at.column, at.n, args.wide, g);
}

KERNEL(glu_backward, 256)
{
    struct four_position at = place_in_rows(args.tokens, args.width);
    uint64_t gate = at.row * 2 * args.width + at.column;
    struct four g = four_load_as(args.gate_up_as, args.gate_up, gate, at.n, args.wide);
    struct four u = four_load_as(args.gate_up_as, args.gate_up, gate + args.width, at.n, args.wide);
    struct four d = four_load_as(args.dact_as, args.dact, at.row * args.width + at.column, at.n, args.wide);
    for (uint32_t j = 0; j < 4; j++) {
        float x = g.v[j], up = u.v[j];
        glu_clamp(&args.gate, &x, &up);
        float s = gate_sigmoid(&args.gate, x), value = x * s;
        uint32_t above = args.gate.clamped && g.v[j] > args.gate.limit;
        uint32_t outside = args.gate.clamped && (u.v[j] > args.gate.limit || u.v[j] < -args.gate.limit);
        g.v[j] = above ? 0.0f : d.v[j] * up * math_fma(value * (1.0f - s), gate_slope(&args.gate, x), s);
        u.v[j] = outside ? 0.0f : d.v[j] * value;
    }
    four_store_as(args.gate_up_as, args.gate_up, gate, at.n, args.wide, g);
    four_store_as(args.gate_up_as, args.gate_up, gate + args.width, at.n, args.wide, u);
}

KERNEL(cast, 256)
{
    struct four_position at = place_in_array(args.count);
    struct four a = four_load_as(args.x_as, args.x, at.column, at.n, args.wide);
    four_store_as(args.y_as, args.y, at.column, at.n, args.wide, a);
}

KERNEL(cast_rows, 256)
{
    struct four_position at = place_in_rows(args.rows, args.width);
    struct four a = four_load(POINTER(const float, args.x), at.row * args.ldx + at.column, at.n, args.wide);
    four_store_as(args.y_as, args.y, at.row * args.ldy + at.column, at.n, 1, a);
}

#endif
#endif
