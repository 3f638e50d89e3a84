/* Tests of a paced device: it computes the CPU's numbers, and its clock tells the time of the given rates
 * whatever the CPU took. Times on its clock are exact; those that the host sees are bounded from below alone.
 */
#include "engine/ops.h"

#include <math.h>

#include "common/clock.h"
#include "engine/device/backend.h"

static const struct device_pace rates = {
    .flops = 1e8, .flops_16 = 4e8, .bytes_per_s = 1e9, .bus_bytes_per_s = 1e7, .launch_s = 1e-3};

static void paced_open(struct bench *b)
{
    struct err err;
    memset(b, 0, sizeof(*b));
    check(device_open(
        &(struct device_options){
            .kind = "paced", .name = "paced", .threads = 1, .isa = bench_isa, .pace = &rates},
        &b->device, &err));
    rand_stream_init(&b->stream, 42, 0);
}

static struct op product(const struct operand parts[3], enum dtype compute)
{
    return (struct op){.kind = OP_GEMM,
                       .gemm = {.m = 100,
                                .n = 50,
                                .k = 200,
                                .alpha = 1,
                                .compute = compute,
                                .lda = 200,
                                .ldb = 50,
                                .ldc = 50,
                                .a = parts[0],
                                .b = parts[1],
                                .c = parts[2]}};
}

static void operands_make(struct bench *b, struct operand parts[3])
{
    double *values = malloc(sizeof(double) * 20000);
    parts[0] = normal(b, 20000, values);
    parts[1] = normal(b, 10000, values);
    parts[2] = empty(b, 5000);
    free(values);
}

/* 2 · 100 · 50 · 200 = 2e6 operations: 20 ms in fp32 and 5 ms in bf16, and 1 ms of launch. */
static void a_product_takes_the_time_of_its_rate(void **state)
{
    (void)state;
    const enum dtype computes[] = {DTYPE_F32, DTYPE_BF16};
    const double want[] = {0.021, 0.006};
    struct err err;
    struct bench b;
    struct operand parts[3];
    struct event *before, *after;
    paced_open(&b);
    operands_make(&b, parts);
    check(event_create_timed(b.device, &before, &err));
    check(event_create_timed(b.device, &after, &err));
    /* The first op begins when the host submits it, which another program may delay: then it is tried again.
     */
    double seconds = INFINITY;
    for (int i = 0, tries = 0; i < 2; i += fabs(seconds - 3 * want[i]) <= 1e-3) {
        if (tries++ > 10)
            fail_msg("3 products took %.4f s, not %.4f s", seconds, 3 * want[i]);
        const uint64_t began = clock_mono_ns();
        check(device_sync(b.device, &err));
        check(event_record(before, &err));
        for (int n = 0; n < 3; n++)
            submit(&b, product(parts, computes[i]));
        check(event_record(after, &err));
        assert_true(event_wait(after, 1000, &err) == -1 && err.code == ERR_TIMEOUT);
        assert_false(event_done(after));
        check(event_wait(after, UINT64_C(10000000000), &err));
        assert_true(event_done(after));
        assert_true((double)(clock_mono_ns() - began) * 1e-9 >= 3 * want[i]);
        check(event_elapsed(before, after, &seconds, &err));
    }
    event_destroy(before);
    event_destroy(after);
    bench_close(&b);
}

/* A copy to the host takes 100 ms: beside the product on its own queue, after it where it waits for it. */
static void queues_run_beside_each_other_unless_they_wait(void **state)
{
    (void)state;
    struct err err;
    struct bench b;
    struct operand parts[3];
    static float host[250000];
    paced_open(&b);
    operands_make(&b, parts);
    struct operand large = empty(&b, 250000);
    struct event *product_end, *copy_end;
    check(event_create_timed(b.device, &product_end, &err));
    check(event_create_timed(b.device, &copy_end, &err));
    for (int waits = 0; waits < 2; waits++) {
        double seconds;
        check(device_sync(b.device, &err));
        for (int n = 0; n < 5; n++)
            submit(&b, product(parts, DTYPE_F32));
        check(event_record(product_end, &err));
        if (waits)
            check(queue_wait(DEVICE_OUT, product_end, &err));
        check(buffer_read_on(DEVICE_OUT, large.buffer, 0, host, sizeof(host), &err));
        check(event_record_on(DEVICE_OUT, copy_end, &err));
        check(event_elapsed(product_end, copy_end, &seconds, &err));
        const double want = waits ? 0.1 : 0.1 - 0.105;
        if (fabs(seconds - want) > 4e-3)
            fail_msg("the copy ended %.4f s after the products, not %.4f s", seconds, want);
    }
    event_destroy(product_end);
    event_destroy(copy_end);
    bench_close(&b);
}

static void numbers_are_those_of_the_cpu(void **state)
{
    (void)state;
    static float got[2][5000];
    for (int paced = 0; paced < 2; paced++) {
        struct err err;
        struct bench b;
        struct operand parts[3];
        if (paced)
            paced_open(&b);
        else
            bench_open(&b, "cpu");
        operands_make(&b, parts);
        submit(&b, product(parts, DTYPE_F32));
        check(buffer_read(parts[2].buffer, 0, got[paced], sizeof(got[paced]), &err));
        bench_close(&b);
    }
    assert_memory_equal(got[0], got[1], sizeof(got[0]));
}

static void rates_are_needed(void **state)
{
    (void)state;
    struct err err;
    struct device *device;
    struct device_pace none = rates;
    none.bytes_per_s = 0;
    struct device_options options = {.kind = "paced", .name = "left/paced0"};
    assert_int_equal(device_open(&options, &device, &err), -1);
    assert_int_equal(err.code, ERR_INVALID);
    options.pace = &none;
    assert_int_equal(device_open(&options, &device, &err), -1);
    assert_non_null(strstr(err.text, "left/paced0"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_product_takes_the_time_of_its_rate),
        cmocka_unit_test(queues_run_beside_each_other_unless_they_wait),
        cmocka_unit_test(numbers_are_those_of_the_cpu),
        cmocka_unit_test(rates_are_needed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
