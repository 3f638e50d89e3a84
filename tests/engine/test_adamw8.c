/* Compares 8-bit AdamW with steps of bitsandbytes (tools/golden_adamw8.py), and its codes with a search over
 * all boundaries. */
#include "engine/ops.h"

#include <jansson.h>

#include "model/files/dynamic_map.h"

enum { COUNT = 650, STEPS = 4, BLOCKS = (COUNT + 255) / 256 };

static void gradient_of(int step, float *gradient)
{
    for (int i = 0; i < COUNT; i++)
        gradient[i] =
            (float)ldexp((double)((i * 7919 + step * 104729) % 2001 - 1000) / 1024, -((i + step) % 16));
}

static void floats_check(struct bench *b, json_t *golden, const char *name, struct operand got,
                         uint32_t count)
{
    double want[COUNT];
    json_t *array = json_object_get(golden, name);
    assert_int_equal(json_array_size(array), count);
    for (uint32_t i = 0; i < count; i++)
        want[i] = json_number_value(json_array_get(array, i));
    expect(b, got, want, count, 3e-7, name);
}

static void codes_check(struct bench *b, json_t *golden, const char *name, struct operand got)
{
    struct err err;
    uint8_t codes[COUNT];
    json_t *array = json_object_get(golden, name);
    assert_int_equal(json_array_size(array), COUNT);
    check(buffer_read(got.buffer, 0, codes, COUNT, &err));
    check(device_sync(b->device, &err));
    for (uint32_t i = 0; i < COUNT; i++)
        if (codes[i] != json_integer_value(json_array_get(array, i)))
            fail_msg("%s[%u] is %d, not %lld (%s)", name, i, codes[i],
                     (long long)json_integer_value(json_array_get(array, i)), device_isa(b->device));
}

static void adamw8_on(struct bench *b)
{
    struct err err;
    json_error_t problem;
    json_t *golden = json_load_file(MOTLEY_TEST_DATA "/golden/adamw8.json", 0, &problem);
    float value[COUNT], gradients[STEPS][COUNT];
    uint8_t zeros[COUNT] = {0};
    assert_non_null(golden);
    for (int i = 0; i < COUNT; i++)
        value[i] = (float)((i * 31) % 257 - 128) / 128;
    struct op_adamw8 update = {.count = COUNT,
                               .rule.learning_rate = 0.01,
                               .rule.beta1 = 0.9,
                               .rule.beta2 = 0.99,
                               .rule.eps = 1e-8,
                               .rule.weight_decay = 0.1,
                               .rule.grad_scale = 0.5,
                               .value = bytes_in(b, value, sizeof(value), DTYPE_F32),
                               .gradient = empty(b, COUNT),
                               .code1 = bytes_in(b, zeros, COUNT, DTYPE_U8),
                               .code2 = bytes_in(b, zeros, COUNT, DTYPE_U8),
                               .absmax1 = bytes_in(b, zeros, 4 * BLOCKS, DTYPE_F32),
                               .absmax2 = bytes_in(b, zeros, 4 * BLOCKS, DTYPE_F32)};
    for (int step = 1; step <= STEPS; step++) {
        gradient_of(step, gradients[step - 1]);
        check(buffer_write(update.gradient.buffer, 0, gradients[step - 1], sizeof(value), &err));
        update.rule.bias_correction1 = 1 - pow(update.rule.beta1, step);
        update.rule.bias_correction2 = 1 - pow(update.rule.beta2, step);
        submit(b, (struct op){.kind = OP_ADAMW8, .adamw8 = update});
    }
    floats_check(b, golden, "value", update.value, COUNT);
    floats_check(b, golden, "absmax1", update.absmax1, BLOCKS);
    floats_check(b, golden, "absmax2", update.absmax2, BLOCKS);
    codes_check(b, golden, "code1", update.code1);
    codes_check(b, golden, "code2", update.code2);
    json_decref(golden);
}

static void steps_are_bitsandbytes(void **state)
{
    (void)state;
    each_device(adamw8_on);
}

/* Checks the codes of x[n], whose largest magnitude is 1, by a search over all boundaries. */
static void nearest_check(const float *map, const float *x, const uint8_t *codes, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        uint32_t code = 0;
        while (code + 1 < 256 && x[i] > (map[code] + map[code + 1]) / 2.0f)
            code++;
        if (codes[i] != code)
            fail_msg("%a has code %u, not %u (%s)", (double)x[i], codes[i], code, bench_isa);
    }
}

/* Tests blocks whose largest magnitude is 1, with boundaries, their neighbours and noise of any size. */
static void every_code_is_that_of_the_nearest_value(void **state)
{
    (void)state;
    enum { ALL = 64 * 256 };
    static float x[ALL], squares[ALL], map[2][256];
    static uint8_t codes[ALL], zeros[4 * ALL];
    struct bench *b = &(struct bench){0};
    struct err err;
    struct device_options options = {.kind = "cpu", .name = "codes", .threads = 1, .isa = bench_isa};
    check(device_open(&options, &b->device, &err));
    rand_stream_init(&b->stream, 5, 0);
    dynamic_map(false, map[0]);
    dynamic_map(true, map[1]);
    for (uint32_t i = 0; i < ALL; i++) {
        const float *m = map[i / 3 % 2];
        uint32_t k = rand_stream_below(&b->stream, 255);
        float bound = (m[k] + m[k + 1]) / 2.0f;
        x[i] = i % 3 == 0 ? bound : nextafterf(bound, i % 3 == 1 ? -2.0f : 2.0f);
        if (i % 7 == 0)
            x[i] = ldexpf((float)rand_stream_unit(&b->stream), -(int)rand_stream_below(&b->stream, 40));
        x[i] = i % 256 == 0 ? 1.0f : i % 5 == 0 ? -x[i] : x[i];
        squares[i] = x[i] * x[i];
    }
    struct op_adamw8 update = {.count = ALL,
                               .rule.eps = 1,
                               .rule.grad_scale = 1,
                               .rule.bias_correction1 = 1,
                               .rule.bias_correction2 = 1,
                               .value = empty(b, ALL),
                               .gradient = bytes_in(b, x, sizeof(x), DTYPE_F32),
                               .code1 = bytes_in(b, zeros, ALL, DTYPE_U8),
                               .code2 = bytes_in(b, zeros, ALL, DTYPE_U8),
                               .absmax1 = bytes_in(b, zeros, ALL / 64, DTYPE_F32),
                               .absmax2 = bytes_in(b, zeros, ALL / 64, DTYPE_F32)};
    submit(b, (struct op){.kind = OP_ADAMW8, .adamw8 = update});
    check(buffer_read(update.code1.buffer, 0, codes, ALL, &err));
    check(device_sync(b->device, &err));
    nearest_check(map[1], x, codes, ALL);
    check(buffer_read(update.code2.buffer, 0, codes, ALL, &err));
    check(device_sync(b->device, &err));
    nearest_check(map[0], squares, codes, ALL);
    bench_close(b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_are_bitsandbytes),
        cmocka_unit_test(every_code_is_that_of_the_nearest_value),
    };
    return run_each_isa(tests, sizeof(tests) / sizeof(*tests));
}
