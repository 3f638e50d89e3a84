/* The row kernels, for vectors of VECTOR floats (4, 8 or 16), defined as the struct named KERNELS. Each
 * kernels_*.c includes this file once and is compiled with the flags of its instruction set.
 *
 * Sums run in VECTOR lanes, which are then added in lane order; sums that feed a loss or a norm are in
 * double.
 */
#ifndef MOTLEY_ENGINE_CPU_KERNELS_BODY_H
#define MOTLEY_ENGINE_CPU_KERNELS_BODY_H

#include "engine/cpu/kernels.h"

#include <math.h>
#include <string.h>

typedef float vf __attribute__((vector_size(4 * VECTOR)));
typedef float vfu __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * VECTOR)));
typedef uint32_t vu __attribute__((vector_size(4 * VECTOR)));
typedef double vn __attribute__((vector_size(4 * VECTOR))); /* VECTOR / 2 doubles: one register */
typedef float vnf __attribute__((vector_size(2 * VECTOR), aligned(4), may_alias));
typedef uint64_t vl __attribute__((vector_size(4 * VECTOR)));

#define INLINE static inline __attribute__((always_inline))

INLINE vf load(const float *p)
{
    return *(const vfu *)p;
}

INLINE void store(float *p, vf x)
{
    *(vfu *)p = x;
}

INLINE vf splat(float x)
{
    return x - (vf){0};
}

INLINE float lanes_sum(vf x)
{
    double sum = 0;
    for (int i = 0; i < VECTOR; i++)
        sum += (double)x[i];
    return (float)sum;
}

INLINE float lanes_max(vf x)
{
    float max = x[0];
    for (int i = 1; i < VECTOR; i++)
        max = x[i] > max ? x[i] : max;
    return max;
}

INLINE vf select_f(vi mask, vf yes, vf no)
{
    return (vf)(((vi)yes & mask) | ((vi)no & ~mask));
}

INLINE vf max_f(vf a, vf b)
{
    return select_f(a > b, a, b);
}

/* exp(r) for |r| <= log(2) / 2, by Cephes' polynomial (expf.c, S. Moshier). */
INLINE vf exp_near(vf r)
{
    vf p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    return p * r * r + r + splat(1.0f);
}

/* exp by range reduction: within 2 ulp on [-87, 88], and 0 below -87. */
INLINE vf exp_f(vf x)
{
    vi tiny = x < splat(-87.0f);
    vi nan = x != x;
    vf original = x;
    x = max_f(x, splat(-87.0f));
    x = select_f(x > splat(88.0f), splat(88.0f), x);
    const vf magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to an integer */
    vf n = x * splat(1.44269504088896341f) + magic;
    vi bits = (vi)n - (vi)magic;
    n = n - magic;
    vf r = x - n * splat(0.693359375f);
    r = r - n * splat(-2.12194440e-4f);
    vf power = (vf)((bits + 127) << 23);
    return select_f(nan, original, select_f(tiny, splat(0.0f), exp_near(r) * power));
}

/* Loads the last n < VECTOR values as a full vector, padded with `fill`. */
INLINE vf load_tail(const float *p, size_t n, float fill)
{
    float tmp[VECTOR];
    for (size_t i = 0; i < VECTOR; i++)
        tmp[i] = i < n ? p[i] : fill;
    return load(tmp);
}

INLINE void store_tail(float *p, vf x, size_t n)
{
    float tmp[VECTOR];
    store(tmp, x);
    memcpy(p, tmp, n * sizeof(*p));
}

/* Half a vector of floats, converted to doubles. */
INLINE vn widen(const float *p)
{
    return __builtin_convertvector(*(const vnf *)p, vn);
}

INLINE double wide_sum(vn x)
{
    double sum = 0;
    for (int i = 0; i < VECTOR / 2; i++)
        sum += x[i];
    return sum;
}

/* The sum of squares about `mean`. Callers pass a constant 0 where there is none. */
INLINE double squares_about(const float *x, size_t n, double mean)
{
    vn sum0 = {0}, sum1 = {0};
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        vn a = widen(x + i) - mean, b = widen(x + i + VECTOR / 2) - mean;
        sum0 += a * a;
        sum1 += b * b;
    }
    double total = wide_sum(sum0 + sum1);
    for (; i < n; i++)
        total += ((double)x[i] - mean) * ((double)x[i] - mean);
    return total;
}

static double square_sum(const float *x, size_t n)
{
    return squares_about(x, n, 0);
}

static float dot(const float *x, const float *y, size_t n)
{
    vf sum0 = {0}, sum1 = {0};
    size_t i = 0;
    for (; i + 2 * VECTOR <= n; i += 2 * VECTOR) {
        sum0 += load(x + i) * load(y + i);
        sum1 += load(x + i + VECTOR) * load(y + i + VECTOR);
    }
    for (; i + VECTOR <= n; i += VECTOR)
        sum0 += load(x + i) * load(y + i);
    double total = (double)lanes_sum(sum0 + sum1);
    for (; i < n; i++)
        total += (double)x[i] * (double)y[i];
    return (float)total;
}

static void column_sum(const float *x, size_t ldx, size_t rows, float *y, size_t n)
{
    double sums[COLUMNS_STRIP] = {0};
    for (size_t i = 0; i < rows; i++)
        for (size_t j = 0; j < n; j++)
            sums[j] += (double)x[i * ldx + j];
    for (size_t j = 0; j < n; j++)
        y[j] = (float)((double)y[j] + sums[j]);
}

static void add(const float *x, float alpha, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] += alpha * x[i];
}

INLINE uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof(bits));
    return bits;
}

INLINE float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof(x));
    return x;
}

static void from_bf16(const uint16_t *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = float_of((uint32_t)x[i] << 16);
}

static void to_bf16(const float *x, uint16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t bits = bits_of(x[i]), even = bits >> 16 & 1;
        uint32_t nan = (bits & 0x7FFFFFFFu) > 0x7F800000u;
        y[i] = (uint16_t)(nan ? bits >> 16 | 0x40u : (bits + 0x7FFFu + even) >> 16);
    }
}

/* Conversions between half and single precision by exponent arithmetic on floats, without branches (the
 * method of M. Dukhan's FP16 library): multiplying by a power of two moves the exponent's bias, and adding a
 * number of the right size rounds at its last bit. */
static void from_f16(const uint16_t *x, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t word = (uint32_t)x[i] << 16, sign = word & 0x80000000u, twice = word + word;
        float normal = float_of((twice >> 4) + (0xE0u << 23)) * 0x1.0p-112f;
        float small = float_of((twice >> 17) | (126u << 23)) - 0.5f;
        /* selects by a bit mask, because GCC does not vectorise ?: here */
        uint32_t tiny = 0u - (twice < 1u << 27);
        y[i] = float_of(sign | (bits_of(small) & tiny) | (bits_of(normal) & ~tiny));
    }
}

static void to_f16(const float *x, uint16_t *y, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        uint32_t word = bits_of(x[i]), twice = word + word, bias = twice & 0xFF000000u;
        float base = fabsf(x[i]) * 0x1.0p+112f * 0x1.0p-110f;
        bias = bias < 0x71000000u ? 0x71000000u : bias;
        uint32_t bits = bits_of(float_of((bias >> 1) + 0x07800000u) + base);
        uint32_t half = (bits >> 13 & 0x7C00u) + (bits & 0x0FFFu);
        y[i] = (uint16_t)((word & 0x80000000u) >> 16 | (twice > 0xFF000000u ? 0x7E00u : half));
    }
}

static void rope_pairs(float *x, const float *cosines, const float *sines, size_t half, float sign)
{
    for (size_t i = 0; i < half; i++) {
        float a = x[2 * i], b = x[2 * i + 1], c = cosines[i], s = sines[i] * sign;
        x[2 * i] = a * c - b * s;
        x[2 * i + 1] = b * c + a * s;
    }
}

static void rope(float *x, const float *cosines, const float *sines, size_t half, float sign)
{
    size_t i = 0;
    for (; i + VECTOR <= half; i += VECTOR) {
        vf a = load(x + i), b = load(x + half + i), c = load(cosines + i), s = load(sines + i) * sign;
        store(x + i, a * c - b * s);
        store(x + half + i, b * c + a * s);
    }
    for (; i < half; i++) {
        float a = x[i], b = x[half + i], c = cosines[i], s = sines[i] * sign;
        x[i] = a * c - b * s;
        x[half + i] = b * c + a * s;
    }
}

/* tanh as in Cephes (tanhf.c, S. Moshier): a polynomial where |x| < 0.625, else by exp. */
INLINE vf tanh_f(vf x)
{
    vf size = (vf)((vi)x & 0x7FFFFFFF), z = x * x;
    vf p = splat(-5.70498872745e-3f);
    p = p * z + splat(2.06390887954e-2f);
    p = p * z + splat(-5.37397155531e-2f);
    p = p * z + splat(1.33314422036e-1f);
    p = p * z + splat(-3.33332819422e-1f);
    vf large = 1.0f - 2.0f / (exp_f(size + size) + 1.0f);
    large = (vf)((vi)large | ((vi)x & (vi)splat(-0.0f)));
    return select_f(size < splat(0.625f), p * z * x + x, large);
}

static void softcap(float *x, size_t n, float factor, float cap)
{
    size_t i = 0;
    factor /= cap;
    for (; i + VECTOR <= n; i += VECTOR)
        store(x + i, tanh_f(load(x + i) * factor) * cap);
    if (i < n)
        store_tail(x + i, tanh_f(load_tail(x + i, n - i, 0) * factor) * cap, n - i);
}

INLINE vf sigmoid(vf x)
{
    return 1.0f / (1.0f + exp_f(-x));
}

/* The normal distribution function of x, and its density. Phi(-|x|) is e^(-x^2/2) times a polynomial in 1 /
 * (1 + 0.3 |x|), fitted for |x| < 14 within 5e-7 of the value. */
INLINE vf normal_of(vf x, vf *density)
{
    static const float terms[] = {-0.157208353f, 0.206362739f, -0.0536922403f, 0.12856622f,
                                  0.0999120921f, 0.120754182f, 0.119629286f};
    vf size = (vf)((vi)x & 0x7FFFFFFF), t = 1.0f / (1.0f + size * 0.3f), sum = splat(0.0356760174f);
    vf bell = exp_f(size * size * -0.5f);
    for (size_t i = 0; i < sizeof(terms) / sizeof(*terms); i++)
        sum = sum * t + terms[i];
    *density = bell * 0.398942280f;
    sum *= t * bell;
    return select_f(x < splat(0.0f), sum, 1.0f - sum);
}

/* All gates are x * s(x), where s is sigmoid(z(x)) unless it is gelu's or relu's. For silu z is x, clamped it
 * is alpha * x. The tanh form of gelu has z = sqrt(8 / pi) * (x + 0.044715 x^3), because 1 + tanh(u) = 2 *
 * sigmoid(2u). Callers pass a constant `kind`, so the compiler removes the branches. *slope is dz / dx, or ds
 * / dx where there is no z. */
INLINE vf gate_sigmoid(enum glu_kind kind, const struct glu_form *form, vf x, vf *slope)
{
    const float twice = 1.59576912160573f;
    vf square = x * x;
    if (kind == GLU_GELU)
        return normal_of(x, slope);
    if (kind == GLU_RELU2) {
        *slope = select_f(x > splat(0.0f), splat(1.0f), splat(0.0f));
        return x * *slope;
    }
    if (kind != GLU_GELU_TANH) {
        float factor = kind == GLU_CLAMPED ? form->alpha : 1.0f;
        *slope = splat(factor);
        return sigmoid(x * factor);
    }
    *slope = (square * (3 * 0.044715f) + 1.0f) * twice;
    return sigmoid((square * 0.044715f + 1.0f) * x * twice);
}

/* Clamps gate and up, and adds 1 to up. */
INLINE void glu_clamp(const struct glu_form *form, vf *gate, vf *up)
{
    vf most = splat(form->limit), u = select_f(*up > most, most, *up);
    *gate = select_f(*gate > most, most, *gate);
    *up = select_f(u < -most, -most, u) + 1.0f;
}

INLINE vf gated(enum glu_kind kind, const struct glu_form *form, vf gate, vf up)
{
    vf slope;
    if (kind == GLU_CLAMPED)
        glu_clamp(form, &gate, &up);
    return gate * gate_sigmoid(kind, form, gate, &slope) * up;
}

INLINE void glu_row(enum glu_kind kind, const struct glu_form *form, const float *gate, const float *up,
                    float *act, size_t n)
{
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR)
        store(act + i, gated(kind, form, load(gate + i), up ? load(up + i) : splat(1.0f)));
    if (i < n)
        store_tail(
            act + i,
            gated(kind, form, load_tail(gate + i, n - i, 0), up ? load_tail(up + i, n - i, 0) : splat(1.0f)),
            n - i);
}

static void glu(const struct glu_form *form, const float *gate, const float *up, float *act, size_t n)
{
    if (form->kind == GLU_GELU_TANH)
        glu_row(GLU_GELU_TANH, form, gate, up, act, n);
    else if (form->kind == GLU_CLAMPED)
        glu_row(GLU_CLAMPED, form, gate, up, act, n);
    else if (form->kind == GLU_GELU)
        glu_row(GLU_GELU, form, gate, up, act, n);
    else if (form->kind == GLU_RELU2)
        glu_row(GLU_RELU2, form, gate, up, act, n);
    else
        glu_row(GLU_SILU, form, gate, up, act, n);
}

INLINE void glu_backward_vector(enum glu_kind kind, const struct glu_form *form, vf *gate, vf *up, vf d)
{
    vf g = *gate, u = *up, slope, most = splat(form->limit), none = splat(0.0f);
    if (kind == GLU_CLAMPED)
        glu_clamp(form, &g, &u);
    vf s = gate_sigmoid(kind, form, g, &slope), value = g * s;
    vf own = kind == GLU_GELU || kind == GLU_RELU2 ? g * slope : value * (1.0f - s) * slope;
    vf dgate = d * u * (s + own), dup = d * value;
    if (kind == GLU_CLAMPED) {
        dgate = select_f(*gate > most, none, dgate);
        dup = select_f(*up > most, none, select_f(*up < -most, none, dup));
    }
    *gate = dgate;
    *up = dup;
}

INLINE void glu_backward_row(enum glu_kind kind, const struct glu_form *form, float *gate, float *up,
                             const float *dact, size_t n)
{
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        vf g = load(gate + i), u = up ? load(up + i) : splat(1.0f);
        glu_backward_vector(kind, form, &g, &u, load(dact + i));
        store(gate + i, g);
        if (up)
            store(up + i, u);
    }
    if (i < n) {
        vf g = load_tail(gate + i, n - i, 0), u = up ? load_tail(up + i, n - i, 0) : splat(1.0f);
        glu_backward_vector(kind, form, &g, &u, load_tail(dact + i, n - i, 0));
        store_tail(gate + i, g, n - i);
        if (up)
            store_tail(up + i, u, n - i);
    }
}

static void glu_backward(const struct glu_form *form, float *gate, float *up, const float *dact, size_t n)
{
    if (form->kind == GLU_GELU_TANH)
        glu_backward_row(GLU_GELU_TANH, form, gate, up, dact, n);
    else if (form->kind == GLU_CLAMPED)
        glu_backward_row(GLU_CLAMPED, form, gate, up, dact, n);
    else if (form->kind == GLU_GELU)
        glu_backward_row(GLU_GELU, form, gate, up, dact, n);
    else if (form->kind == GLU_RELU2)
        glu_backward_row(GLU_RELU2, form, gate, up, dact, n);
    else
        glu_backward_row(GLU_SILU, form, gate, up, dact, n);
}

/* High and low halves of the 64-bit products of 32-bit lanes. WIDE_MULTIPLY multiplies the even lanes of two
 * vectors. */
INLINE void multiply_wide(vu a, vu b, vu *high, vu *low)
{
    const vl bottom = (vl){0} + 0xFFFFFFFFull;
    vl even = WIDE_MULTIPLY(a, b), odd = WIDE_MULTIPLY((vu)((vl)a >> 32), b);
    *high = (vu)((even >> 32) | (odd & ~bottom));
    *low = (vu)((even & bottom) | (odd << 32));
}

/* Philox4x32-10 on VECTOR counters at once (Salmon et al. 2011). out[0..4) has the four numbers of counters
 * first, first + 1, …. */
INLINE void philox(const struct dropout_key *key, uint32_t first, vu out[4])
{
    const vu m0 = (vu){0} + 0xD2511F53u, m1 = (vu){0} + 0xCD9E8D57u;
    vu c0 = key->position - (vu){0}, c1 = key->row_id - (vu){0}, c2 = key->step - (vu){0}, c3 = {0};
    for (int i = 0; i < VECTOR; i++)
        c3[i] = key->site + first + (uint32_t)i;
    uint32_t k0 = key->key[0], k1 = key->key[1];
    for (int round = 0; round < 10; round++) {
        vu high0, low0, high1, low1;
        multiply_wide(c0, m0, &high0, &low0);
        multiply_wide(c2, m1, &high1, &low1);
        c0 = high1 ^ c1 ^ k0;
        c1 = low1;
        c2 = high0 ^ c3 ^ k1;
        c3 = low0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    out[0] = c0;
    out[1] = c1;
    out[2] = c2;
    out[3] = c3;
}

typedef uint16_t vh __attribute__((vector_size(4 * VECTOR)));
typedef int16_t vhi __attribute__((vector_size(4 * VECTOR)));
typedef int16_t vhu __attribute__((vector_size(2 * VECTOR), aligned(2), may_alias));

/* factors[8 * VECTOR] = scale for features from `first` on that are kept, else 0. */
INLINE void dropout_factors(const struct dropout_key *key, size_t first, float *factors)
{
    vu numbers[4];
    uint32_t masks[4][VECTOR], mixed[4 * VECTOR];
    philox(key, (uint32_t)(first / 8), numbers);
    for (int part = 0; part < 4; part++) {
        vhi kept = (vh)numbers[part] <= key->keep_last;
        memcpy(masks[part], &kept, sizeof(kept));
    }
    for (size_t j = 0; j < VECTOR; j++)
        for (size_t part = 0; part < 4; part++)
            mixed[4 * j + part] = masks[part][j];
    for (size_t j = 0; j < 8; j++) {
        vi mask =
            __builtin_convertvector(*(const vhu *)((const int16_t *)(const void *)mixed + j * VECTOR), vi);
        store(factors + j * VECTOR, (vf)(mask & (vi)splat(key->scale)));
    }
}

static void dropout(const struct dropout_key *key, const float *x, float *y, size_t n)
{
    float factors[8 * VECTOR];
    for (size_t i = 0; i < n; i += 8 * VECTOR) {
        dropout_factors(key, i, factors);
        size_t count = n - i < 8 * VECTOR ? n - i : 8 * VECTOR, j = 0;
        for (; j + VECTOR <= count; j += VECTOR)
            store(y + i + j, load(x + i + j) * load(factors + j));
        for (; j < count; j++)
            y[i + j] = x[i + j] * factors[j];
    }
}

static void dropout_backward(const struct dropout_key *key, const float *x, float *t, float *dx, size_t n)
{
    float factors[8 * VECTOR];
    for (size_t i = 0; i < n; i += 8 * VECTOR) {
        dropout_factors(key, i, factors);
        size_t count = n - i < 8 * VECTOR ? n - i : 8 * VECTOR, j = 0;
        for (; j + VECTOR <= count; j += VECTOR) {
            vf factor = load(factors + j);
            if (dx)
                store(dx + i + j, load(dx + i + j) + load(t + i + j) * factor);
            store(t + i + j, load(x + i + j) * factor);
        }
        for (; j < count; j++) {
            if (dx)
                dx[i + j] += t[i + j] * factors[j];
            t[i + j] = x[i + j] * factors[j];
        }
    }
}

static float row_max(const float *x, size_t n)
{
    size_t i = 0;
    vf max = splat(-INFINITY);
    for (; i + VECTOR <= n; i += VECTOR)
        max = max_f(load(x + i), max);
    float m = lanes_max(max);
    for (; i < n; i++)
        m = x[i] > m ? x[i] : m;
    return m;
}

/* A logit after the cap, as it enters the softmax, and the slope of the cap at a capped logit. */
INLINE vf capped(vf x, float cap)
{
    return cap > 0.0f ? tanh_f(x * (1.0f / cap)) * cap : x;
}

INLINE vf cap_slope(vf y, float cap)
{
    vf t = y * (1.0f / cap);
    return 1.0f - t * t;
}

struct softmax_sums {
    double exponentials, logits; /* sums of exp(logit - max) and of the logits */
};

/* Adds n ≤ VECTOR capped logits y to the sums. Returns what the gradient needs of them later: the logits
 * themselves where there is a cap, else the exponentials. */
INLINE vf cross_entropy_vector(const struct cross_entropy_scalars *s, vf y, float max, size_t n,
                               struct softmax_sums *sums)
{
    vf e = exp_f(y - max);
    for (size_t i = 0; i < n; i++) {
        sums->exponentials += (double)e[i];
        if (s->smoothing > 0.0f)
            sums->logits += (double)y[i];
    }
    return s->cap > 0.0f ? y : e;
}

INLINE struct softmax_sums cross_entropy_sums(const struct cross_entropy_scalars *s, float *x, size_t n,
                                              float max)
{
    vn sum0 = {0}, sum1 = {0}, logits0 = {0}, logits1 = {0};
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        float held[VECTOR];
        vf y = capped(load(x + i), s->cap), e = exp_f(y - max);
        store(held, e);
        sum0 += widen(held);
        sum1 += widen(held + VECTOR / 2);
        if (s->smoothing > 0.0f) {
            store(held, y);
            logits0 += widen(held);
            logits1 += widen(held + VECTOR / 2);
        }
        if (s->gradient)
            store(x + i, s->cap > 0.0f ? y : e);
    }
    struct softmax_sums sums = {wide_sum(sum0 + sum1), wide_sum(logits0 + logits1)};
    if (i < n) {
        vf y = capped(load_tail(x + i, n - i, -INFINITY), s->cap);
        vf kept = cross_entropy_vector(s, y, max, n - i, &sums);
        if (s->gradient)
            store_tail(x + i, kept, n - i);
    }
    return sums;
}

INLINE vf cross_entropy_slope(const struct cross_entropy_scalars *s, vf kept, float max, float inverse,
                              float share)
{
    if (s->cap > 0.0f)
        return (exp_f(kept - max) * inverse - share) * cap_slope(kept, s->cap);
    return s->smoothing > 0.0f ? kept * inverse - share : kept * inverse;
}

INLINE double cross_entropy_row(const struct cross_entropy_scalars *s, float *x, size_t n, size_t target)
{
    float max = capped(splat(row_max(x, n)), s->cap)[0], at_target = capped(splat(x[target]), s->cap)[0];
    struct softmax_sums sums = cross_entropy_sums(s, x, n, max);
    double hit = 1.0 - (double)s->smoothing, share = (double)s->smoothing / (double)n;
    if (s->gradient) {
        float inverse = (float)(1.0 / sums.exponentials);
        size_t i = 0;
        for (; i + VECTOR <= n; i += VECTOR)
            store(x + i, cross_entropy_slope(s, load(x + i), max, inverse, (float)share));
        if (i < n)
            store_tail(x + i, cross_entropy_slope(s, load_tail(x + i, n - i, 0), max, inverse, (float)share),
                       n - i);
        x[target] -= (float)hit * (s->cap > 0.0f ? cap_slope(splat(at_target), s->cap)[0] : 1.0f);
    }
    return log(sums.exponentials) + (double)max - hit * (double)at_target - share * sums.logits;
}

static double cross_entropy(const struct cross_entropy_scalars *s, float *x, size_t n, size_t target)
{
    const struct cross_entropy_scalars plain = {.gradient = s->gradient};
    if (s->cap == 0.0f && s->smoothing == 0.0f)
        return cross_entropy_row(&plain, x, n, target);
    return cross_entropy_row(s, x, n, target);
}

INLINE void adamw_vector(const struct adamw_scalars *s, vf *p, vf g, vf *m, vf *v)
{
    g *= s->grad_scale;
    *p *= s->decay;
    *m = *m * s->beta1 + g * s->one_minus_beta1;
    *v = *v * s->beta2 + g * g * s->one_minus_beta2;
    vf root = {0};
    for (int i = 0; i < VECTOR; i++)
        root[i] = sqrtf((*v)[i]);
    *p -= s->step_size * *m / (root * s->inverse_root_correction2 + s->eps);
}

static void adamw(const struct adamw_scalars *s, float *value, const float *gradient, float *moment1,
                  float *moment2, size_t n)
{
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        vf p = load(value + i), m = load(moment1 + i), v = load(moment2 + i);
        adamw_vector(s, &p, load(gradient + i), &m, &v);
        store(value + i, p);
        store(moment1 + i, m);
        store(moment2 + i, v);
    }
    if (i < n) {
        size_t count = n - i;
        vf p = load_tail(value + i, count, 0), m = load_tail(moment1 + i, count, 0);
        vf v = load_tail(moment2 + i, count, 0);
        adamw_vector(s, &p, load_tail(gradient + i, count, 0), &m, &v);
        store_tail(value + i, p, count);
        store_tail(moment1 + i, m, count);
        store_tail(moment2 + i, v, count);
    }
}

typedef uint8_t vb __attribute__((vector_size(VECTOR)));

static void decode(const struct codes *codes, const uint8_t *code, float absmax, float *x, size_t n)
{
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        float values[VECTOR];
        for (size_t j = 0; j < VECTOR; j++)
            values[j] = codes->map[code[i + j]];
        store(x + i, load(values) * absmax);
    }
    for (; i < n; i++)
        x[i] = codes->map[code[i]] * absmax;
}

/* Nearest codes of the values x in [-1, 1]. Negative codes mirror the positive ones, except that no code
 * stands for -1. Magnitudes compare in the same order as their bits. */
INLINE vi encode_vector(const struct codes *codes, vf x)
{
    vu bits = (vu)x, size = bits & 0x7FFFFFFFu;
    vi negative = (vi)(bits >> 31), bin = (vi)(size >> 16) - CODE_BIN_FIRST;
    bin &= ~(bin < 0);
    bin = (bin & (bin < CODE_BINS)) | ((CODE_BINS - 1) & ~(bin < CODE_BINS));
    uint32_t found[VECTOR];
    for (int i = 0; i < VECTOR; i++)
        found[i] = codes->bins[bin[i]];
    vu entry;
    memcpy(&entry, found, sizeof(entry));
    vi k = (vi)(entry >> 24), bound = (vi)(entry & CODE_NO_BOUND);
    k -= (vi)(size & 0xFFFFu) + negative > bound;
    k += -negative & (k > codes->zero);
    return codes->zero + ((k ^ -negative) + negative);
}

static float encode(const struct codes *codes, const float *x, uint8_t *code, size_t n)
{
    vf most = {0};
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR)
        most = max_f((vf)((vi)load(x + i) & 0x7FFFFFFF), most);
    float absmax = lanes_max(most);
    for (; i < n; i++)
        absmax = fabsf(x[i]) > absmax ? fabsf(x[i]) : absmax;
    float inverse = 1.0f / (absmax > 1e-38f ? absmax : 1e-38f);
    for (i = 0; i + VECTOR <= n; i += VECTOR) {
        vb out = __builtin_convertvector(encode_vector(codes, load(x + i) * inverse), vb);
        memcpy(code + i, &out, sizeof(out));
    }
    if (i < n) {
        vb out = __builtin_convertvector(encode_vector(codes, load_tail(x + i, n - i, 0) * inverse), vb);
        memcpy(code + i, &out, n - i);
    }
    return absmax;
}

static void scale(const float *x, float factor, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * factor;
}

#include "engine/cpu/kernels_norm.h"
#include "engine/cpu/kernels_gemm.h"
#include "engine/cpu/kernels_rounded.h"
#include "engine/cpu/kernels_softmax.h"
#include "engine/cpu/kernels_delta.h"

/* The table of an instruction set; `rounded` is its gemm_rounded. */
#define KERNELS_TABLE(name, rounded)                                                                         \
    {                                                                                                        \
        .isa = name,                                                                                         \
        .width = VECTOR,                                                                                     \
        .norm_of = norm_of,                                                                                  \
        .rmsnorm = rmsnorm,                                                                                  \
        .rmsnorm_backward = rmsnorm_backward,                                                                \
        .norm_weight_sum = norm_weight_sum,                                                                  \
        .column_sum = column_sum,                                                                            \
        .add = add,                                                                                          \
        .from_bf16 = from_bf16,                                                                              \
        .from_f16 = from_f16,                                                                                \
        .to_bf16 = to_bf16,                                                                                  \
        .to_f16 = to_f16,                                                                                    \
        .rope = rope,                                                                                        \
        .rope_pairs = rope_pairs,                                                                            \
        .softcap = softcap,                                                                                  \
        .glu = glu,                                                                                          \
        .glu_backward = glu_backward,                                                                        \
        .dropout = dropout,                                                                                  \
        .dropout_backward = dropout_backward,                                                                \
        .cross_entropy = cross_entropy,                                                                      \
        .square_sum = square_sum,                                                                            \
        .adamw = adamw,                                                                                      \
        .decode = decode,                                                                                    \
        .encode = encode,                                                                                    \
        .scale = scale,                                                                                      \
        .dot = dot,                                                                                          \
        .tile = tile,                                                                                        \
        .gemm = gemm,                                                                                        \
        .gemm_rounded = rounded,                                                                             \
        .round_rows = round_rows,                                                                            \
        .round_transposed = round_transposed,                                                                \
        .softmax_tile = softmax_tile,                                                                        \
        .softmax_tile_rounded = softmax_tile_rounded,                                                        \
        .softmax_tile_backward = softmax_tile_backward,                                                      \
        .gate = gate,                                                                                        \
        .gate_backward = gate_backward,                                                                      \
        .conv = conv,                                                                                        \
        .conv_backward = conv_backward,                                                                      \
        .delta = delta,                                                                                      \
        .delta_reverse = delta_reverse,                                                                      \
        .delta_reread = delta_reread,                                                                        \
    }

const struct kernels KERNELS = KERNELS_TABLE(KERNELS_ISA, gemm_rounded);

#endif
