/* Compares the functions of the kernels' dialect with libm in double, and conversions with the definition of
 * rounding. */
#include "engine/harness.h"

#include "engine/gpu/kernels/dialect.h"

/* Returns the unit in the last place of a float near `want`. */
static double ulp_of(double want)
{
    int exponent;
    (void)frexp(want, &exponent);
    return ldexp(1, (exponent < -125 ? -125 : exponent) - 24);
}

/* Checks every 1,009th float of [low, high] with both signs to within `most` ulp. */
static void sweep(const char *name, float (*got)(float), double (*want)(double), float low, float high,
                  double most)
{
    for (uint32_t sign = 0; sign < 2; sign++)
        for (uint64_t bits = sign; bits < 0x7f800000u; bits += 1009) {
            float x = math_float((uint32_t)bits | sign << 31);
            if (!(x >= low && x <= high))
                continue;
            double y = want((double)x), wrong = fabs((double)got(x) - y) / ulp_of(y);
            if (!(wrong <= most))
                fail_msg("%s of %.9g is %.9g, off by %.2f ulp", name, (double)x, (double)got(x), wrong);
        }
}

static void functions_are_as_near_as_they_say(void **state)
{
    (void)state;
    sweep("exp", math_exp, exp, -87.3f, 88.72f, 1);
    sweep("exp2", math_exp2, exp2, -126, 127, 1);
    sweep("ceil", math_ceil, ceil, -0x1p40f, 0x1p40f, 0);
    sweep("log", math_log, log, 0x1p-149f, 0x1.fffffep127f, 2);
    sweep("log near 1", math_log, log, 0.98f, 1.02f, 2);
    sweep("tanh", math_tanh, tanh, -20, 20, 2);
    sweep("sqrt", math_sqrt, sqrt, 0x1p-149f, 0x1.fffffep127f, 0.5);
}

static void functions_have_their_limits(void **state)
{
    (void)state;
    assert_true(math_exp(-INFINITY) == 0 && math_exp(INFINITY) == INFINITY && isnan(math_exp(NAN)));
    assert_true(math_exp(-200) == 0 && math_exp(200) == INFINITY && math_exp(0) == 1);
    assert_true(math_exp2(-INFINITY) == 0 && math_exp2(128) == INFINITY && isnan(math_exp2(NAN)));
    for (int i = -126; i <= 127; i++)
        assert_true(math_exp2((float)i) == ldexpf(1, i));
    assert_true(math_ceil(-INFINITY) == -INFINITY && isnan(math_ceil(NAN)));
    assert_true(math_log(0) == -INFINITY && math_log(INFINITY) == INFINITY && math_log(1) == 0);
    assert_true(isnan(math_log(-1)) && isnan(math_log(NAN)));
    assert_true(math_tanh(-INFINITY) == -1 && math_tanh(INFINITY) == 1 && isnan(math_tanh(NAN)));
    assert_true(math_sqrt(0) == 0 && math_sqrt(INFINITY) == INFINITY && isnan(math_sqrt(-1)));
    assert_true(math_log_wide(0) == -(double)INFINITY && isnan(math_log_wide(-1)));
}

/* A square root that the device rounded wrongly by one ulp is corrected. */
static void roots_are_made_exact(void **state)
{
    struct rand_stream stream;
    (void)state;
    rand_stream_init(&stream, 5, 0);
    for (int i = 0; i < 300000; i++) {
        float x = math_float(0x0f800000u + rand_stream_below(&stream, 0x6ff00000u)), y = sqrtf(x);
        uint32_t off = rand_stream_below(&stream, 3);
        float found = math_sqrt_near(x, math_float(math_bits(y) + off - 1));
        if (found != y)
            fail_msg("the root of %.9g is %.9g, not %.9g", (double)x, (double)found, (double)y);
    }
}

static void logarithms_in_double_are_as_near_as_they_say(void **state)
{
    struct rand_stream stream;
    (void)state;
    rand_stream_init(&stream, 6, 0);
    for (int i = 0; i < 300000; i++) {
        double x = i % 2 ? 0.9 + 0.2 * rand_stream_unit(&stream)
                         : ldexp(1 + rand_stream_unit(&stream), (int)rand_stream_below(&stream, 2000) - 1000);
        long double want = logl((long double)x);
        double unit = ldexp(1, ilogb((double)want) - 52);
        if (fabsl((long double)math_log_wide(x) - want) > 3 * (long double)unit)
            fail_msg("log of %.17g is %.17g, not %.17g", x, math_log_wide(x), (double)want);
    }
}

/* from_half and to_half convert either 16-bit type by the functions of the kernels, which the tests compare
 * with the conversions of harness.h, written after the formats' definitions. */
static float from_half(enum dtype dtype, uint16_t h)
{
    return dtype == DTYPE_BF16 ? math_of_bf16(h) : math_of_f16(h);
}

static uint16_t to_half(enum dtype dtype, float x)
{
    return dtype == DTYPE_BF16 ? math_to_bf16(x) : math_to_f16(x);
}

static void round_check(enum dtype dtype, float x)
{
    double got = (double)from_half(dtype, to_half(dtype, x)), want = rounded(dtype, (double)x);
    if (!(got == want && !signbit(got) == !signbit(want)) && !(isnan(got) && isnan(x)))
        fail_msg("%.9g rounds to %.9g, not %.9g (dtype %d)", (double)x, got, want, dtype);
}

static void halves_are_read_and_rounded_by_definition(void **state)
{
    const enum dtype dtypes[] = {DTYPE_BF16, DTYPE_F16};
    (void)state;
    for (int d = 0; d < 2; d++)
        for (uint32_t h = 0; h < 65536; h++) {
            uint16_t bits = (uint16_t)h;
            uint8_t bytes[8] = {(uint8_t)h, (uint8_t)(h >> 8)};
            float x = from_half(dtypes[d], bits);
            double want = read_as(dtypes[d], bytes);
            assert_true((double)x == want ? !signbit(x) == !signbit(want) : isnan(x) && isnan(want));
            assert_true(isnan(x) || to_half(dtypes[d], x) == bits);
            /* The test takes the middle to the next value and its two neighbouring floats. */
            float next = from_half(dtypes[d], (uint16_t)(h + 1)), middle = x / 2 + next / 2;
            round_check(dtypes[d], middle);
            round_check(dtypes[d], nextafterf(middle, -INFINITY));
            round_check(dtypes[d], nextafterf(middle, INFINITY));
        }
    for (uint64_t u = 0; u < 0x100000000u; u += 10007)
        for (int d = 0; d < 2; d++)
            round_check(dtypes[d], math_float((uint32_t)u));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_as_near_as_they_say),
        cmocka_unit_test(functions_have_their_limits),
        cmocka_unit_test(roots_are_made_exact),
        cmocka_unit_test(logarithms_in_double_are_as_near_as_they_say),
        cmocka_unit_test(halves_are_read_and_rounded_by_definition),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
