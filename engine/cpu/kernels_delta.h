/* Gates, the short convolution and the gated delta rule. Part of kernels_body.h, which includes it once per
 * instruction set.
 */
#ifndef MOTLEY_ENGINE_CPU_KERNELS_DELTA_H
#define MOTLEY_ENGINE_CPU_KERNELS_DELTA_H

/* Loads or stores a vector of which only the first `left` values exist; the others are 0. */
INLINE vf take(const float *p, size_t left)
{
    return left >= VECTOR ? load(p) : load_tail(p, left, 0);
}

INLINE void put(float *p, vf x, size_t left)
{
    if (left >= VECTOR)
        store(p, x);
    else
        store_tail(p, x, left);
}

INLINE vf sigmoid_f(vf z)
{
    return splat(1.0f) / (exp_f(-z) + 1.0f);
}

static void gate(enum gate_kind kind, const float *x, const float *z, float *y, size_t n)
{
    if (kind == GATE_PLAIN) {
        for (size_t i = 0; i < n; i += VECTOR)
            put(y + i, take(x + i, n - i) * take(z + i, n - i), n - i);
        return;
    }
    for (size_t i = 0; i < n; i += VECTOR) {
        vf zs = take(z + i, n - i), f = sigmoid_f(zs);
        put(y + i, take(x + i, n - i) * (kind == GATE_SILU ? zs * f : f), n - i);
    }
}

static void gate_backward(enum gate_kind kind, const float *x, const float *z, const float *dy, float *dx,
                          float *dz, size_t n)
{
    bool silu = kind == GATE_SILU;
    if (kind == GATE_PLAIN) {
        for (size_t i = 0; i < n; i += VECTOR) {
            vf d = take(dy + i, n - i), xs = take(x + i, n - i);
            put(dx + i, d * take(z + i, n - i), n - i);
            put(dz + i, d * xs, n - i);
        }
        return;
    }
    for (size_t i = 0; i < n; i += VECTOR) {
        vf zs = take(z + i, n - i), s = sigmoid_f(zs), d = take(dy + i, n - i);
        vf slope = silu ? s + zs * s * (1.0f - s) : s * (1.0f - s);
        put(dz + i, d * take(x + i, n - i) * slope, n - i);
        put(dx + i, d * (silu ? zs * s : s), n - i);
    }
}

INLINE vf conv_sum(const struct conv_token *t, size_t i)
{
    vf sum = {0};
    if (t->bias)
        sum = take(t->bias + i, t->n - i);
    for (uint32_t j = 0; j < t->taps; j++)
        sum += take(t->w + j * t->n + i, t->n - i) * take(t->x[j] + i, t->n - i);
    return sum;
}

static void conv(const struct conv_token *t, float *y)
{
    for (size_t i = 0; i < t->n; i += VECTOR) {
        vf s = conv_sum(t, i);
        put(y + i, t->plain ? s : s * sigmoid_f(s), t->n - i);
    }
}

static void conv_backward(const struct conv_token *t, const float *dy, float *const dx[], double *dw)
{
    size_t n = t->n;
    for (size_t i = 0; i < n; i += VECTOR) {
        vf s = conv_sum(t, i), f = sigmoid_f(s);
        vf d_y = take(dy + i, n - i), ds = t->plain ? d_y : d_y * (f + s * f * (1.0f - f));
        for (uint32_t j = 0; j < t->taps; j++) {
            vf d = ds * take(t->w + j * n + i, n - i);
            put(dx[j] + i, j == 0 ? d : take(dx[j] + i, n - i) + d, n - i);
        }
        for (size_t u = 0; dw && u < VECTOR && i + u < n; u++) {
            for (uint32_t j = 0; j < t->taps; j++)
                dw[j * n + i + u] += (double)ds[u] * (double)t->x[j][i + u];
            if (t->bias)
                dw[t->taps * n + i + u] += (double)ds[u];
        }
    }
}

enum { DELTA_STRIP = 4 * VECTOR }; /* columns of the state that are handled at once */

static void delta(const struct delta_token *t, float *state, float *error, float *out)
{
    for (size_t c = 0; c < t->values; c += DELTA_STRIP) {
        vf sum[4] = {{0}}, change[4], o[4] = {{0}};
        for (size_t i = 0; !t->scan && i < t->keys; i++)
            for (size_t u = 0; u < 4; u++)
                sum[u] += load(state + i * t->ld + c + u * VECTOR) * t->k[i];
        for (size_t u = 0; u < 4; u++) {
            size_t at = c + u * VECTOR, left = at < t->values ? t->values - at : 0;
            vf v = take(t->v + at, left), e = v - sum[u] * t->gamma;
            change[u] = e * t->beta;
            if (t->scan)
                o[u] = v * t->skip;
            else
                put(error + at, e, left);
        }
        for (size_t i = 0; i < t->keys; i++)
            for (size_t u = 0; u < 4; u++) {
                float *s = state + i * t->ld + c + u * VECTOR;
                vf x = load(s) * t->gamma + change[u] * t->k[i];
                store(s, x);
                o[u] += x * t->q[i];
            }
        for (size_t u = 0; u < 4; u++) {
            size_t at = c + u * VECTOR, left = at < t->values ? t->values - at : 0;
            put(out + at, o[u], left);
        }
    }
}

static void delta_reverse(const struct delta_token *t, float *dstate, float *dv, float *written)
{
    float qk = dot(t->q, t->k, t->keys);
    for (size_t c = 0; c < t->ld; c += DELTA_STRIP) {
        vf sum[4] = {{0}};
        for (size_t i = 0; i < t->keys; i++)
            for (size_t u = 0; u < 4; u++)
                sum[u] += load(dstate + i * t->ld + c + u * VECTOR) * t->k[i];
        for (size_t u = 0; u < 4; u++)
            store(dv + c + u * VECTOR, (sum[u] + load(t->dout + c + u * VECTOR) * qk) * t->beta);
    }
    for (size_t i = 0; i < t->keys; i++) {
        float *d = dstate + i * t->ld, k = t->scan ? 0.0f : t->k[i];
        vf sum = {0};
        for (size_t c = 0; c < t->ld; c += VECTOR) {
            vf x = load(d + c);
            sum += x * load(t->change + c);
            store(d + c, (x + load(t->dout + c) * t->q[i] - load(dv + c) * k) * t->gamma);
        }
        written[i] = lanes_sum(sum);
    }
}

static void delta_reread(const struct delta_token *t, float *state, const float *dv, float *dq, float *dk)
{
    for (size_t i = 0; i < t->keys; i++) {
        float *s = state + i * t->ld;
        vf q = {0}, k = {0};
        for (size_t c = 0; c < t->ld; c += VECTOR) {
            vf x = load(s + c) * t->gamma;
            q += x * load(t->dout + c);
            k -= x * load(dv + c);
            store(s + c, x + load(t->change + c) * t->k[i]);
        }
        dq[i] = lanes_sum(q);
        dk[i] = lanes_sum(k);
    }
}

#endif
