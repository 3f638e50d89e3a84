/* The row kernels, for vectors of VECTOR floats (4, 8 or 16), registers for TILE_ROWS x TILE_VECTORS
 * accumulators, named KERNELS. Included once per instruction set by kernels_*.c, which are compiled with its
 * flags.
 *
 * Sums run in VECTOR lanes and are then added in lane order; sums that feed a loss or a norm are in double.
 */
#include "engine/cpu/kernels.h"

#include <math.h>
#include <string.h>

typedef float vf __attribute__((vector_size(4 * VECTOR)));
typedef float vfu __attribute__((vector_size(4 * VECTOR), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * VECTOR)));
typedef uint32_t vu __attribute__((vector_size(4 * VECTOR)));
typedef double vd __attribute__((vector_size(8 * VECTOR)));
typedef uint64_t vl __attribute__((vector_size(4 * VECTOR)));

#define SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
/* Exchange the odd blocks of the lower row with the even ones of the upper, blocks of `distance` lanes. */
#define EXCHANGE(row, i, distance, LOW, HIGH)                                                                \
    do {                                                                                                     \
        vf low_ = LOW(row[i], row[(i) + (distance)]), high_ = HIGH(row[i], row[(i) + (distance)]);           \
        row[i] = low_;                                                                                       \
        row[(i) + (distance)] = high_;                                                                       \
    } while (0)
#define EXCHANGE_ALL(row, distance, LOW, HIGH)                                                               \
    _Pragma("GCC unroll 16") for (int i = 0; i < VECTOR; i++) if ((i & (distance)) == 0)                     \
        EXCHANGE(row, i, distance, LOW, HIGH);

#if VECTOR == 16
#define LOW8(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23)
#define HIGH8(a, b) SHUFFLE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31)
#define LOW4(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27)
#define HIGH4(a, b) SHUFFLE(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31)
#define LOW2(a, b) SHUFFLE(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29)
#define HIGH2(a, b) SHUFFLE(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31)
#define LOW1(a, b) SHUFFLE(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30)
#define HIGH1(a, b) SHUFFLE(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31)
#define TRANSPOSE_ROUNDS(row)                                                                                \
    EXCHANGE_ALL(row, 8, LOW8, HIGH8)                                                                        \
    EXCHANGE_ALL(row, 4, LOW4, HIGH4) EXCHANGE_ALL(row, 2, LOW2, HIGH2) EXCHANGE_ALL(row, 1, LOW1, HIGH1)
#elif VECTOR == 8
#define LOW4(a, b) SHUFFLE(a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH4(a, b) SHUFFLE(a, b, 4, 5, 6, 7, 12, 13, 14, 15)
#define LOW2(a, b) SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define HIGH2(a, b) SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#define LOW1(a, b) SHUFFLE(a, b, 0, 8, 2, 10, 4, 12, 6, 14)
#define HIGH1(a, b) SHUFFLE(a, b, 1, 9, 3, 11, 5, 13, 7, 15)
#define TRANSPOSE_ROUNDS(row)                                                                                \
    EXCHANGE_ALL(row, 4, LOW4, HIGH4) EXCHANGE_ALL(row, 2, LOW2, HIGH2) EXCHANGE_ALL(row, 1, LOW1, HIGH1)
#else
#define LOW2(a, b) SHUFFLE(a, b, 0, 1, 4, 5)
#define HIGH2(a, b) SHUFFLE(a, b, 2, 3, 6, 7)
#define LOW1(a, b) SHUFFLE(a, b, 0, 4, 2, 6)
#define HIGH1(a, b) SHUFFLE(a, b, 1, 5, 3, 7)
#define TRANSPOSE_ROUNDS(row) EXCHANGE_ALL(row, 2, LOW2, HIGH2) EXCHANGE_ALL(row, 1, LOW1, HIGH1)
#endif

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

/* exp by range reduction and Cephes' polynomial (expf.c, S. Moshier): within 2 ulp on [-87, 88]; below, 0. */
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
    vf p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * r * r + r + splat(1.0f);
    vf power = (vf)((bits + 127) << 23);
    return select_f(nan, original, select_f(tiny, splat(0.0f), p * power));
}

/* A short tail as a full vector: entries from n on are `fill`. */
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
    memcpy(p, tmp, n * sizeof *p);
}

static double square_sum(const float *x, size_t n)
{
    vd sum = {0};
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        vd v = __builtin_convertvector(load(x + i), vd);
        sum += v * v;
    }
    double total = 0;
    for (int j = 0; j < VECTOR; j++)
        total += sum[j];
    for (; i < n; i++)
        total += (double)x[i] * (double)x[i];
    return total;
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

static float inverse_rms(const float *x, size_t n, float eps)
{
    return (float)(1.0 / sqrt(square_sum(x, n) / (double)n + (double)eps));
}

static void rmsnorm(const float *x, const float *w, float *y, size_t n, float eps)
{
    float r = inverse_rms(x, n, eps);
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR)
        store(y + i, load(w + i) * (load(x + i) * r));
    for (; i < n; i++)
        y[i] = w[i] * (x[i] * r);
}

/* With r = 1 / rms: dx = r * (w dy) - x * r^3 / n * sum(x w dy). */
static void rmsnorm_backward(const float *x, const float *w, const float *dy, float *dx, size_t n, float eps,
                             bool accumulate)
{
    double r = 1.0 / sqrt(square_sum(x, n) / (double)n + (double)eps);
    vd sum = {0};
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR)
        sum += __builtin_convertvector(load(w + i) * load(dy + i), vd) *
               __builtin_convertvector(load(x + i), vd);
    double total = 0;
    for (int j = 0; j < VECTOR; j++)
        total += sum[j];
    for (; i < n; i++)
        total += (double)(w[i] * dy[i]) * (double)x[i];
    float a = (float)r, b = (float)(r * r * r * total / (double)n);
    for (i = 0; i + VECTOR <= n; i += VECTOR) {
        vf d = load(w + i) * load(dy + i) * a - load(x + i) * b;
        store(dx + i, accumulate ? load(dx + i) + d : d);
    }
    for (; i < n; i++) {
        float d = w[i] * dy[i] * a - x[i] * b;
        dx[i] = accumulate ? dx[i] + d : d;
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

INLINE vf sigmoid(vf x)
{
    return 1.0f / (1.0f + exp_f(-x));
}

static void swiglu(const float *gate, const float *up, float *act, size_t n)
{
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        vf g = load(gate + i);
        store(act + i, g * sigmoid(g) * load(up + i));
    }
    if (i < n) {
        vf g = load_tail(gate + i, n - i, 0);
        store_tail(act + i, g * sigmoid(g) * load_tail(up + i, n - i, 0), n - i);
    }
}

INLINE void swiglu_backward_vector(vf *gate, vf *up, vf d)
{
    vf g = *gate, s = sigmoid(g), silu = g * s;
    *gate = d * *up * (s + silu * (1.0f - s));
    *up = d * silu;
}

static void swiglu_backward(float *gate, float *up, const float *dact, size_t n)
{
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        vf g = load(gate + i), u = load(up + i);
        swiglu_backward_vector(&g, &u, load(dact + i));
        store(gate + i, g);
        store(up + i, u);
    }
    if (i < n) {
        vf g = load_tail(gate + i, n - i, 0), u = load_tail(up + i, n - i, 0);
        swiglu_backward_vector(&g, &u, load_tail(dact + i, n - i, 0));
        store_tail(gate + i, g, n - i);
        store_tail(up + i, u, n - i);
    }
}

/* The 64-bit products of 32-bit lanes, as halves. WIDE_MULTIPLY multiplies the even lanes of two vectors. */
INLINE void multiply_wide(vu a, vu b, vu *high, vu *low)
{
    const vl bottom = (vl){0} + 0xFFFFFFFFull;
    vl even = WIDE_MULTIPLY(a, b), odd = WIDE_MULTIPLY((vu)((vl)a >> 32), b);
    *high = (vu)((even >> 32) | (odd & ~bottom));
    *low = (vu)((even & bottom) | (odd << 32));
}

/* Philox4x32-10 on VECTOR counters at once: numbers 0..3 of counter i for features 4i..4i+3 (Salmon et al.
 * 2011). */
INLINE void philox(const struct dropout_key *key, uint32_t first, vu out[4])
{
    const vu m0 = (vu){0} + 0xD2511F53u, m1 = (vu){0} + 0xCD9E8D57u;
    vu c0 = key->position - (vu){0}, c1 = key->row_id - (vu){0}, c2 = key->step - (vu){0}, c3;
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

/* factors[8 * VECTOR] = scale where features first… are kept, else 0. */
INLINE void dropout_factors(const struct dropout_key *key, size_t first, float *factors)
{
    vu numbers[4];
    uint32_t masks[4][VECTOR], mixed[4 * VECTOR];
    philox(key, (uint32_t)(first / 8), numbers);
    for (int part = 0; part < 4; part++) {
        vhi kept = (vh)numbers[part] <= key->keep_last;
        memcpy(masks[part], &kept, sizeof kept);
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
            if (dx != NULL)
                store(dx + i + j, load(dx + i + j) + load(t + i + j) * factor);
            store(t + i + j, load(x + i + j) * factor);
        }
        for (; j < count; j++) {
            if (dx != NULL)
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

static double cross_entropy(float *x, size_t n, size_t target, bool gradient)
{
    float max = row_max(x, n), at_target = x[target];
    vd sum = {0};
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        vf e = exp_f(load(x + i) - max);
        sum += __builtin_convertvector(e, vd);
        if (gradient)
            store(x + i, e);
    }
    double total = 0;
    for (int j = 0; j < VECTOR; j++)
        total += sum[j];
    if (i < n) {
        vf e = exp_f(load_tail(x + i, n - i, -INFINITY) - max);
        for (size_t j = 0; j < n - i; j++)
            total += (double)e[j];
        if (gradient)
            store_tail(x + i, e, n - i);
    }
    if (gradient) {
        float inverse = (float)(1.0 / total);
        for (i = 0; i + VECTOR <= n; i += VECTOR)
            store(x + i, load(x + i) * inverse);
        for (; i < n; i++)
            x[i] *= inverse;
        x[target] -= 1.0f;
    }
    return log(total) + (double)max - (double)at_target;
}

INLINE void adamw_vector(const struct adamw_scalars *s, vf *p, vf g, vf *m, vf *v)
{
    g *= s->grad_scale;
    *p *= s->decay;
    *m = *m * s->beta1 + g * s->one_minus_beta1;
    *v = *v * s->beta2 + g * g * s->one_minus_beta2;
    vf root;
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

static void scale(const float *x, float factor, float *y, size_t n)
{
    for (size_t i = 0; i < n; i++)
        y[i] = x[i] * factor;
}

/* rows x (vectors * VECTOR) accumulators held in registers over the whole of k. They begin at zero and are
 * added to c at the end: begun at c, each of k small terms would be rounded at the size of c. */
#define TILE_PANEL(ROWS, VECTORS)                                                                            \
    INLINE void tile_##ROWS##_##VECTORS(size_t k, const float *a, size_t a_row, size_t a_col,                \
                                        const float *b, size_t ldb, float *c, size_t ldc, bool accumulate)   \
    {                                                                                                        \
        vf sum[ROWS][VECTORS];                                                                               \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                              \
            _Pragma("GCC unroll 4") for (int j = 0; j < VECTORS; j++) sum[i][j] = splat(0.0f);               \
        for (size_t p = 0; p < k; p++) {                                                                     \
            vf right[VECTORS];                                                                               \
            _Pragma("GCC unroll 4") for (int j = 0; j < VECTORS; j++) right[j] =                             \
                load(b + p * ldb + (size_t)j * VECTOR);                                                      \
            _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                          \
            {                                                                                                \
                vf left = splat(a[(size_t)i * a_row + p * a_col]);                                           \
                _Pragma("GCC unroll 4") for (int j = 0; j < VECTORS; j++) sum[i][j] += left * right[j];      \
            }                                                                                                \
        }                                                                                                    \
        _Pragma("GCC unroll 16") for (int i = 0; i < ROWS; i++)                                              \
            _Pragma("GCC unroll 4") for (int j = 0; j < VECTORS; j++)                                        \
        {                                                                                                    \
            float *at = c + (size_t)i * ldc + (size_t)j * VECTOR;                                            \
            store(at, accumulate ? load(at) + sum[i][j] : sum[i][j]);                                        \
        }                                                                                                    \
    }

/* ROWS full rows, or the last few. */
#define TILE_STRIP(ROWS, VECTORS)                                                                            \
    case ROWS:                                                                                               \
        tile_##ROWS##_##VECTORS(k, a, a_row, a_col, b, ldb, c, ldc, accumulate);                             \
        break

#define TILE_STRIPS(VECTORS)                                                                                 \
    TILE_PANEL(1, VECTORS)                                                                                   \
    TILE_PANEL(2, VECTORS)                                                                                   \
    TILE_PANEL(3, VECTORS)                                                                                   \
    TILE_PANEL(4, VECTORS)                                                                                   \
    TILE_PANEL(5, VECTORS)                                                                                   \
    TILE_PANEL(6, VECTORS)                                                                                   \
    static void strips_##VECTORS(size_t m, size_t k, const float *a, size_t a_row, size_t a_col,             \
                                 const float *b, size_t ldb, float *c, size_t ldc, bool accumulate)          \
    {                                                                                                        \
        for (; m >= TILE_ROWS; m -= TILE_ROWS, a += TILE_ROWS * a_row, c += TILE_ROWS * ldc)                 \
            TILE_FULL(VECTORS)(k, a, a_row, a_col, b, ldb, c, ldc, accumulate);                              \
        switch (m) {                                                                                         \
            TILE_STRIP(1, VECTORS);                                                                          \
            TILE_STRIP(2, VECTORS);                                                                          \
            TILE_STRIP(3, VECTORS);                                                                          \
            TILE_STRIP(4, VECTORS);                                                                          \
            TILE_STRIP(5, VECTORS);                                                                          \
        default:                                                                                             \
            break;                                                                                           \
        }                                                                                                    \
    }

/* As many accumulators as there are registers, less those for operands. */
#define TILE_FULL_6(VECTORS) tile_6_##VECTORS
#define TILE_FULL_4(VECTORS) tile_4_##VECTORS
#if VECTOR == 16
#define TILE_ROWS 6
#define TILE_FULL TILE_FULL_6
#define TILE_WIDE 4
#define strips_wide strips_4
TILE_STRIPS(4)
#elif VECTOR == 8
#define TILE_ROWS 6
#define TILE_FULL TILE_FULL_6
#define TILE_WIDE 2
#define strips_wide strips_2
TILE_STRIPS(2)
#else
#define TILE_ROWS 4
#define TILE_FULL TILE_FULL_4
#define TILE_WIDE 2
#define strips_wide strips_2
TILE_STRIPS(2)
#endif
TILE_STRIPS(1)

static void tile_scalar(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col,
                        const float *b, size_t ldb, float *c, size_t ldc, bool accumulate)
{
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            float sum = 0.0f;
            for (size_t p = 0; p < k; p++)
                sum += a[i * a_row + p * a_col] * b[p * ldb + j];
            c[i * ldc + j] = accumulate ? c[i * ldc + j] + sum : sum;
        }
}

static void tile(size_t m, size_t n, size_t k, const float *a, size_t a_row, size_t a_col, const float *b,
                 size_t ldb, float *c, size_t ldc, bool accumulate)
{
    size_t j = 0;
    for (; j + TILE_WIDE * VECTOR <= n; j += TILE_WIDE * VECTOR)
        strips_wide(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
    for (; j + VECTOR <= n; j += VECTOR)
        strips_1(m, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
    if (j < n)
        tile_scalar(m, n - j, k, a, a_row, a_col, b + j, ldb, c + j, ldc, accumulate);
}

/* ROWS x COLUMNS dot products over the whole of k, in lanes along k. */
#define DOT_PANEL(ROWS, COLUMNS)                                                                             \
    INLINE void dot_##ROWS##_##COLUMNS(size_t k, float alpha, const float *a, size_t lda, const float *b,    \
                                       size_t ldb, float beta, float *c, size_t ldc)                         \
    {                                                                                                        \
        vf sum[ROWS][COLUMNS];                                                                               \
        size_t p = 0;                                                                                        \
        _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++)                                               \
            _Pragma("GCC unroll 8") for (int j = 0; j < COLUMNS; j++) sum[i][j] = splat(0.0f);               \
        for (; p + VECTOR <= k; p += VECTOR) {                                                               \
            vf left[ROWS];                                                                                   \
            _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) left[i] = load(a + (size_t)i * lda + p);  \
            _Pragma("GCC unroll 8") for (int j = 0; j < COLUMNS; j++)                                        \
            {                                                                                                \
                vf right = load(b + (size_t)j * ldb + p);                                                    \
                _Pragma("GCC unroll 8") for (int i = 0; i < ROWS; i++) sum[i][j] += left[i] * right;         \
            }                                                                                                \
        }                                                                                                    \
        for (int i = 0; i < ROWS; i++)                                                                       \
            for (int j = 0; j < COLUMNS; j++) {                                                              \
                float total = LANES_SUM(sum[i][j]);                                                          \
                for (size_t q = p; q < k; q++)                                                               \
                    total += a[(size_t)i * lda + q] * b[(size_t)j * ldb + q];                                \
                float *at = c + (size_t)i * ldc + j;                                                         \
                *at = alpha * total + (beta == 0.0f ? 0.0f : beta * *at);                                    \
            }                                                                                                \
    }

#if VECTOR == 16
DOT_PANEL(4, 6)
DOT_PANEL(1, 6)
DOT_PANEL(4, 1)
#define DOT_ROWS 4
#define DOT_COLUMNS 6
#define dot_panel dot_4_6
#define dot_row dot_1_6
#define dot_column dot_4_1
#else
DOT_PANEL(3, 4)
DOT_PANEL(1, 4)
DOT_PANEL(3, 1)
#define DOT_ROWS 3
#define DOT_COLUMNS 4
#define dot_panel dot_3_4
#define dot_row dot_1_4
#define dot_column dot_3_1
#endif
DOT_PANEL(1, 1)

static void gemm_nt_thin(size_t m, size_t n, size_t k, float alpha, const float *a, size_t lda,
                         const float *b, size_t ldb, float beta, float *c, size_t ldc)
{
    size_t j = 0, i;
    for (; j + DOT_COLUMNS <= n; j += DOT_COLUMNS) {
        for (i = 0; i + DOT_ROWS <= m; i += DOT_ROWS)
            dot_panel(k, alpha, a + i * lda, lda, b + j * ldb, ldb, beta, c + i * ldc + j, ldc);
        for (; i < m; i++)
            dot_row(k, alpha, a + i * lda, lda, b + j * ldb, ldb, beta, c + i * ldc + j, ldc);
    }
    for (; j < n; j++) {
        for (i = 0; i + DOT_ROWS <= m; i += DOT_ROWS)
            dot_column(k, alpha, a + i * lda, lda, b + j * ldb, ldb, beta, c + i * ldc + j, ldc);
        for (; i < m; i++)
            dot_1_1(k, alpha, a + i * lda, lda, b + j * ldb, ldb, beta, c + i * ldc + j, ldc);
    }
}

/* A square of VECTOR x VECTOR, transposed in registers by log2(VECTOR) rounds of exchanging halves. */
INLINE void transpose_square(const float *from, size_t ld, float *to, size_t ldt)
{
    vf row[VECTOR];
    _Pragma("GCC unroll 16") for (int i = 0; i < VECTOR; i++) row[i] = load(from + (size_t)i * ld);
    TRANSPOSE_ROUNDS(row)
    _Pragma("GCC unroll 16") for (int i = 0; i < VECTOR; i++) store(to + (size_t)i * ldt, row[i]);
}

/* to[depth][columns] = b[columns][depth] transposed, rows of `to` ldt apart. */
static void panel_transpose(const float *b, size_t ldb, size_t columns, size_t depth, float *to, size_t ldt)
{
    size_t j = 0;
    for (; j + VECTOR <= columns; j += VECTOR) {
        size_t p = 0;
        for (; p + VECTOR <= depth; p += VECTOR)
            transpose_square(b + j * ldb + p, ldb, to + p * ldt + j, ldt);
        for (; p < depth; p++)
            for (size_t i = 0; i < VECTOR; i++)
                to[p * ldt + j + i] = b[(j + i) * ldb + p];
    }
    for (; j < columns; j++)
        for (size_t p = 0; p < depth; p++)
            to[p * ldt + j] = b[j * ldb + p];
}

/* Few rows: what is read of b is used too seldom to be transposed. */
enum { DOT_ROWS_MAX = 4, COPY_ROWS_MIN = 24, GEMM_ROWS = 240 }; /* GEMM_ROWS of a and c stay in cache */

/* to[depth][columns] = b, rows of `to` 64 apart: rows of b may lie so far apart that they share few cache
 * lines. */
static void panel_copy(const float *b, size_t ldb, size_t columns, size_t depth, float *to)
{
    for (size_t p = 0; p < depth; p++)
        memcpy(to + p * 64, b + p * ldb, columns * sizeof *to);
}

static void gemm_rows(bool transpose_b, size_t m, size_t n, size_t k, const float *a, size_t a_row,
                      size_t a_col, const float *b, size_t ldb, bool accumulate, float *c, size_t ldc,
                      float *scratch)
{
    for (size_t p = 0; p < k; p += GEMM_DEPTH) {
        size_t depth = k - p < GEMM_DEPTH ? k - p : GEMM_DEPTH;
        if (!transpose_b && m < COPY_ROWS_MIN) {
            tile(m, n, depth, a + p * a_col, a_row, a_col, b + p * ldb, ldb, c, ldc, accumulate || p != 0);
            continue;
        }
        for (size_t j = 0; j < n; j += 64) {
            size_t columns = n - j < 64 ? n - j : 64;
            if (transpose_b)
                panel_transpose(b + j * ldb + p, ldb, columns, depth, scratch, 64);
            else
                panel_copy(b + p * ldb + j, ldb, columns, depth, scratch);
            tile(m, columns, depth, a + p * a_col, a_row, a_col, scratch, 64, c + j, ldc,
                 accumulate || p != 0);
        }
    }
}

static void gemm(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha,
                 const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c, size_t ldc,
                 float *scratch)
{
    size_t a_row = transpose_a ? 1 : lda, a_col = transpose_a ? lda : 1;
    if (transpose_b && m <= DOT_ROWS_MAX && !transpose_a) {
        gemm_nt_thin(m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
        return;
    }
    for (size_t i = 0; i < m; i += GEMM_ROWS) {
        size_t rows = m - i < GEMM_ROWS ? m - i : GEMM_ROWS;
        gemm_rows(transpose_b, rows, n, k, a + i * a_row, a_row, a_col, b, ldb, beta != 0.0f, c + i * ldc,
                  ldc, scratch);
    }
    for (size_t i = 0; alpha != 1.0f && i < m; i++)
        scale(c + i * ldc, alpha, c + i * ldc, n);
}

static double dot_exact(const float *x, const float *y, size_t n)
{
    vd sum = {0};
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR)
        sum += __builtin_convertvector(load(x + i), vd) * __builtin_convertvector(load(y + i), vd);
    double total = 0;
    for (int j = 0; j < VECTOR; j++)
        total += sum[j];
    for (; i < n; i++)
        total += (double)x[i] * (double)y[i];
    return total;
}

INLINE float blend(float alpha, double sum, float beta, float c)
{
    return (float)((double)alpha * sum + (beta == 0.0f ? 0.0 : (double)beta * (double)c));
}

/* c[0..n) of one row, a's elements a_step apart, b[k,n]. */
static void row_exact(size_t n, size_t k, float alpha, const float *a, size_t a_step, const float *b,
                      size_t ldb, float beta, float *c)
{
    size_t j = 0;
    for (; j + VECTOR <= n; j += VECTOR) {
        vd sum = {0};
        for (size_t p = 0; p < k; p++)
            sum += (double)a[p * a_step] * __builtin_convertvector(load(b + p * ldb + j), vd);
        for (size_t i = 0; i < VECTOR; i++)
            c[j + i] = blend(alpha, sum[i], beta, c[j + i]);
    }
    for (; j < n; j++) {
        double sum = 0;
        for (size_t p = 0; p < k; p++)
            sum += (double)a[p * a_step] * (double)b[p * ldb + j];
        c[j] = blend(alpha, sum, beta, c[j]);
    }
}

static void gemm_exact(bool transpose_a, bool transpose_b, size_t m, size_t n, size_t k, float alpha,
                       const float *a, size_t lda, const float *b, size_t ldb, float beta, float *c,
                       size_t ldc)
{
    for (size_t i = 0; i < m; i++) {
        if (!transpose_b) {
            row_exact(n, k, alpha, transpose_a ? a + i : a + i * lda, transpose_a ? lda : 1, b, ldb, beta,
                      c + i * ldc);
            continue;
        }
        for (size_t j = 0; j < n; j++)
            c[i * ldc + j] = blend(alpha, dot_exact(a + i * lda, b + j * ldb, k), beta, c[i * ldc + j]);
    }
}

static float softmax_tile(float *s, size_t valid, size_t n, float factor, float *m, float *l)
{
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
    for (; i < n; i++)
        s[i] = 0.0f;
    *l = *l * correction + lanes_sum(sum);
    *m = max;
    return correction;
}

static void softmax_tile_backward(float *s, float *dp, size_t valid, size_t n, float factor, float lse,
                                  float delta)
{
    size_t i = 0;
    for (; i + VECTOR <= valid; i += VECTOR) {
        vf p = exp_f(load(s + i) * factor - lse);
        store(s + i, p);
        store(dp + i, p * (load(dp + i) - delta) * factor);
    }
    if (i < valid) {
        vf p = exp_f(load_tail(s + i, valid - i, -INFINITY) * factor - lse);
        vf d = p * (load_tail(dp + i, valid - i, 0) - delta) * factor;
        store_tail(s + i, p, valid - i);
        store_tail(dp + i, d, valid - i);
        i = valid;
    }
    for (; i < n; i++)
        s[i] = dp[i] = 0.0f;
}

const struct kernels KERNELS = {
    .isa = KERNELS_ISA,
    .width = VECTOR,
    .rmsnorm = rmsnorm,
    .rmsnorm_backward = rmsnorm_backward,
    .rope = rope,
    .swiglu = swiglu,
    .swiglu_backward = swiglu_backward,
    .dropout = dropout,
    .dropout_backward = dropout_backward,
    .cross_entropy = cross_entropy,
    .square_sum = square_sum,
    .adamw = adamw,
    .scale = scale,
    .dot = dot,
    .tile = tile,
    .gemm = gemm,
    .gemm_exact = gemm_exact,
    .softmax_tile = softmax_tile,
    .softmax_tile_backward = softmax_tile_backward,
};
