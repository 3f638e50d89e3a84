/* Row kernels, once per instruction set: the same source (kernels_body.h) compiled with vectors of 4, 8 or 16
 * floats. Pointers need no alignment. Pure functions of their arguments; each is deterministic.
 */
#ifndef MOTLEY_ENGINE_CPU_KERNELS_H
#define MOTLEY_ENGINE_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/scalars.h"

/* Depth of a block of a matrix product, and the scratch that transposes one of 64 columns. */
enum { GEMM_DEPTH = 128, GEMM_SCRATCH = GEMM_DEPTH * 64 };

/* What a matrix of a product is stored in, or rounded to. */
enum value_kind { VALUES_F32, VALUES_BF16, VALUES_F16, VALUE_KINDS };
struct gemm_values {
    const void *at;
    size_t ld; /* values from one row in memory to the next */
    enum value_kind kind;
    bool transposed; /* a is stored [k, m], b [n, k] */
};
/* c[m,n] = alpha * a b + beta * c, values of a and b rounded to `as`, bf16 or f16, first; k > 0. */
struct gemm_rounded {
    enum value_kind as;
    size_t m, n, k, ldc;
    float alpha, beta;
    struct gemm_values a, b;
    float *c;
};
/* Blocks of it: a's rows and b's columns side by side, and the depth of both; and the scratch for them and
 * for sums of all rows and the columns of the widest instruction set's strip. */
enum {
    ROUNDED_ROWS = 192,
    ROUNDED_COLUMNS = 256,
    ROUNDED_DEPTH = 256,
    ROUNDED_SCRATCH = ROUNDED_DEPTH * (ROUNDED_ROWS + ROUNDED_COLUMNS) + ROUNDED_ROWS * 64
};

/* Columns whose sums over rows one call of a kernel makes: no more. */
enum { COLUMNS_STRIP = 64 };

/* What the gradient of a norm's weight sums over: see op_rmsnorm_backward. */
struct norm_rows {
    const float *x, *dy;  /* of the first of the columns */
    const float *inverse; /* [rows, vectors] 1 / sqrt(mean(x^2) + eps) */
    size_t rows, vectors, width, ldx, lddy;
};

struct cross_entropy_scalars {
    float smoothing, cap; /* 0: none */
    bool gradient;
};

/* A map of 8-bit codes, rising, turned round: a magnitude's upper 16 bits name a bin, and at most one of the
 * boundaries between codes divides those that share it. The first bin holds all below 2^-23, which none
 * divides, the last 1 alone. */
enum {
    CODES = 256,
    CODE_BIN_FIRST = (127 - 23) << 7,
    CODE_BINS = (127 << 7) - CODE_BIN_FIRST + 1,
    CODE_NO_BOUND = 0x1FFFF
};
struct codes {
    float map[CODES];
    int32_t zero;             /* the code of 0 */
    uint32_t bins[CODE_BINS]; /* boundaries below the bin << 24 | lower 16 bits of that in it, or no bound */
};

struct kernels {
    const char *isa;
    uint32_t width; /* floats of a vector */
    /* 1 / sqrt(mean(x[n]^2) + eps) */
    float (*inverse_rms)(const float *x, size_t n, float eps);
    /* y[n] = x * r * (offset + w) */
    void (*rmsnorm)(const float *x, const float *w, float *y, size_t n, float r, float offset);
    /* dx[n] (unless NULL) = or += gradient; returns 1 / sqrt(mean(x^2) + eps) */
    float (*rmsnorm_backward)(const float *x, const float *w, const float *dy, float *dx, size_t n, float eps,
                              float offset, bool accumulate);
    /* dweight[n] += sum over rows and vectors of dy * x * inverse; n ≤ COLUMNS_STRIP */
    void (*norm_weight_sum)(const struct norm_rows *rows, float *dweight, size_t n);
    /* y[n] += sum over rows of x; n ≤ COLUMNS_STRIP */
    void (*column_sum)(const float *x, size_t ldx, size_t rows, float *y, size_t n);
    /* y[n] += alpha * x */
    void (*add)(const float *x, float alpha, float *y, size_t n);
    void (*from_bf16)(const uint16_t *x, float *y, size_t n);
    void (*from_f16)(const uint16_t *x, float *y, size_t n);
    /* rounded to nearest even; NaNs stay NaNs */
    void (*to_bf16)(const float *x, uint16_t *y, size_t n);
    void (*to_f16)(const float *x, uint16_t *y, size_t n);
    /* rotate one head of 2 * half values; sign 1, or -1 for the inverse */
    void (*rope)(float *x, const float *cosines, const float *sines, size_t half, float sign);
    /* x[n] = cap * tanh(x * factor / cap) */
    void (*softcap)(float *x, size_t n, float factor, float cap);
    /* act[n] = f(gate) * up, f being silu or gelu by its tanh form */
    void (*glu)(bool gelu, const float *gate, const float *up, float *act, size_t n);
    void (*glu_backward)(bool gelu, float *gate, float *up, const float *dact, size_t n);
    void (*dropout)(const struct dropout_key *key, const float *x, float *y, size_t n);
    /* dx += mask * t * scale (unless NULL), then t = mask * x * scale */
    void (*dropout_backward)(const struct dropout_key *key, const float *x, float *t, float *dx, size_t n);
    /* the loss of op_cross_entropy for one row; with gradient x becomes its gradient */
    double (*cross_entropy)(const struct cross_entropy_scalars *s, float *x, size_t n, size_t target);
    double (*square_sum)(const float *x, size_t n);
    void (*adamw)(const struct adamw_scalars *s, float *value, const float *gradient, float *moment1,
                  float *moment2, size_t n);
    /* x[n] = map[code] * absmax */
    void (*decode)(const struct codes *codes, const uint8_t *code, float absmax, float *x, size_t n);
    /* code[n] of the nearest value to each of x / its largest magnitude, which is returned; of two as near
     * the lower */
    float (*encode)(const struct codes *codes, const float *x, uint8_t *code, size_t n);
    void (*scale)(const float *x, float factor, float *y, size_t n);
    float (*dot)(const float *x, const float *y, size_t n);
    /* c[m,n] (ldc) = or += a[m,k] b[k,n] (ldb); a[i,j] at a[i * a_row + j * a_col] */
    void (*tile)(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col, const float *b,
                 size_t ldb, float *c, size_t ldc, bool accumulate);
    /* c[m,n] = alpha * op(a) * op(b) + beta * c, as blas.gemm but for both transposed; beta is 0 or 1, and
     * alpha is 1 where beta is. scratch: GEMM_SCRATCH floats. An element's sum has one order whatever m and n
     * are. */
    void (*gemm)(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha,
                 const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc,
                 float *scratch);
    /* scratch: ROUNDED_SCRATCH floats. An element's sum has one order whatever m and n are. */
    void (*gemm_rounded)(const struct gemm_rounded *g, float *scratch);
    /* to[rows][ldt] = the values of x[rows, columns] from value `at` on, rounded to `as`, bf16 or f16; zeros
     * up to the next multiple of `width` columns. round_transposed: to[columns][ldt], x transposed, zeros up
     * to the next multiples of both sides. x->transposed is not read. */
    void (*round_rows)(enum value_kind as, const struct gemm_values *x, size_t at, size_t rows,
                       size_t columns, float *to, size_t ldt);
    void (*round_transposed)(enum value_kind as, const struct gemm_values *x, size_t at, size_t rows,
                             size_t columns, float *to, size_t ldt);
    /* With y = s * scale, or cap * tanh(s * scale / cap) where cap > 0: s[hidden..valid) becomes exp(y - new
     * maximum), the rest of s[0..n) 0; *m, *l the running maximum and sum; returns exp(old maximum - new
     * maximum), by which what was summed before is to be multiplied */
    float (*softmax_tile)(float *s, size_t hidden, size_t valid, size_t n, float scale, float cap, float *m,
                          float *l);
    /* The same with exponentials rounded to `as`, bf16 or f16, once they are summed. *m is a whole number to
     * base 2, no less than y * log2(e), and the sum is of 2^(y * log2(e) - *m): so the factor returned is a
     * power of two. */
    float (*softmax_tile_rounded)(enum value_kind as, float *s, size_t hidden, size_t valid, size_t n,
                                  float scale, float cap, float *m, float *l);
    /* s[hidden..valid) becomes p = exp(y - lse) and dp becomes p * (dp - delta) * scale, times y's slope
     * under the cap; the rest 0; both are then rounded to `as` */
    void (*softmax_tile_backward)(enum value_kind as, float *s, float *dp, size_t hidden, size_t valid,
                                  size_t n, float scale, float cap, float lse, float delta);
};

extern const struct kernels kernels_sse42, kernels_avx2, kernels_avx512;

#endif
