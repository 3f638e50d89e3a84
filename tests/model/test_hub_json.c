/* JSON as Python writes it: its extensions of JSON are read, and everything else that is not JSON
 * is refused. */
#include <float.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "model/files/hub_json.h"

static json_t *parse(const char *text)
{
    struct err err;
    json_t *value = hub_json_parse(text, strlen(text), 16, &err);
    if (!value)
        print_error("%s: %s\n", text, err.text);
    assert_non_null(value);
    return value;
}

static void what_python_writes_is_read(void **state)
{
    (void)state;
    json_t *value =
        parse("{\"model_max_length\": 1000000000000000019884624838656, \"a\": NaN, \"b\": [Infinity, "
              "-Infinity], \"c\": 9223372036854775807, \"d\": 9223372036854775808, "
              "\"e\": -9223372036854775808, \"f\": -9223372036854775809, \"g\": 12, \"h\": 1e-5, "
              "\"text\": \"NaN, \\\\\\\"Infinity 99999999999999999999\"}");
    json_t *b = json_object_get(value, "b");
    assert_true(json_real_value(json_object_get(value, "model_max_length")) == 1e30);
    assert_string_equal(json_string_value(json_object_get(value, "a")), "NaN");
    assert_true(json_real_value(json_array_get(b, 0)) == DBL_MAX);
    assert_true(json_real_value(json_array_get(b, 1)) == -DBL_MAX);
    assert_int_equal(json_integer_value(json_object_get(value, "c")), INT64_MAX);
    assert_true(json_real_value(json_object_get(value, "d")) == 9223372036854775808.0);
    assert_int_equal(json_integer_value(json_object_get(value, "e")), INT64_MIN);
    assert_true(json_is_real(json_object_get(value, "f")));
    assert_int_equal(json_integer_value(json_object_get(value, "g")), 12);
    assert_string_equal(json_string_value(json_object_get(value, "text")),
                        "NaN, \\\"Infinity 99999999999999999999");
    json_decref(value);
}

static void a_number_of_any_length_is_the_largest(void **state)
{
    char text[700] = "[-";
    (void)state;
    memset(text + 2, '7', 600);
    memcpy(text + 602, "]", 2);
    json_t *value = parse(text);
    assert_true(json_real_value(json_array_get(value, 0)) == -DBL_MAX);
    json_decref(value);
}

static void other_words_and_torn_texts_are_refused(void **state)
{
    static const char *const bad[] = {"nan",   "[NaNs]", "[+Infinity]", "inf",  "\"abc",  "\"abc\\",
                                      "[1 2]", "",       "-",           "[1.]", "[0x10]", "[--Infinity]"};
    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err;
        assert_null(hub_json_parse(bad[i], strlen(bad[i]), 16, &err));
        assert_int_equal(err.code, ERR_INVALID);
    }
}

static void settings_may_hold_texts_that_are_no_unicode(void **state)
{
    static const char text[] = "{\"a\": 1, \"\\u0000\": \"\\ud800\", \"b\": \"\\ud83d\\ude00 \\\\u0000 "
                               "\\udc00\\ud800\\ud83d\", \"a\": 2}";
    struct err err;
    (void)state;
    assert_null(hub_json_parse(text, strlen(text), 16, &err));
    json_t *value = hub_json_parse_settings(text, strlen(text), 16, &err);
    assert_non_null(value);
    assert_int_equal(json_integer_value(json_object_get(value, "a")), 2);
    assert_string_equal(json_string_value(json_object_get(value, "\xef\xbf\xbd")), "\xef\xbf\xbd");
    assert_string_equal(json_string_value(json_object_get(value, "b")),
                        "\xf0\x9f\x98\x80 \\u0000 \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd");
    json_decref(value);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_python_writes_is_read),
        cmocka_unit_test(a_number_of_any_length_is_the_largest),
        cmocka_unit_test(other_words_and_torn_texts_are_refused),
        cmocka_unit_test(settings_may_hold_texts_that_are_no_unicode),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
