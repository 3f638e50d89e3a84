/* Packed weights unpack to the bits of the plain functions of model/, on every device, instruction set and
 * number of threads, from every place of a matrix. */
#include "engine/cases_bits.h"

static void packed_weights_unpack_to_the_bits_of_the_model(void **state)
{
    (void)state;
    each_device(each_kind_on);
}

static void nf4_may_end_within_a_block(void **state)
{
    (void)state;
    each_device(ragged_on);
}

static void rows_of_packed_tables_are_looked_up(void **state)
{
    (void)state;
    each_device(looked_up_on);
}

static void any_number_of_threads_gives_the_same(void **state)
{
    (void)state;
    for (uint32_t threads = 1; threads <= 5; threads++)
        for (size_t kind = 3; kind < sizeof(kinds) / sizeof(kinds[0]); kind += 2) {
            struct bench b = {.count = 0};
            struct packed p;
            struct err err;
            struct device_options options = {
                .kind = "cpu", .name = "ops", .threads = threads, .isa = bench_isa};
            check(device_open(&options, &b.device, &err));
            rand_stream_init(&b.stream, 9, 0);
            packed_make(&p, kind, 256 * 500, &b.stream);
            same_bits(&b, &p, unpack_op(&b, &p));
            packed_free(&p);
            bench_close(&b);
        }
}

static void what_does_not_fall_on_blocks_is_not_supported(void **state)
{
    struct bench b;
    struct packed p;
    (void)state;
    bench_open(&b, "cpu");
    packed_make(&p, 8, 1024, &b.stream);
    struct op good = unpack_op(&b, &p), op = good;
    assert_true(op_supports(b.device, &op));
    op.unpack.begin = 32;
    assert_false(op_supports(b.device, &op));
    op = good;
    op.unpack.count = 100;
    assert_false(op_supports(b.device, &op));
    op = good;
    op.unpack.begin = 256;
    assert_false(op_supports(b.device, &op)); /* The range ends beyond the matrix. */
    op = good;
    op.unpack.total = op.unpack.count = 1000;
    assert_false(op_supports(b.device, &op));
    op = good;
    op.unpack.x.dtype = DTYPE_F32;
    assert_false(op_supports(b.device, &op));
    packed_free(&p);
    bench_close(&b);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(packed_weights_unpack_to_the_bits_of_the_model),
        cmocka_unit_test(rows_of_packed_tables_are_looked_up),
        cmocka_unit_test(nf4_may_end_within_a_block),
        cmocka_unit_test(any_number_of_threads_gives_the_same),
        cmocka_unit_test(what_does_not_fall_on_blocks_is_not_supported),
    };
    return run_each_isa(tests, sizeof(tests) / sizeof(tests[0]));
}
