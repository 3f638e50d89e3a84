/* Mathematical functions of the dialect, written here once so that every device computes the same bits. The
 * stated errors are measured by tests/engine/test_gpu_math.c. */
#ifndef MOTLEY_ENGINE_GPU_KERNELS_MATH_H
#define MOTLEY_ENGINE_GPU_KERNELS_MATH_H

FUNCTION uint32_t math_bits(float x)
{
    union {
        float f;
        uint32_t u;
    } bits;
    bits.f = x;
    return bits.u;
}

FUNCTION float math_float(uint32_t u)
{
    union {
        float f;
        uint32_t u;
    } bits;
    bits.u = u;
    return bits.f;
}

FUNCTION uint64_t math_bits_wide(double x)
{
    union {
        double f;
        uint64_t u;
    } bits;
    bits.f = x;
    return bits.u;
}

FUNCTION double math_float_wide(uint64_t u)
{
    union {
        double f;
        uint64_t u;
    } bits;
    bits.u = u;
    return bits.f;
}

FUNCTION float math_fma(float a, float b, float c)
{
    return __builtin_fmaf(a, b, c);
}

FUNCTION float math_infinity(void)
{
    return math_float(0x7f800000u);
}

/* The float nearest to the square root of x, given y within an ulp of it. Products of y with its two
 * neighbours tell which of the three is nearest. x is in [2^-96, infinity). */
FUNCTION float math_sqrt_near(float x, float y)
{
    float below = math_float(math_bits(y) - 1), above = math_float(math_bits(y) + 1);
    if (math_fma(-below, y, x) <= 0.0f)
        return below;
    return math_fma(-above, y, x) > 0.0f ? above : y;
}

/* Square root rounded to nearest on every device; AMD's own instruction may be off by an ulp. */
FUNCTION float math_sqrt(float x)
{
    float scaled = x < 1.2621774e-29f ? x * 4294967296.0f : x, y = __builtin_sqrtf(scaled);
    if (!(y > 0.0f) || y == math_infinity())
        return y;
    y = math_sqrt_near(scaled, y);
    return x < 1.2621774e-29f ? y * 1.52587890625e-05f : y;
}

FUNCTION double math_sqrt_wide(double x)
{
    return __builtin_sqrt(x);
}

FUNCTION float math_max(float a, float b)
{
    return a > b ? a : b;
}

/* e^x within 1 ulp: x = n ln 2 + r with ln 2 split in two parts (Cody and Waite 1980), and e^r as a Taylor
 * sum. It is 0 below -87.3, where denormals would begin, and infinity above 88.72; NaN stays NaN. */
FUNCTION float math_exp(float x)
{
    if (!(x > -87.3f))
        return x != x ? x : 0.0f;
    if (x > 88.72f)
        return math_infinity();
    float n = (float)(int32_t)(x * 1.44269504f + (x < 0.0f ? -0.5f : 0.5f));
    float r = math_fma(n, -0.693359375f, x);
    r = math_fma(n, 2.12194440e-4f, r);
    float y = 1.98412698e-4f;
    y = math_fma(y, r, 1.38888889e-3f);
    y = math_fma(y, r, 8.33333333e-3f);
    y = math_fma(y, r, 4.16666667e-2f);
    y = math_fma(y, r, 1.66666667e-1f);
    y = math_fma(y, r, 0.5f);
    y = math_fma(y, r, 1.0f);
    y = math_fma(y, r, 1.0f);
    int32_t e = (int32_t)n;
    int32_t half = e / 2; /* in two factors, because 2^128 is not a float */
    return y * math_float((uint32_t)(half + 127) << 23) * math_float((uint32_t)(e - half + 127) << 23);
}

/* 2^x within 1 ulp, exact for whole numbers. It is 0 below -126 and infinity above 127; NaN stays NaN. */
FUNCTION float math_exp2(float x)
{
    if (!(x >= -126.0f))
        return x != x ? x : 0.0f;
    if (x > 127.0f)
        return math_infinity();
    int32_t n = (int32_t)(x + (x < 0.0f ? -0.5f : 0.5f));
    float r = x - (float)n;
    float y = 1.52527338e-5f; /* the coefficients are ln(2)^i / i!, from i = 7 down */
    y = math_fma(y, r, 1.54035304e-4f);
    y = math_fma(y, r, 1.33335581e-3f);
    y = math_fma(y, r, 9.61812911e-3f);
    y = math_fma(y, r, 5.55041087e-2f);
    y = math_fma(y, r, 2.40226507e-1f);
    y = math_fma(y, r, 6.93147181e-1f);
    y = math_fma(y, r, 1.0f);
    return y * math_float((uint32_t)(n + 127) << 23);
}

/* The least whole number that is not less than x. */
FUNCTION float math_ceil(float x)
{
    if (!(x > -8388608.0f && x < 8388608.0f))
        return x; /* x is whole already, or NaN */
    float n = (float)(int32_t)x;
    return n < x ? n + 1.0f : n;
}

/* ln x for x > 0 within 2 ulp: the mantissa m is in [sqrt 1/2, sqrt 2), and ln m = 2 artanh(s) with s = (m -
 * 1) / (m + 1). ln 0 is -infinity. */
FUNCTION float math_log(float x)
{
    if (x == 0.0f)
        return -math_infinity();
    if (!(x > 0.0f) || x == math_infinity())
        return x > 0.0f ? x : math_float(0x7fc00000u);
    int32_t e = 0;
    if (x < 1.17549435e-38f) {
        x *= 8388608.0f;
        e = -23;
    }
    uint32_t bits = math_bits(x);
    e += (int32_t)(bits >> 23) - 127;
    float m = math_float((bits & 0x7fffffu) | 0x3f800000u);
    if (m > 1.41421356f) {
        m *= 0.5f;
        e += 1;
    }
    float s = (m - 1.0f) / (m + 1.0f), z = s * s;
    float p = 0.222222222f;
    p = math_fma(p, z, 0.285714286f);
    p = math_fma(p, z, 0.4f);
    p = math_fma(p, z, 0.666666667f);
    float log_m = math_fma(s * z, p, 2.0f * s);
    float n = (float)e;
    return math_fma(n, 0.693359375f, math_fma(n, -2.12194440e-4f, log_m));
}

/* ln x in double within 3 ulp; below 2^-1022, for infinity and for NaN it is math_log. */
FUNCTION double math_log_wide(double x)
{
    if (!(x >= 2.2250738585072014e-308) || math_bits_wide(x) >= 0x7ff0000000000000u)
        return (double)math_log((float)x);
    uint64_t bits = math_bits_wide(x);
    int32_t e = (int32_t)(bits >> 52) - 1023;
    double m = math_float_wide((bits & 0xfffffffffffffu) | 0x3ff0000000000000u);
    if (m > 1.4142135623730951) {
        m *= 0.5;
        e += 1;
    }
    double s = (m - 1.0) / (m + 1.0), z = s * s, p = 2.0 / 23.0;
    for (int32_t k = 21; k > 0; k -= 2)
        p = p * z + 2.0 / (double)k;
    return (double)e * 0.6931471805599453 + s * p;
}

/* tanh x within 2 ulp, as in Cephes (tanhf.c, S. Moshier): a polynomial where |x| < 0.625, else by e^2x. */
FUNCTION float math_tanh(float x)
{
    float a = x < 0.0f ? -x : x;
    if (a > 9.1f)
        return x < 0.0f ? -1.0f : 1.0f;
    if (a < 0.625f) {
        float z = x * x;
        float p = -5.70498872745e-3f;
        p = math_fma(p, z, 2.06390887954e-2f);
        p = math_fma(p, z, -5.37397155531e-2f);
        p = math_fma(p, z, 1.33314422036e-1f);
        p = math_fma(p, z, -3.33332819422e-1f);
        return math_fma(x * z, p, x);
    }
    float y = 1.0f - 2.0f / (math_exp(2.0f * a) + 1.0f);
    return x < 0.0f ? -y : y;
}

FUNCTION float math_of_bf16(uint16_t x)
{
    return math_float((uint32_t)x << 16);
}

/* Rounds to nearest even; NaN stays NaN. */
FUNCTION uint16_t math_to_bf16(float x)
{
    uint32_t u = math_bits(x);
    if ((u & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(u >> 16 | 0x40u);
    return (uint16_t)((u + 0x7fffu + (u >> 16 & 1u)) >> 16);
}

FUNCTION float math_of_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000u) << 16, e = x >> 10 & 31u, m = x & 1023u;
    if (e == 31u)
        return math_float(sign | 0x7f800000u | m << 13);
    if (e == 0u) { /* the value is m * 2^-24 */
        float v = (float)m * 5.96046448e-8f;
        return sign ? -v : v;
    }
    return math_float(sign | (e + 112u) << 23 | m << 13);
}

/* Rounds to nearest even; beyond 65504 the result is infinity. */
FUNCTION uint16_t math_to_f16(float x)
{
    uint32_t u = math_bits(x), sign = u >> 16 & 0x8000u;
    u &= 0x7fffffffu;
    if (u > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (u >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    /* below 2^-14: adding 0.5 leaves the value in units of 2^-24 in the low bits, correctly rounded */
    if (u < 0x38800000u) {
        uint32_t v = math_bits(math_float(u) + 0.5f) - 0x3f000000u;
        return (uint16_t)(sign | v);
    }
    u += 0xfffu + (u >> 13 & 1u);
    return (uint16_t)(sign | (u - 0x38000000u) >> 13);
}

/* Sums and maxima over the lanes of a warp, in a butterfly: every lane gets the same value. */
FUNCTION float warp_sum(float v)
{
    for (uint32_t mask = warp_size() / 2; mask > 0; mask /= 2)
        v += shuffle_xor(v, mask);
    return v;
}

FUNCTION float warp_max(float v)
{
    for (uint32_t mask = warp_size() / 2; mask > 0; mask /= 2)
        v = math_max(v, shuffle_xor(v, mask));
    return v;
}

FUNCTION double warp_sum_wide(double v)
{
    for (uint32_t mask = warp_size() / 2; mask > 0; mask /= 2) {
        uint64_t bits = math_bits_wide(v);
        float low = shuffle_xor(math_float((uint32_t)bits), mask);
        float high = shuffle_xor(math_float((uint32_t)(bits >> 32)), mask);
        v += math_float_wide((uint64_t)math_bits(high) << 32 | math_bits(low));
    }
    return v;
}

#endif
