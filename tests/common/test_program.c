/* Tests that a program's JSON document is read, or that any other outcome is an error, in time. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <stdint.h>
#include <string.h>

#include "common/clock.h"
#include "common/program_json.h"

static json_t *shell(const char *script, struct err *err)
{
    const char *argv[] = {"/bin/sh", "-c", script, NULL};
    return program_json(argv, 1, err);
}

static void what_a_program_prints_is_read(void **state)
{
    (void)state;
    struct err err = {0};
    json_t *answer = shell("printf '{\"a\": [1'; printf ', 2]}'", &err);
    assert_int_equal(json_integer_value(json_array_get(json_object_get(answer, "a"), 1)), 2);
    json_decref(answer);
}

static void what_it_does_instead_is_an_error_in_time(void **state)
{
    (void)state;
    static const struct {
        const char *script;
        enum err_code code;
        const char *words;
    } bad[] = {
        {"exit 3", ERR_PEER, "status 3"},
        {"kill -SEGV $$", ERR_PEER, "signal 11"},
        {"echo '{'; exit 3", ERR_PEER, "status 3"},
        {"echo '{'", ERR_INVALID, "what /bin/sh prints"},
        {"true", ERR_INVALID, "what /bin/sh prints"},
        {"yes", ERR_TOO_BIG, "the answer of /bin/sh"},
        {"echo '{}'; exec sleep 30", ERR_TIMEOUT, "has not answered in time"},
        {"echo '{}'; exec >&-; exec sleep 30", ERR_TIMEOUT, "has not ended in time"},
        {"trap '' TERM; echo '{}'; while :; do sleep 30; done", ERR_TIMEOUT, "has not answered in time"},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err = {0};
        uint64_t begin_ns = clock_mono_ns();
        assert_null(shell(bad[i].script, &err));
        if (err.code != bad[i].code || !strstr(err.text, bad[i].words))
            fail_msg("%s: %s: %s", bad[i].script, err_code_name(err.code), err.text);
        assert_true(clock_mono_ns() - begin_ns < 10000000000u);
    }
    struct err err = {0};
    const char *argv[] = {"/nonexistent/program", NULL};
    assert_null(program_json(argv, 1, &err));
    assert_int_equal(err.code, ERR_NOT_FOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_a_program_prints_is_read),
        cmocka_unit_test(what_it_does_instead_is_an_error_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
