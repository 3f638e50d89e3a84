/* Patterns are accepted exactly where tokenizers 0.23.3 accepts them, as recorded from it. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "model/text/pattern.h"

static void an_anchor_cannot_be_repeated(void **state)
{
    (void)state;
    static const char *const refused[] = {
        "^*",         "$+",      "\\A?",       "\\Z{2}",       "\\b*+",       "(?=a)*",
        "(?<!a)+?",   "(?:^)*",  "(?:(?:$))?", "(?:a|^)*",     "(?:^|a){,2}", "(?x)^ *",
        "(?x)^#c\n*", "^(?#c)*", "^**",        "(?<!\\Z{2}a)", "(?:(?=a))?",  "(?!a){1,2}"};
    static const char *const taken[] = {
        "(^)*",        "(?i:^)*", "(?>^)*", "(?:^$)*",     "(?:^a|b)*", "(?:(?i)^)*", "(?:a(?i)|^)*", "\\^*",
        "[$^]*",       "^{a",     "^{,}",   "(?<n>$)+",    "\\x{61}*",  "^ *",        "a|$",          "(?:)*",
        "(?:^|(?i)a)", "[]$]+",   "[^]$]*", "(?:(?x) ^)*", "(?=a)b*",   "a{2}{3}"};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct err err = {0};
        struct pattern *pattern = pattern_regex(refused[i], strlen(refused[i]), &err);
        if (pattern || err.code != ERR_INVALID || !strstr(err.text, refused[i]))
            fail_msg("\"%s\" is taken, or refused without its text: %s", refused[i], err.text);
    }
    for (size_t i = 0; i < sizeof(taken) / sizeof(taken[0]); i++) {
        struct err err = {0};
        struct pattern *pattern = pattern_regex(taken[i], strlen(taken[i]), &err);
        if (!pattern)
            fail_msg("\"%s\" is refused: %s", taken[i], err.text);
        pattern_destroy(pattern);
    }
}

/* Unsupported constructs are refused by name, and the scan of the pattern ends. */
static void a_class_that_depends_on_case_is_refused_without_regard_to_case(void **state)
{
    (void)state;
    static const char *const refused[] = {"(?i:[^[:upper:]])", "(?i)[[:lower:]a]", "(?i:[\\p{Lu}])"};
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct err err = {0};
        assert_null(pattern_regex(refused[i], strlen(refused[i]), &err));
        assert_int_equal(ERR_UNSUPPORTED, err.code);
        assert_non_null(strstr(err.text, "without regard to case"));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_anchor_cannot_be_repeated),
        cmocka_unit_test(a_class_that_depends_on_case_is_refused_without_regard_to_case)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
