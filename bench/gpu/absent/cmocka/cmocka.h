/* Replaces cmocka on a machine without it. It has the assertions that the checks of GPUs use, and runs a
 * group of tests one after the other in this process, which ends at the first failure. */
#pragma once

#include <setjmp.h> /* files that include cmocka.h rely on its including setjmp.h */
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define fail_msg(...)                                                                                        \
    (printf("%s:%d: ", __FILE__, __LINE__), printf(__VA_ARGS__), printf("\n[  FAILED  ]\n"), exit(1))
#define skip() return /* ends the test function */
#define print_message printf
#define assert_true(condition) ((condition) ? (void)0 : (void)fail_msg("not true: %s", #condition))
#define assert_false(condition) assert_true(!(condition))
#define assert_non_null(pointer) assert_true((pointer) != NULL)
#define assert_null(pointer) assert_true(!(pointer))
#define assert_int_equal(a, b) assert_true((long long)(a) == (long long)(b))
#define assert_in_range(value, least, most) assert_true((value) >= (least) && (value) <= (most))
#define assert_string_equal(a, b) assert_true(strcmp(a, b) == 0)
#define assert_memory_equal(a, b, bytes) assert_true(memcmp(a, b, bytes) == 0)

struct CMUnitTest {
    const char *name;
    void (*run)(void **state);
};
#define cmocka_unit_test(function) {#function, function}
#define cmocka_run_group_tests(tests, setup, teardown)                                                       \
    _cmocka_run_group_tests(#tests, tests, sizeof(tests) / sizeof(*(tests)), setup, teardown)

static inline int _cmocka_run_group_tests(const char *name, const struct CMUnitTest *tests, size_t count,
                                          void *setup, void *teardown)
{
    (void)name, (void)setup, (void)teardown; /* our groups have no setup and teardown */
    for (size_t i = 0; i < count; i++) {
        void *state = NULL;
        printf("[ RUN      ] %s\n", tests[i].name);
        fflush(stdout);
        tests[i].run(&state);
        printf("[       OK ] %s\n", tests[i].name);
    }
    return 0;
}
