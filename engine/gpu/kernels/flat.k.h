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

/* The form of a gate (glu_form in op.h): gelu is its tanh form, normal its exact one, square relu's square;
 * alpha is 1 unless it is clamped. */
struct glu_gate {
    uint32_t gelu, clamped, normal, square, plain;
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

/* The normal distribution function of x, given e^(-x^2/2), as the CPU's normal_of() has it. */
FUNCTION float normal_of(float x, float bell)
{
    float size = x < 0.0f ? -x : x, t = 1.0f / math_fma(size, 0.3f, 1.0f), y = 0.0356760174f;
    y = math_fma(y, t, -0.157208353f);
    y = math_fma(y, t, 0.206362739f);
    y = math_fma(y, t, -0.0536922403f);
    y = math_fma(y, t, 0.12856622f);
    y = math_fma(y, t, 0.0999120921f);
    y = math_fma(y, t, 0.120754182f);
    y = math_fma(y, t, 0.119629286f) * t * bell;
    return x < 0.0f ? y : 1.0f - y;
}

/* All gates are x * s(x), where s is sigmoid(z(x)) unless it is gelu's exact one or relu's. For silu z is x,
 * clamped it is alpha * x. The tanh form of gelu has z = sqrt(8 / pi) * (x + 0.044715 x^3), because 1 +
 * tanh(u) = 2 * sigmoid(2u). Sets *slope to the derivative of x * s(x). */
FUNCTION float gate_value(const struct glu_gate *gate, float x, float *slope)
{
    float z = x * gate->alpha, bend = gate->alpha;
    if (gate->gelu) {
        z = x * math_fma(x * x, 0.0713548163f, 1.59576912f);
        bend = math_fma(x * x, 0.214064449f, 1.59576912f);
    }
    float e = math_exp(gate->normal ? -0.5f * x * x : -z), s = 1.0f / (1.0f + e);
    *slope = math_fma(x * s * (1.0f - s), bend, s);
    if (gate->normal) {
        s = normal_of(x, e);
        *slope = math_fma(x, e * 0.398942280f, s);
    }
    if (gate->square) {
        s = x > 0.0f ? x : 0.0f;
        *slope = 2.0f * s;
    }
    return s;
}

/* Four of up, which counts as 1 where there is none. */
FUNCTION struct four up_load(const struct glu_gate *gate, uint32_t as, uint64_t from, uint64_t at, uint32_t n,
                             uint32_t wide)
{
    struct four up = {{1.0f, 1.0f, 1.0f, 1.0f}};
    return gate->plain ? up : four_load_as(as, from, at, n, wide);
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
    uint64_t gate = at.row * (args.gate.plain ? 1 : 2) * args.width + at.column;
    struct four g = four_load_as(args.gate_up_as, args.gate_up, gate, at.n, args.wide);
    struct four u = up_load(&args.gate, args.gate_up_as, args.gate_up, gate + args.width, at.n, args.wide);
    UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        float x = g.v[j], up = u.v[j], slope;
        glu_clamp(&args.gate, &x, &up);
        g.v[j] = x * gate_value(&args.gate, x, &slope) * up;
    }
    four_store_as(args.act_as, args.act, at.row * args.width + at.column, at.n, args.wide, g);
}

KERNEL(glu_backward, 256)
{
    struct four_position at = place_in_rows(args.tokens, args.width);
    uint64_t gate = at.row * (args.gate.plain ? 1 : 2) * args.width + at.column;
    struct four g = four_load_as(args.gate_up_as, args.gate_up, gate, at.n, args.wide);
    struct four u = up_load(&args.gate, args.gate_up_as, args.gate_up, gate + args.width, at.n, args.wide);
    struct four d = four_load_as(args.dact_as, args.dact, at.row * args.width + at.column, at.n, args.wide);
    UNROLL
    for (uint32_t j = 0; j < 4; j++) {
        float x = g.v[j], up = u.v[j];
        glu_clamp(&args.gate, &x, &up);
        float slope, s = gate_value(&args.gate, x, &slope), value = x * s;
        uint32_t above = args.gate.clamped && g.v[j] > args.gate.limit;
        uint32_t outside = args.gate.clamped && (u.v[j] > args.gate.limit || u.v[j] < -args.gate.limit);
        g.v[j] = above ? 0.0f : d.v[j] * up * slope;
        u.v[j] = outside ? 0.0f : d.v[j] * value;
    }
    four_store_as(args.gate_up_as, args.gate_up, gate, at.n, args.wide, g);
    if (!args.gate.plain)
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
