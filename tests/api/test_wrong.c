/* Tests the limit on wrong tokens: each address has a rate of its own, and one address's wrong tokens do not
 * count against another. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <string.h>

#include "api/http/wrong.h"
#include "common/rand.h"

#define SECOND UINT64_C(1000000000)

static const uint8_t one[16] = {[10] = 0xff, [11] = 0xff, 192, 168, 0, 1},
                     two[16] = {[10] = 0xff, [11] = 0xff, 192, 168, 0, 2};

static struct wrong *fresh(void)
{
    struct err err;
    struct wrong *wrong = wrong_create(&err);
    assert_non_null(wrong);
    return wrong;
}

static void a_burst_passes_and_then_one_each_interval(void **state)
{
    (void)state;
    struct wrong *wrong = fresh();
    bool first;
    uint64_t now = 1000 * SECOND;
    for (int i = 0; i < WRONG_BURST; i++)
        assert_int_equal(wrong_note(wrong, one, now, &first), 0);
    assert_int_equal(wrong_note(wrong, one, now, &first), WRONG_SECONDS_EACH);
    assert_true(first);
    assert_int_equal(wrong_note(wrong, one, now + SECOND / 2, &first), 2);
    assert_false(first); /* the refusals of one burst are announced once */
    assert_int_equal(wrong_note(wrong, one, now + SECOND, &first), 1);
    assert_int_equal(wrong_note(wrong, one, now + 2 * SECOND, &first), 0);
    assert_int_equal(wrong_note(wrong, one, now + 2 * SECOND, &first), 2);
    assert_true(first); /* the address was within its rate in between, so this refusal is announced */
    assert_int_equal(wrong_note(wrong, two, now + 2 * SECOND, &first), 0);
    now += 2 * SECOND + WRONG_BURST * WRONG_SECONDS_EACH * SECOND;
    for (int i = 0; i < WRONG_BURST; i++)
        assert_int_equal(wrong_note(wrong, one, now, &first), 0);
    assert_true(wrong_note(wrong, one, now, &first) > 0);
    wrong_destroy(wrong);
}

static void asking_on_while_told_to_wait_does_not_lengthen_the_wait(void **state)
{
    (void)state;
    struct wrong *wrong = fresh();
    bool first;
    unsigned passed = 0;
    for (uint64_t tenth = 0; tenth < 1000; tenth++) /* ten requests a second for 100 s */
        passed += wrong_note(wrong, one, SECOND + tenth * SECOND / 10, &first) == 0;
    assert_in_range(passed, WRONG_BURST + 100 / WRONG_SECONDS_EACH - 1,
                    WRONG_BURST + 100 / WRONG_SECONDS_EACH + 1);
    wrong_destroy(wrong);
}

static void a_network_of_ipv6_counts_as_one_address(void **state)
{
    (void)state;
    struct wrong *wrong = fresh();
    struct rand_stream rand;
    bool first;
    unsigned passed = 0;
    rand_stream_init(&rand, 7, 7);
    for (int i = 0; i < 100; i++) {
        uint8_t host[16] = {0x20, 0x01, 0x0d, 0xb8};
        uint64_t low = rand_stream_u64(&rand);
        memcpy(host + 8, &low, sizeof(low));
        passed += wrong_note(wrong, host, SECOND, &first) == 0;
    }
    assert_int_equal(passed, WRONG_BURST);
    wrong_destroy(wrong);
}

static void many_addresses_do_not_forget_who_is_over(void **state)
{
    (void)state;
    struct wrong *wrong = fresh();
    struct rand_stream rand;
    bool first;
    rand_stream_init(&rand, 8, 8);
    for (int i = 0; i <= WRONG_BURST; i++)
        wrong_note(wrong, one, SECOND, &first);
    for (int i = 0; i < 100000; i++) {
        uint8_t other[16];
        uint64_t parts[2] = {rand_stream_u64(&rand), rand_stream_u64(&rand)};
        memcpy(other, parts, sizeof(other));
        wrong_note(wrong, other, SECOND, &first);
    }
    assert_true(wrong_note(wrong, one, SECOND, &first) > 0);
    wrong_destroy(wrong);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_burst_passes_and_then_one_each_interval),
        cmocka_unit_test(asking_on_while_told_to_wait_does_not_lengthen_the_wait),
        cmocka_unit_test(a_network_of_ipv6_counts_as_one_address),
        cmocka_unit_test(many_addresses_do_not_forget_who_is_over),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
