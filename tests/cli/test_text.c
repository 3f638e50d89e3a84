/* Tests how the client prints texts of untrusted sources, and the curve of `motley watch`. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "cli/curve.h"

static void texts_of_others_are_clean(void **state)
{
    static const struct {
        const char *text, *clean;
        unsigned columns;
    } cases[] = {
        {"plain", "plain", 5},
        {"\033[31mred\033[0m", "?[31mred?[0m", 12},
        {"\033]0;title\a", "?]0;title?", 10},
        {"\xc2\x9b"
         "31m",
         "?31m", 4}, /* a C1 control sequence introducer */
        {"a\nb\tc\r\x7f", "a?b?c??", 7},
        {"\xe2\x80\xae"
         "evil\xe2\x80\x8b",
         "?evil?", 6}, /* a right-to-left override; a zero-width space */
        {"\xff\xfe.", "??.", 3},
        {"\xe6\x97\xa5\xe6\x9c\xac", "\xe6\x97\xa5\xe6\x9c\xac", 4}, /* two wide characters */
        {"e\xcc\x81", "e\xcc\x81", 1},                               /* a combining accent */
    };
    char out[64];
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(show_clean(cases[i].text, 64, out, sizeof(out)), cases[i].columns);
        assert_string_equal(out, cases[i].clean);
    }
}

static void members_come_clean(void **state)
{
    (void)state;
    json_t *object = json_pack("{s:s, s:s, s:s}", "device", "left/\033]0;x\acpu0\n\342\200\256b\xc3\xa9",
                               "plain", "two\nlines\t", "end", "\033");
    assert_non_null(object);
    assert_string_equal(show_str(object, "device"), "left/?]0;x?cpu0\n?b\xc3\xa9");
    assert_string_equal(show_str(object, "plain"), "two\nlines\t");
    assert_string_equal(show_str(object, "end"), "?");
    assert_string_equal(show_str(object, "none"), "");
    json_decref(object);
}

static void texts_are_cut_between_characters(void **state)
{
    char out[64];
    (void)state;
    assert_int_equal(show_clean("\xe6\x97\xa5\xe6\x9c\xac", 3, out, sizeof(out)), 2);
    assert_string_equal(out, "\xe6\x97\xa5");
    assert_int_equal(show_clean("\xe6\x97\xa5\xe6\x9c\xac", 64, out, 6), 2);
    assert_string_equal(out, "\xe6\x97\xa5");
    assert_int_equal(show_clean("abc", 64, out, 1), 0);
    assert_string_equal(out, "");
}

/* Draws a curve, checks the number of its lines and returns them as one text. */
static char *drawn(const struct step_curve *curve, unsigned columns, unsigned rows, unsigned lines)
{
    char *text = NULL;
    size_t size = 0;
    FILE *out = open_memstream(&text, &size);
    assert_non_null(out);
    assert_int_equal(curve_draw(curve, columns, rows, out), lines);
    fclose(out);
    return text;
}

/* Whether the line that begins at `line` has a braille character with a dot. */
static bool has_dots(const char *line)
{
    for (; *line && *line != '\n'; line++)
        if (line[0] == '\xe2' && (unsigned char)line[1] >= 0xa0 && (unsigned char)line[1] <= 0xa3)
            return true;
    return false;
}

static void a_spike_of_one_step_is_in_the_curve(void **state)
{
    struct step_curve curve = {0};
    (void)state;
    for (int64_t step = 0; step < 100000; step++)
        curve_add(&curve, step, step == 54321 ? 1000 : sin((double)step / 5000));
    char *text = drawn(&curve, 80, 10, 10);
    assert_memory_equal(text, "     1000 ", 10);
    assert_true(has_dots(text));
    assert_non_null(strstr(text, "step 1 to 100000\n"));
    free(text);
}

static void steps_that_are_done_again_replace_those_before(void **state)
{
    struct step_curve curve = {0};
    (void)state;
    for (int64_t step = 0; step < 100; step++)
        curve_add(&curve, step, step < 50 ? 5 : 9);
    for (int64_t step = 50; step < 60; step++)
        curve_add(&curve, step, 4);
    char *text = drawn(&curve, 60, 6, 6);
    assert_memory_equal(text, "        5 ", 10);
    assert_non_null(strstr(text, "step 1 to 60\n"));
    free(text);
}

static void too_little_room_or_too_few_steps_draw_nothing(void **state)
{
    struct step_curve curve = {0};
    (void)state;
    free(drawn(&curve, 80, 10, 0));
    curve_add(&curve, 0, 1);
    free(drawn(&curve, 80, 10, 0));
    curve_add(&curve, 1, NAN);
    free(drawn(&curve, 80, 10, 10));
    free(drawn(&curve, 10, 10, 0));
    free(drawn(&curve, 80, 2, 0));
}

int main(void)
{
    assert_non_null(setlocale(LC_CTYPE, "C.UTF-8"));
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_of_others_are_clean),
        cmocka_unit_test(members_come_clean),
        cmocka_unit_test(texts_are_cut_between_characters),
        cmocka_unit_test(a_spike_of_one_step_is_in_the_curve),
        cmocka_unit_test(steps_that_are_done_again_replace_those_before),
        cmocka_unit_test(too_little_room_or_too_few_steps_draw_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
