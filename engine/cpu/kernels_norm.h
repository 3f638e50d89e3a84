/* Norms of vectors, and the gradient of their weights. Part of kernels_body.h, which includes it once per
 * instruction set.
 */
#ifndef MOTLEY_ENGINE_CPU_KERNELS_NORM_H
#define MOTLEY_ENGINE_CPU_KERNELS_NORM_H

static double mean_of(const float *x, size_t n)
{
    double total = 0;
    vn sum = {0};
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR)
        sum += widen(x + i) + widen(x + i + VECTOR / 2);
    for (; i < n; i++)
        total += (double)x[i];
    return (total + wide_sum(sum)) / (double)n;
}

/* Returns 1 / sqrt(mean((x - mean)^2) + eps), where *mean is 0 unless the norm is centred. */
static double inverse_of(const float *x, size_t n, float eps, bool centred, double *mean)
{
    *mean = centred ? mean_of(x, n) : 0;
    double squares = centred ? squares_about(x, n, *mean) : square_sum(x, n);
    return 1.0 / sqrt(squares / (double)n + (double)eps);
}

static struct norm_of norm_of(const float *x, size_t n, float eps, bool centred)
{
    double mean;
    float inverse = (float)inverse_of(x, n, eps, centred, &mean);
    return (struct norm_of){inverse, (float)mean};
}

INLINE void norm_row(const float *x, const float *w, const float *bias, float *y, size_t n,
                     struct norm_of norm, float offset)
{
    size_t i = 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        vf scaled = (load(w + i) + offset) * ((load(x + i) - norm.mean) * norm.inverse);
        store(y + i, bias ? scaled + load(bias + i) : scaled);
    }
    for (; i < n; i++)
        y[i] = (w[i] + offset) * ((x[i] - norm.mean) * norm.inverse) + (bias ? bias[i] : 0.0f);
}

static void rmsnorm(const float *x, const float *w, const float *bias, float *y, size_t n,
                    struct norm_of norm, float offset)
{
    if (bias)
        norm_row(x, w, bias, y, n, norm, offset);
    else
        norm_row(x, w, NULL, y, n, norm, offset);
}

/* With r = 1 / rms and x less its mean: dx = r * (w dy) - x * r^3 / n * sum(x w dy), in a centred norm less
 * r / n * sum(w dy). */
INLINE struct norm_of norm_backward(const struct op_rmsnorm_backward *op, const float *x, const float *w,
                                    const float *dy, float *dx, bool centred)
{
    double mean, r = inverse_of(x, op->width, op->eps, centred, &mean);
    vn sum0 = {0}, sum1 = {0}, products = {0};
    size_t i = 0, half = VECTOR / 2, n = op->width;
    float offset = op->offset, shift = centred ? (float)mean : 0.0f;
    if (!dx)
        return (struct norm_of){(float)r, shift};
    for (; i + VECTOR <= n; i += VECTOR) {
        float product[VECTOR];
        store(product, (load(w + i) + offset) * load(dy + i));
        vn low = widen(product), high = widen(product + half);
        sum0 += low * (widen(x + i) - (centred ? mean : 0));
        sum1 += high * (widen(x + i + half) - (centred ? mean : 0));
        products += centred ? low + high : low;
    }
    double total = wide_sum(sum0 + sum1), sum = wide_sum(products);
    for (; i < n; i++) {
        total += (double)((w[i] + offset) * dy[i]) * ((double)x[i] - mean);
        sum += (double)((w[i] + offset) * dy[i]);
    }
    float a = (float)r, b = (float)(r * r * r * total / (double)n), c = (float)(r * sum / (double)n);
    for (i = 0; i + VECTOR <= n; i += VECTOR) {
        vf d = (load(w + i) + offset) * load(dy + i) * a - (load(x + i) - shift) * b;
        d = centred ? d - c : d;
        store(dx + i, op->accumulate ? load(dx + i) + d : d);
    }
    for (; i < n; i++) {
        float d = (w[i] + offset) * dy[i] * a - (x[i] - shift) * b - (centred ? c : 0.0f);
        dx[i] = op->accumulate ? dx[i] + d : d;
    }
    return (struct norm_of){a, shift};
}

static struct norm_of rmsnorm_backward(const struct op_rmsnorm_backward *op, const float *x, const float *w,
                                       const float *dy, float *dx)
{
    return op->centred ? norm_backward(op, x, w, dy, dx, true) : norm_backward(op, x, w, dy, dx, false);
}

static void norm_weight_sum(const struct norm_rows *rows, float *dweight, size_t n)
{
    double sums[COLUMNS_STRIP] = {0};
    for (size_t i = 0; i < rows->rows; i++)
        for (size_t v = 0; v < rows->vectors; v++) {
            const float *x = rows->x + i * rows->ldx + v * rows->width;
            const float *dy = rows->dy + i * rows->lddy + v * rows->width;
            const struct norm_of *norm = &rows->norms[i * rows->vectors + v];
            for (size_t j = 0; j < n; j++)
                sums[j] += (double)dy[j] * ((double)x[j] - (double)norm->mean) * (double)norm->inverse;
        }
    for (size_t j = 0; j < n; j++)
        dweight[j] = (float)((double)dweight[j] + sums[j]);
}

#endif
