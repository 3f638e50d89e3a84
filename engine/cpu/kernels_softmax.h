/* Rows of attention tiles: the softmax of scores, and its backward. Part of kernels_body.h, which includes it
 * once per instruction set.
 */
#ifndef MOTLEY_ENGINE_CPU_KERNELS_SOFTMAX_H
#define MOTLEY_ENGINE_CPU_KERNELS_SOFTMAX_H

static float softmax_tile(const struct score_row *row, float *m, float *l)
{
    float *s = row->s, factor = row->scale, cap = row->cap;
    size_t valid = row->valid;
    if (cap > 0.0f) {
        softcap(s, valid, factor, cap);
        factor = 1.0f;
    }
    for (size_t j = 0; j < row->hidden; j++)
        s[j] = -INFINITY;
    float max = row_max(s, valid) * factor;
    max = max > *m ? max : *m;
    float correction = *m == -INFINITY ? 0.0f : expf(*m - max);
    vf sum = {0};
    size_t i = 0;
    for (; i + VECTOR <= valid; i += VECTOR) {
        vf e = exp_f(load(s + i) * factor - max);
        sum += e;
        store(s + i, e);
    }
    if (i < valid) {
        vf e = exp_f(load_tail(s + i, valid - i, -INFINITY) * factor - max);
        sum += e;
        store_tail(s + i, e, valid - i);
        i = valid;
    }
    for (; i < row->n; i++)
        s[i] = 0.0f;
    *l = *l * correction + lanes_sum(sum);
    *m = max;
    return correction;
}

/* Callers pass a constant for `as`, so the compiler removes the branches. */
INLINE vf rounded_as(enum value_kind as, vf x)
{
    return as == VALUES_BF16 ? round_bf16(x) : as == VALUES_F16 ? ROUND_F16(x) : x;
}

/* 2^(t - k) for a whole number k >= t. exp_near takes the fraction of t, so that k changes only the exponent
 * of the result. 0 below 2^-126. */
INLINE vf exp2_from(vf t, float k)
{
    /* Rounding t with the magic number is exact for small |t| only, so a large k is subtracted from t before.
     */
    float base = fabsf(k) < 1024.0f ? 0.0f : k;
    int32_t shift = base == 0.0f ? (int32_t)k : 0;
    t -= base;
    vi tiny = t < splat((float)shift - 126.0f), nan = t != t;
    vf original = t;
    t = max_f(t, splat((float)shift - 126.0f));
    const vf magic = splat(12582912.0f);
    vf n = t + magic;
    vi whole = (vi)n - (vi)magic - shift;
    vf r = (t - (n - magic)) * splat(0.693147180559945f);
    vf power = (vf)((whole + 127) << 23);
    return select_f(nan, original, select_f(tiny, splat(0.0f), exp_near(r) * power));
}

INLINE void softmax_row_rounded(enum value_kind as, float *s, size_t valid, float factor, float max, float *l,
                                float correction)
{
    vf sum = {0};
    size_t i = 0;
    for (; i + VECTOR <= valid; i += VECTOR) {
        vf e = exp2_from(load(s + i) * factor, max);
        sum += e;
        store(s + i, rounded_as(as, e));
    }
    if (i < valid) {
        vf e = exp2_from(load_tail(s + i, valid - i, -INFINITY) * factor, max);
        sum += e;
        store_tail(s + i, rounded_as(as, e), valid - i);
    }
    *l = *l * correction + lanes_sum(sum);
}

static float softmax_tile_rounded(enum value_kind as, const struct score_row *row, float *m, float *l)
{
    float *s = row->s, factor = row->scale, cap = row->cap;
    size_t valid = row->valid;
    if (cap > 0.0f) {
        softcap(s, valid, factor, cap);
        factor = 1.0f;
    }
    factor *= 1.44269504088896341f;
    for (size_t j = 0; j < row->hidden; j++)
        s[j] = -INFINITY;
    float max = ceilf(row_max(s, valid) * factor);
    max = max > *m ? max : *m;
    float correction = *m == -INFINITY || *m - max < -126.0f ? 0.0f : exp2f(*m - max);
    if (as == VALUES_BF16)
        softmax_row_rounded(VALUES_BF16, s, valid, factor, max, l, correction);
    else
        softmax_row_rounded(VALUES_F16, s, valid, factor, max, l, correction);
    for (size_t i = valid; i < row->n; i++)
        s[i] = 0.0f;
    *m = max;
    return correction;
}

/* One vector of scores y: y becomes the probabilities, and dp the gradient of the scores before scale and
 * cap. */
INLINE void softmax_backward_vector(enum value_kind as, vf *y, vf *dp, float score, float factor, float cap,
                                    float lse, float delta)
{
    vf p = exp_f(*y * score - lse);
    *dp = p * (*dp - delta) * factor;
    if (cap > 0.0f)
        *dp *= cap_slope(*y, cap);
    *dp = rounded_as(as, *dp);
    *y = rounded_as(as, p);
}

/* The backward of one row of scores, which must still be multiplied by `score`. */
INLINE void softmax_backward_row(enum value_kind as, struct score_row row, float *dp, float score, float lse,
                                 float delta)
{
    size_t i = 0;
    for (; i + VECTOR <= row.valid; i += VECTOR) {
        vf p = load(row.s + i), d = load(dp + i);
        softmax_backward_vector(as, &p, &d, score, row.scale, row.cap, lse, delta);
        store(row.s + i, p);
        store(dp + i, d);
    }
    if (i < row.valid) {
        vf p = load_tail(row.s + i, row.valid - i, -INFINITY), d = load_tail(dp + i, row.valid - i, 0);
        softmax_backward_vector(as, &p, &d, score, row.scale, row.cap, lse, delta);
        store_tail(row.s + i, p, row.valid - i);
        store_tail(dp + i, d, row.valid - i);
    }
}

static void softmax_tile_backward(enum value_kind as, const struct score_row *row, float *dp, float lse,
                                  float delta)
{
    float *s = row->s, score = row->scale;
    if (row->cap > 0.0f) {
        softcap(s, row->valid, row->scale, row->cap);
        score = 1.0f;
    }
    if (as == VALUES_F32)
        softmax_backward_row(VALUES_F32, *row, dp, score, lse, delta);
    else if (as == VALUES_BF16)
        softmax_backward_row(VALUES_BF16, *row, dp, score, lse, delta);
    else
        softmax_backward_row(VALUES_F16, *row, dp, score, lse, delta);
    for (size_t i = row->valid; i < row->n; i++)
        s[i] = dp[i] = 0.0f;
    for (size_t i = 0; i < row->hidden; i++)
        s[i] = dp[i] = 0.0f;
}

#endif
