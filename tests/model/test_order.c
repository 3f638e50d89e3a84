/* Row order has every row once per pass, is the same everywhere, and is cut into micro-batches
 * without loss. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/rand.h"
#include "model/job/order.h"

enum { ROWS_MAX = 3000, BATCH_MAX = 4096 };

static void every_pass_takes_every_row_once(void **state)
{
    (void)state;
    static const uint32_t counts[] = {1, 2, 3, 4, 5, 15, 16, 17, 63, 64, 65, 400, 1023, 2999};
    static uint8_t seen[ROWS_MAX];
    static uint32_t rows[BATCH_MAX];
    for (size_t c = 0; c < sizeof(counts) / sizeof(counts[0]); c++) {
        const struct order order = {
            .seed = 9, .shuffle = true, .row_count = counts[c], .batch_rows = 7, .epochs = 3};
        const uint64_t steps = order_step_count(&order);
        assert_int_equal((counts[c] + 6) / 7 * 3, steps);
        uint32_t taken = 0;
        for (uint64_t step = 0; step < steps; step++) {
            if (taken == 0)
                memset(seen, 0, sizeof(seen));
            const uint32_t count = order_step_rows(&order, step, rows);
            assert_int_equal(order_step_row_count(&order, step), count);
            for (uint32_t i = 0; i < count; i++) {
                assert_true(rows[i] < counts[c]);
                assert_int_equal(0, seen[rows[i]]++);
            }
            taken = taken + count == counts[c] ? 0 : taken + count;
        }
        assert_int_equal(0, taken);
    }
}

static void by_steps_passes_follow_each_other_without_a_gap(void **state)
{
    (void)state;
    static uint32_t rows[BATCH_MAX];
    static uint32_t count_of[ROWS_MAX];
    struct rand_stream random;
    rand_stream_init(&random, 1, 2);
    for (int round = 0; round < 50; round++) {
        const struct order order = {.seed = round,
                                    .shuffle = true,
                                    .row_count = 1 + rand_stream_below(&random, 200),
                                    .batch_rows = 1 + rand_stream_below(&random, 70),
                                    .steps = 1000};
        memset(count_of, 0, sizeof(count_of));
        /* row_count steps make exactly batch_rows whole passes. */
        for (uint64_t step = 0; step < order.row_count; step++) {
            assert_int_equal(order.batch_rows, order_step_rows(&order, step, rows));
            for (uint32_t i = 0; i < order.batch_rows; i++)
                count_of[rows[i]]++;
        }
        for (uint32_t row = 0; row < order.row_count; row++)
            assert_int_equal(order.batch_rows, count_of[row]);
    }
}

static void without_shuffle_rows_come_in_file_order_starting_over(void **state)
{
    (void)state;
    uint32_t rows[8];
    const struct order steps = {.row_count = 5, .batch_rows = 3, .steps = 10};
    const uint32_t wanted[3][3] = {{0, 1, 2}, {3, 4, 0}, {1, 2, 3}};
    for (uint64_t step = 0; step < 3; step++) {
        assert_int_equal(3, order_step_rows(&steps, step, rows));
        assert_memory_equal(wanted[step], rows, sizeof(wanted[step]));
    }
    const struct order epochs = {.row_count = 5, .batch_rows = 3, .epochs = 2};
    assert_int_equal(4, order_step_count(&epochs));
    assert_int_equal(2, order_step_rows(&epochs, 1, rows));
    assert_true(rows[0] == 3 && rows[1] == 4);
    assert_int_equal(3, order_step_rows(&epochs, 2, rows));
    assert_true(rows[0] == 0);
    const struct order wide = {.row_count = 2, .batch_rows = 5, .steps = 1};
    assert_int_equal(5, order_step_rows(&wide, 0, rows));
    assert_true(rows[0] == 0 && rows[1] == 1 && rows[2] == 0 && rows[4] == 0);
}

/* A job of epochs that is resumed beyond them has steps, too: its further passes are as those before. */
static void further_steps_of_epochs_end_their_passes_as_epochs_do(void **state)
{
    (void)state;
    static const uint32_t counts[] = {4, 4, 2, 4, 4, 2};
    const struct order order = {.row_count = 10, .batch_rows = 4, .steps = 6, .epochs = 1};
    struct err err = {0};
    uint32_t rows[4];
    assert_int_equal(0, order_check(&order, &err));
    assert_int_equal(6, order_step_count(&order));
    for (uint64_t step = 0; step < 6; step++) {
        assert_int_equal(counts[step], order_step_rows(&order, step, rows));
        assert_int_equal(step % 3 * 4, rows[0]);
    }
}

static void seeds_and_passes_differ_and_equal_ones_agree(void **state)
{
    (void)state;
    uint32_t a[64];
    uint32_t b[64];
    const struct order one = {.seed = 1, .shuffle = true, .row_count = 64, .batch_rows = 64, .epochs = 5};
    const struct order two = {.seed = 2, .shuffle = true, .row_count = 64, .batch_rows = 64, .epochs = 5};
    order_step_rows(&one, 0, a);
    order_step_rows(&one, 0, b);
    assert_memory_equal(a, b, sizeof(a));
    order_step_rows(&one, 1, b);
    assert_memory_not_equal(a, b, sizeof(a));
    order_step_rows(&two, 0, b);
    assert_memory_not_equal(a, b, sizeof(a));
}

static void far_steps_do_not_overflow(void **state)
{
    (void)state;
    static uint32_t rows[BATCH_MAX];
    const struct order order = {
        .seed = 1, .shuffle = true, .row_count = 4000000000u, .batch_rows = 4096, .steps = UINT64_MAX};
    assert_int_equal(4096, order_step_rows(&order, UINT64_MAX / 2, rows));
    for (uint32_t i = 0; i < 4096; i++)
        assert_true(rows[i] < 4000000000u);
}

static void an_order_that_cannot_be_served_is_refused(void **state)
{
    (void)state;
    struct err err = {0};
    const struct order bad[] = {
        {.batch_rows = 1, .steps = 1}, {.row_count = 1, .steps = 1}, {.row_count = 1, .batch_rows = 1}};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        assert_int_equal(-1, order_check(&bad[i], &err));
        assert_int_equal(ERR_INVALID, err.code);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_pass_takes_every_row_once),
        cmocka_unit_test(by_steps_passes_follow_each_other_without_a_gap),
        cmocka_unit_test(without_shuffle_rows_come_in_file_order_starting_over),
        cmocka_unit_test(further_steps_of_epochs_end_their_passes_as_epochs_do),
        cmocka_unit_test(seeds_and_passes_differ_and_equal_ones_agree),
        cmocka_unit_test(far_steps_do_not_overflow),
        cmocka_unit_test(an_order_that_cannot_be_served_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
