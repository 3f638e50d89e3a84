/* Row kernels for each instruction set: one source (kernels_body.h), compiled for vectors of 4, 8 and 16
 * floats. Pointers need no alignment. All are pure and deterministic functions of their arguments.
 */
#ifndef MOTLEY_ENGINE_CPU_KERNELS_H
#define MOTLEY_ENGINE_CPU_KERNELS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/device/op.h"
#include "engine/device/scalars.h"

/* Terms of a sum that `gemm` handles in one block of k, and floats of scratch for a transposed block of 64
 * columns. */
enum { GEMM_DEPTH = 128, GEMM_SCRATCH = GEMM_DEPTH * 64 };

/* The dtype in which a matrix is stored, or to which it is rounded. */
enum value_kind { VALUES_F32, VALUES_BF16, VALUES_F16, VALUE_KINDS };
struct gemm_values {
    const void *at;
    size_t ld; /* values from one row in memory to the next */
    enum value_kind kind;
    bool transposed; /* a is stored as [k, m], b as [n, k] */
};
/* c[m,n] = alpha * a b + beta * c, where values of a and b are first rounded to `as`, bf16 or f16; k > 0. */
struct gemm_rounded {
    enum value_kind as;
    size_t m, n, k, ldc;
    float alpha, beta;
    struct gemm_values a, b;
    float *c;
};
/* gemm_rounded's block of a has ROUNDED_ROWS rows, its block of b ROUNDED_COLUMNS columns, and both
 * ROUNDED_DEPTH terms of k. Its scratch holds both blocks, and sums of ROUNDED_ROWS rows by 64 columns, the
 * widest strip of any instruction set. */
enum {
    ROUNDED_ROWS = 192,
    ROUNDED_COLUMNS = 256,
    ROUNDED_DEPTH = 256,
    ROUNDED_SCRATCH = ROUNDED_DEPTH * (ROUNDED_ROWS + ROUNDED_COLUMNS) + ROUNDED_ROWS * 64
};

/* Most columns for which one kernel call sums over rows. */
enum { COLUMNS_STRIP = 64 };

/* What a vector is normed with: (x - mean) * inverse. The mean is 0 unless the norm is centred. */
struct norm_of {
    float inverse, mean;
};

/* Inputs of the gradient of a norm's weight (op_rmsnorm_backward). */
struct norm_rows {
    const float *x, *dy;         /* x and dy at the first column of this call */
    const struct norm_of *norms; /* [rows, vectors] */
    size_t rows, vectors, width, ldx, lddy;
};

struct cross_entropy_scalars {
    float smoothing, cap; /* 0 means none */
    bool gradient;
};

/* Lookup table that encodes 8-bit codes from a rising map. The upper 16 bits of a magnitude name its bin; at
 * most one boundary between codes falls into a bin. The first bin holds everything below 2^-23 and has no
 * boundary; the last holds 1 alone. */
enum {
    CODES = 256,
    CODE_BIN_FIRST = (127 - 23) << 7,
    CODE_BINS = (127 << 7) - CODE_BIN_FIRST + 1,
    CODE_NO_BOUND = 0x1FFFF
};
struct codes {
    float map[CODES];
    int32_t zero;             /* the code of 0 */
    uint32_t bins[CODE_BINS]; /* (number of boundaries below the bin) << 24 | lower 16 bits of the boundary in
                                 it, or CODE_NO_BOUND */
};

/* c[m,n] is set to a[m,k] b[k,n], or increased by it; a[i,j] is at a[i * a_row + j * a_col]. */
struct tile_product {
    size_t m, n, k;
    const float *a;
    size_t a_row, a_col;
    const float *b;
    size_t ldb;
    float *c;
    size_t ldc;
    bool accumulate;
};

/* c[m,n] = alpha * op(a) * op(b) + beta * c, row-major. */
struct gemm_f32 {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    float alpha, beta;
    const float *a;
    size_t lda;
    const float *b;
    size_t ldb;
    float *c;
    size_t ldc;
};

/* One row s[n] of an attention tile's scores, of which [hidden, valid) count. Their logits are y = s * scale,
 * or cap * tanh(s * scale / cap) where cap > 0. */
struct score_row {
    float *s;
    size_t hidden, valid, n;
    float scale, cap;
};

/* One token of a strip of n channels, for the short convolution. */
struct conv_token {
    uint32_t taps;
    bool plain; /* without silu */
    size_t n;
    const float *x[8]; /* [taps]: the token's values, then those of the tokens before it */
    const float *w;    /* [taps, n], in the order of x */
    const float *bias; /* [n], or NULL */
};

/* One token of one head, for the gated delta rule. In backward, dout and change (beta * error) have `ld`
 * values, with zeros from `values` on. */
struct delta_token {
    size_t keys, values,
        ld; /* ld: the row distance of states, a multiple of 64; what is behind `values` is 0 */
    const float *q, *k, *v, *dout, *change;
    float gamma, beta;
    bool scan; /* Mamba-2's state space (op_delta) */
    float skip;
};

struct kernels {
    const char *isa;
    uint32_t width; /* floats in a vector */
    /* inverse: 1 / sqrt(mean((x[n] - mean)^2) + eps) */
    struct norm_of (*norm_of)(const float *x, size_t n, float eps, bool centred);
    /* y[n] = (x - mean) * inverse * (offset + w) [+ bias, unless that is NULL] */
    void (*rmsnorm)(const float *x, const float *w, const float *bias, float *y, size_t n,
                    struct norm_of norm, float offset);
    /* one vector of the op: dx (unless NULL) is set to the gradient, or increased by it */
    struct norm_of (*rmsnorm_backward)(const struct op_rmsnorm_backward *op, const float *x, const float *w,
                                       const float *dy, float *dx);
    /* dweight[n] += sum over rows and vectors of dy * (x - mean) * inverse; n ≤ COLUMNS_STRIP */
    void (*norm_weight_sum)(const struct norm_rows *rows, float *dweight, size_t n);
    /* y[n] += sum over rows of x; n ≤ COLUMNS_STRIP */
    void (*column_sum)(const float *x, size_t ldx, size_t rows, float *y, size_t n);
    /* y[n] += alpha * x */
    void (*add)(const float *x, float alpha, float *y, size_t n);
    void (*from_bf16)(const uint16_t *x, float *y, size_t n);
    void (*from_f16)(const uint16_t *x, float *y, size_t n);
    /* round to nearest even; NaNs stay NaNs */
    void (*to_bf16)(const float *x, uint16_t *y, size_t n);
    void (*to_f16)(const float *x, uint16_t *y, size_t n);
    /* rotates one head of 2 * half values; sign is 1, or -1 for the inverse rotation */
    void (*rope)(float *x, const float *cosines, const float *sines, size_t half, float sign);
    void (*rope_pairs)(float *x, const float *cosines, const float *sines, size_t half, float sign);
    /* x[n] = cap * tanh(x * factor / cap) */
    void (*softcap)(float *x, size_t n, float factor, float cap);
    /* act[n] = f(gate) * up, of the given form; up may be NULL, which counts as 1 and gets no gradient */
    void (*glu)(const struct glu_form *form, const float *gate, const float *up, float *act, size_t n);
    void (*glu_backward)(const struct glu_form *form, float *gate, float *up, const float *dact, size_t n);
    void (*dropout)(const struct dropout_key *key, const float *x, float *y, size_t n);
    /* dx += mask * t * scale (unless NULL), then t = mask * x * scale */
    void (*dropout_backward)(const struct dropout_key *key, const float *x, float *t, float *dx, size_t n);
    /* the loss of op_cross_entropy for one row; with `gradient`, x is replaced by its gradient */
    double (*cross_entropy)(const struct cross_entropy_scalars *s, float *x, size_t n, size_t target);
    double (*square_sum)(const float *x, size_t n);
    void (*adamw)(const struct adamw_scalars *s, float *value, const float *gradient, float *moment1,
                  float *moment2, size_t n);
    /* x[n] = map[code] * absmax */
    void (*decode)(const struct codes *codes, const uint8_t *code, float absmax, float *x, size_t n);
    /* code[n] of the value nearest to each x / (largest magnitude of x), the lower of two that are equally
     * near; returns the largest magnitude */
    float (*encode)(const struct codes *codes, const float *x, uint8_t *code, size_t n);
    void (*scale)(const float *x, float factor, float *y, size_t n);
    float (*dot)(const float *x, const float *y, size_t n);
    void (*tile)(const struct tile_product *product);
    /* a and b are not both transposed, beta is 0 or 1, and alpha is 1 if beta is. scratch: GEMM_SCRATCH
     * floats. The order in which an element's terms are added does not depend on m and n. */
    void (*gemm)(const struct gemm_f32 *g, float *scratch);
    /* scratch: ROUNDED_SCRATCH floats. The order in which an element's terms are added does not depend on m
     * and n. */
    void (*gemm_rounded)(const struct gemm_rounded *g, float *scratch);
    /* to[rows][ldt] = x[rows, columns], read from value `at` on and rounded to `as` (bf16 or f16), with zeros
     * up to the next multiple of `width` columns. round_transposed: to[columns][ldt] = x transposed, with
     * zeros up to the next multiples in both directions. x->transposed is ignored. */
    void (*round_rows)(enum value_kind as, const struct gemm_values *x, size_t at, size_t rows,
                       size_t columns, float *to, size_t ldt);
    void (*round_transposed)(enum value_kind as, const struct gemm_values *x, size_t at, size_t rows,
                             size_t columns, float *to, size_t ldt);
    /* One row in the running softmax: s[hidden..valid) becomes exp(y - new maximum), and the rest becomes 0.
     * *m and *l are the running maximum and sum. Returns exp(old maximum - new maximum), by which the caller
     * multiplies its earlier sums */
    float (*softmax_tile)(const struct score_row *row, float *m, float *l);
    /* Like softmax_tile, but exponentials are rounded to `as` (bf16 or f16) after they are summed. It works
     * in base 2: *m is the smallest whole number that is no less than any y * log2(e) so far, and *l sums
     * 2^(y * log2(e) - *m). So the returned factor is a power of two, and multiplying by it rounds nothing.
     */
    float (*softmax_tile_rounded)(enum value_kind as, const struct score_row *row, float *m, float *l);
    /* s[hidden..valid) becomes p = exp(y - lse), and dp becomes p * (dp - delta) * scale, times the slope of
     * y under the cap; other elements become 0; both are then rounded to `as` */
    void (*softmax_tile_backward)(enum value_kind as, const struct score_row *row, float *dp, float lse,
                                  float delta);
    /* y[n] = x * f(z); its gradients, where dx may be dy */
    void (*gate)(enum gate_kind kind, const float *x, const float *z, float *y, size_t n);
    void (*gate_backward)(enum gate_kind kind, const float *x, const float *z, const float *dy, float *dx,
                          float *dz, size_t n);
    /* y[n] = silu(sum over the taps of w * x), or the sum itself */
    void (*conv)(const struct conv_token *t, float *y);
    /* dx[0] is set, dx[1] … and dw[taps, n] (unless NULL; with a bias [taps + 1, n], of which the last are
     * the bias's) are increased; entries of dx may be the same memory if nobody reads it */
    void (*conv_backward)(const struct conv_token *t, const float *dy, float *const dx[], double *dw);
    /* error = v - gamma S^T k; S = gamma S + beta k error^T; out = S^T q, for the state S[keys, ld]. With
     * scan error is v, and not written, and skip * v is added to out; below, no product with dv counts */
    void (*delta)(const struct delta_token *t, float *state, float *error, float *out);
    /* The token's part of dS, the gradient of S behind it: dv[ld] = beta (dS + q dout^T)^T k; written[keys] =
     * dS change; dS = gamma (dS + q dout^T - k dv^T) */
    void (*delta_reverse)(const struct delta_token *t, float *dstate, float *dv, float *written);
    /* S = gamma S; dq[keys] = S dout; dk[keys] = -S dv; S = S + k change^T */
    void (*delta_reread)(const struct delta_token *t, float *state, const float *dv, float *dq, float *dk);
};

extern const struct kernels kernels_sse42, kernels_avx2, kernels_avx512, kernels_avx512_bf16, kernels_amx;

#endif
