/* Renders chat templates in Jinja as transformers does (tests/data/chat, made by tools/golden_chat.py): the
 * templates of well-known models, and small ones for each part of the language. Also tests which parts of a
 * conversation are learnt, refusals and bounds. MOTLEY_CHAT_CASES=FILE uses other cases made by the same
 * tool. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/file.h"
#include "common/json.h"
#include "model/templates/chat.h"
#include "model/templates/jinja.h"

static json_t *cases;

static int cases_open(void **state)
{
    json_error_t why;
    (void)state;
    const char *given = getenv("MOTLEY_CHAT_CASES");
    cases = json_load_file(given ? given : MOTLEY_TEST_DATA "/chat/cases.json", JSON_ALLOW_NUL, &why);
    if (!cases)
        fprintf(stderr, "%s\n", why.text);
    return cases ? 0 : -1;
}

static int cases_close(void **state)
{
    (void)state;
    json_decref(cases);
    return 0;
}

static struct chat_template *model_open(const char *model)
{
    char path[512];
    struct err err = {0};
    struct buf text = {.limit = 1 << 20};
    struct chat_template *chat = NULL;
    snprintf(path, sizeof(path), "%s/chat/%s.jinja", MOTLEY_TEST_DATA, model);
    assert_int_equal(0, file_read_all(path, 1 << 20, &text, &err));
    const struct chat_given given = {
        .template = buf_str(&text), .bos = "<s>", .bos_size = 3, .eos = "</s>", .eos_size = 4};
    if (chat_template_choose(NULL, &given, &chat, &err) < 0)
        fail_msg("%s: %s", model, err.text);
    buf_fini(&text);
    return chat;
}

static void expect_case(const char *model, const struct chat_template *chat, const json_t *item)
{
    struct chat_spans spans = {0};
    struct err err = {0};
    struct buf text = {.limit = 1 << 20};
    const json_int_t which = json_integer_value(json_object_get(item, "conversation"));
    const json_t *wanted = json_object_get(item, "text");
    const json_t *messages = json_array_get(json_object_get(cases, "conversations"), (size_t)which);
    const int status =
        chat_render(chat, messages, NULL, json_is_true(json_object_get(item, "add")), &text, &spans, &err);
    if (!wanted) {
        chat_spans_fini(&spans);
        buf_fini(&text);
        const char *why = json_string_value(json_object_get(item, "error"));
        if (status == 0 || err.code != ERR_INVALID || !strstr(err.text, why))
            fail_msg("%s, conversation %d: \"%s\", not \"%s\"", model, (int)which, err.text, why);
        return;
    }
    if (status < 0 || strcmp(json_string_value(wanted), buf_str(&text)) != 0) {
        fail_msg("%s, conversation %d: \"%s\" (%s), not \"%s\"", model, (int)which, buf_str(&text), err.text,
                 json_string_value(wanted));
    }
    size_t at = 0;
    for (size_t i = 0; i < spans.count; at = spans.items[i++].end)
        assert_true(spans.items[i].begin == at && spans.items[i].end > at);
    assert_int_equal(text.size, at);
    chat_spans_fini(&spans);
    buf_fini(&text);
}

static void every_models_template_renders_as_transformers_does(void **state)
{
    (void)state;
    const char *model;
    json_t *list;
    size_t i;
    json_t *item;
    json_object_foreach (json_object_get(cases, "models"), model, list) {
        struct chat_template *chat = model_open(model);
        json_array_foreach (list, i, item) {
            expect_case(model, chat, item);
        }
        chat_template_destroy(chat);
    }
}

/* Renders one template over the conversation that the small templates were recorded with. */
static int snippet_render(const char *template, struct buf *text, struct err *err)
{
    struct jinja *jinja = NULL;
    if (jinja_parse(template, strlen(template), &jinja, err) < 0)
        return -1;
    json_t *names =
        json_pack("{s:O, s:b, s:s, s:s, s:n, s:n}", "messages",
                  json_array_get(json_object_get(cases, "conversations"), 3), "add_generation_prompt", 0,
                  "bos_token", "<s>", "eos_token", "</s>", "tools", "documents");
    const int status = jinja_render(jinja, names, 1721952000, text, NULL, err);
    json_decref(names);
    jinja_destroy(jinja);
    return status;
}

static void every_part_of_the_language_does_as_jinja_does(void **state)
{
    (void)state;
    size_t i;
    size_t refused = 0;
    json_t *item;
    json_array_foreach (json_object_get(cases, "snippets"), i, item) {
        struct err err = {0};
        struct buf text = {.limit = 1 << 20};
        const char *template = json_string_value(json_object_get(item, "template"));
        const char *wanted = json_string_value(json_object_get(item, "text"));
        const int status = snippet_render(template, &text, &err);
        if (status < 0 && getenv("MOTLEY_CHAT_CASES")) { /* random templates may use what is refused, such as
                                                          * 'a' * 2 or '%s' % 1 */
            refused++;
            continue;
        }
        if (!wanted ? status == 0 || !strstr(err.text, "line 1")
                    : status < 0 || strcmp(wanted, buf_str(&text)) != 0) {
            fail_msg("%s: \"%s\" (%s), not \"%s\"", template, buf_str(&text), err.text,
                     wanted ? wanted : json_string_value(json_object_get(item, "error")));
        }
        buf_fini(&text);
    }
    if (refused > 0)
        print_message("%zu of %zu refused\n", refused, json_array_size(json_object_get(cases, "snippets")));
}

/* Each of 1,000 random templates (tools/golden_jinja.py) gives jinja2's text or is refused; none gives
 * another text. */
static void random_expressions_are_jinjas_or_refused(void **state)
{
    (void)state;
    struct err err = {0};
    struct buf bytes = {.limit = 1 << 20};
    size_t i, refused = 0;
    json_t *item;
    assert_int_equal(0, file_read_all(MOTLEY_TEST_DATA "/chat/expressions.json", bytes.limit, &bytes, &err));
    json_t *golden = json_parse_limited(buf_str(&bytes), bytes.size, 16, &err);
    assert_non_null(golden);
    json_array_foreach (json_object_get(golden, "cases"), i, item) {
        const char *template = json_string_value(json_array_get(item, 0));
        const json_t *want = json_array_get(item, 1);
        struct buf text = {.limit = 1 << 20};
        struct jinja *jinja = NULL;
        int status = jinja_parse(template, strlen(template), &jinja, &err);
        if (status == 0)
            status = jinja_render(jinja, json_object_get(golden, "variables"), 0, &text, NULL, &err);
        if (status == 0 && (!json_is_string(want) || strcmp(buf_str(&text), json_string_value(want)) != 0))
            fail_msg("%s: \"%s\" and not \"%s\"", template, buf_str(&text), json_string_value(want));
        refused += status < 0 && json_is_string(want);
        jinja_destroy(jinja);
        buf_fini(&text);
    }
    print_message("%zu of %zu that jinja2 renders are refused\n", refused, i);
    assert_true(i == 1000 && refused <= 11);
    json_decref(golden);
    buf_fini(&bytes);
}

static void expect_published(const char *name, const struct jinja *jinja, const json_t *requests,
                             const json_t *row, size_t *rendered)
{
    size_t i;
    json_t *request;
    bool first = true;
    json_array_foreach (requests, i, request) {
        char hex[DIGEST_HEX_SIZE];
        struct err err = {0};
        struct buf text = {.limit = 1 << 20};
        const json_t *hash = json_array_get(json_object_get(row, "hashes"), i);
        const int status = jinja_render(jinja, request, 1721952000, &text, NULL, &err);
        if (json_is_string(hash)) {
            const char *begins = json_string_value(json_object_get(row, "begins"));
            if (status < 0 || (first && strncmp(begins, buf_str(&text), strlen(begins)) != 0))
                fail_msg("%s, request %zu: %s; \"%s\"", name, i, err.text, buf_str(&text));
            assert_int_equal(0, digest_sha256_hex(text.data, text.size, hex, &err));
            if (strncmp(hex, json_string_value(hash), 16) != 0)
                fail_msg("%s, request %zu: \"%s\"", name, i, buf_str(&text));
            first = false;
            ++*rendered;
        } else if (status == 0) {
            fail_msg("%s, request %zu: rendered, and refused by jinja2", name, i);
        }
        buf_fini(&text);
    }
}

/* Templates as published with models give jinja2's text (tools/golden_published.py), or both refuse them. */
static void published_templates_render_as_jinja2_renders_them(void **state)
{
    (void)state;
    struct err err = {0};
    struct buf bytes = {.limit = 1 << 20};
    const char *name;
    json_t *row;
    size_t templates = 0, rendered = 0;
    assert_int_equal(0, file_read_all(MOTLEY_TEST_DATA "/chat/published.json", bytes.limit, &bytes, &err));
    json_t *golden = json_parse_limited(buf_str(&bytes), bytes.size, 32, &err);
    assert_non_null(golden);
    json_object_foreach (json_object_get(golden, "templates"), name, row) {
        char path[512];
        struct buf source = {.limit = 1 << 20};
        struct jinja *jinja = NULL;
        snprintf(path, sizeof(path), "%s/chat/published/%s.jinja", MOTLEY_TEST_DATA, name);
        assert_int_equal(0, file_read_all(path, source.limit, &source, &err));
        if (jinja_parse(buf_str(&source), source.size, &jinja, &err) < 0)
            fail_msg("%s: %s", name, err.text);
        expect_published(name, jinja, json_object_get(golden, "requests"), row, &rendered);
        jinja_destroy(jinja);
        buf_fini(&source);
        templates++;
    }
    assert_true(templates >= 60 && rendered >= 1200);
    json_decref(golden);
    buf_fini(&bytes);
}

static void what_is_beyond_the_subset_is_refused_with_its_line_and_name(void **state)
{
    (void)state;
    size_t i;
    json_t *item;
    json_array_foreach (json_object_get(cases, "refused"), i, item) {
        char line[32];
        struct err err = {0};
        struct jinja *jinja = NULL;
        const char *template = json_string_value(json_array_get(item, 0));
        snprintf(line, sizeof(line), "line %d:", (int)json_integer_value(json_array_get(item, 1)));
        struct buf text = {.limit = 1 << 20};
        json_t *variables = json_pack("{s:[]}", "messages");
        int status = jinja_parse(template, strlen(template), &jinja, &err);
        if (status == 0)
            status = jinja_render(jinja, variables, 0, &text, NULL, &err);
        jinja_destroy(jinja);
        json_decref(variables);
        buf_fini(&text);
        if (status == 0 || !strstr(err.text, line) ||
            !strstr(err.text, json_string_value(json_array_get(item, 2)))) {
            fail_msg("%s: \"%s\"", template, err.text);
        }
    }
}

static void what_a_model_would_have_written_is_learnt(void **state)
{
    (void)state;
    static const struct {
        const char *model, *first, *second;
    } rows[] = {{"chatml", "one<|im_end|>", "two<|im_end|>"},
                {"qwen2.5", "one<|im_end|>", "two<|im_end|>"},
                {"qwen3", "one<|im_end|>", "<think>\n\n</think>\n\ntwo<|im_end|>"},
                {"llama2", " one </s>", " two </s>"},
                {"llama3.1", "one<|eot_id|>", "two<|eot_id|>"},
                {"mistral-v0.3", " one</s>", " two</s>"},
                {"mixtral", "one</s>", "two</s>"},
                {"gemma2", "one<end_of_turn>", "two<end_of_turn>"},
                {"gemma3", "one<end_of_turn>", "two<end_of_turn>"},
                {"phi3", "one<|end|>", "two<|end|>"},
                {"smollm2", "one<|im_end|>", "two<|im_end|>"},
                {"smollm3", "<|im_start|>assistant\none<|im_end|>\n",
                 "<|im_start|>assistant\ntwo<|im_end|>\n"} /* this template's {% generation %} block contains
                                                              the header and the line end */
                ,
                {"zephyr", "one</s>", "two</s>"},
                {"tinyllama", "one</s>", "two</s>"},
                {"olmo", "one</s>", "two</s>"}};
    json_t *turns = json_pack("[{s:s,s:s},{s:s,s:s},{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "q",
                              "role", "assistant", "content", "one", "role", "user", "content",
                              "and <|assistant|>?", "role", "assistant", "content", "two");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct err err = {0};
        struct buf text = {.limit = 1 << 20};
        struct chat_spans spans = {0};
        size_t found = 0;
        struct chat_template *chat = model_open(rows[i].model);
        assert_int_equal(0, chat_render(chat, turns, NULL, false, &text, &spans, &err));
        for (size_t s = 0; s < spans.count; s++) {
            const char *wanted = found == 0 ? rows[i].first : rows[i].second;
            const size_t size = spans.items[s].end - spans.items[s].begin;
            if (spans.items[s].part != CHAT_LEARNT)
                continue;
            if (found == 2 || strlen(wanted) != size ||
                memcmp(wanted, buf_str(&text) + spans.items[s].begin, size) != 0) {
                fail_msg("%s: \"%.*s\" is learnt, not \"%s\"", rows[i].model, (int)size,
                         buf_str(&text) + spans.items[s].begin, wanted);
            }
            found++;
        }
        assert_int_equal(2, found);
        buf_fini(&text);
        chat_spans_fini(&spans);
        chat_template_destroy(chat);
    }
    json_decref(turns);
}

static void a_template_that_hides_its_turns_cannot_say_what_to_learn(void **state)
{
    (void)state;
    json_t *turns = json_pack("[{s:s,s:s},{s:s,s:s}]", "role", "user", "content", "q", "role", "assistant",
                              "content", "a");
    const struct chat_given given = {.template = "{{ messages[0].content }}={{ messages[1].content }}"};
    struct chat_template *chat = NULL;
    struct chat_spans spans = {0};
    struct err err = {0};
    struct buf text = {.limit = 1024};
    assert_int_equal(0, chat_template_choose(NULL, &given, &chat, &err));
    assert_int_equal(-1, chat_render(chat, turns, NULL, false, &text, &spans, &err));
    assert_int_equal(ERR_UNSUPPORTED, err.code);
    assert_int_equal(0, text.size);
    assert_int_equal(0, chat_render(chat, turns, NULL, false, &text, NULL, &err));
    assert_string_equal("q=a", buf_str(&text));
    chat_spans_fini(&spans);
    json_decref(turns);
    buf_fini(&text);
    chat_template_destroy(chat);
}

static void nothing_runs_for_ever_or_grows_without_end(void **state)
{
    (void)state;
    static const char *const greedy[] = {
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
        "{% set ns = namespace(x=[]) %}{% for i in range(99) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ "
        "ns.x }}",
        "{% macro m(n) %}{{ m(n + 1) }}{% endmacro %}{{ m(0) }}",
        "{{ range(999999999999) }}",
        "{% for a in range(99999) %}{{ range(99999)|list }}{% endfor %}",
        "{% set l = range(90000)|list %}{{ l|select('in', l)|list|length }}",
        "{% for i in range(99999) %}{{ 'x' * 1 if false else messages }}{% endfor %}",
        "{{ 9223372036854775808 }}",
        "{% set n = 999999999999 %}{{ n * n }}"};
    for (size_t i = 0; i < sizeof(greedy) / sizeof(greedy[0]); i++) {
        struct err err = {0};
        struct buf text = {.limit = 1 << 20};
        if (snippet_render(greedy[i], &text, &err) == 0 || err.code != ERR_TOO_BIG)
            fail_msg("%s: %s", greedy[i], err.text);
        buf_fini(&text);
    }
    static const char *const parts[] = {"((((", "not not ", "1+1+1+", "a.a.a.",       "- - - ",
                                        "a|e|", "a[0][0].", "a()().", "0 and 0 and ", "0 if 0 if "};
    enum { DEEP_BYTES = 400000 };
    char *deep = malloc(DEEP_BYTES + 100);
    assert_non_null(deep);
    for (size_t i = 0; i < sizeof(parts) / sizeof(parts[0]); i++) {
        struct err err = {0};
        struct buf text = {.limit = 1 << 20};
        const size_t size = strlen(parts[i]);
        size_t at = (size_t)snprintf(deep, DEEP_BYTES, "{%% if false %%}{{ ");
        for (; at + size < DEEP_BYTES; at += size)
            memcpy(deep + at, parts[i], size);
        snprintf(deep + at, 100, "a }}{%% endif %%}");
        assert_int_equal(-1, snippet_render(deep, &text, &err));
        if (err.code != ERR_TOO_BIG)
            fail_msg("%s: %s", parts[i], err.text);
        buf_fini(&text);
    }
    free(deep);
}

static void values_that_are_nested_deep_or_at_the_end_of_the_numbers_are_refused(void **state)
{
    (void)state;
    static const struct {
        const char *template, *why;
    } rows[] = {
        {"{% set ns = namespace(t=1) %}{% for i in range(15000) %}{% set ns.t = "
         "((((((((((((ns.t,),),),),),),),),),),),) %}{% endfor %}{% set d = {ns.t: 1} %}done",
         "cannot be a key"},
        {"{% set ns = namespace(a={}, b={}) %}{% for i in range(30000) %}{% set ns.a = {ns.a.items: 1} %}"
         "{% set ns.b = {ns.b.items: 1} %}{% endfor %}{{ 1 // (ns.a == ns.b) }}",
         "division by zero"},
        {"{{ range(9223372036854775800, 9223372036854775807, 5)[0:2]|list }}", "64 bits"},
        {"{{ 'abc'|truncate(9223372036854775807, leeway=9223372036854775807) ~ 1 // 0 }}",
         "division by zero"},
        {"{{ 'aa'.replace('a', 'b', -9223372036854775807 - 1) ~ 1 // 0 }}", "division by zero"},
        {"{{ 'a a'.split(' ', -9223372036854775807 - 1) ~ 1 // 0 }}", "division by zero"},
        {"{% if range(-9000000000000000000, 9000000000000000001, 9000000000000000000)|list|last != "
         "9000000000000000000 %}{{ [][0].a }}{% endif %}{{ 1 // 0 }}",
         "division by zero"}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct err err = {0};
        struct buf text = {.limit = 1 << 20};
        if (snippet_render(rows[i].template, &text, &err) == 0 || !strstr(err.text, rows[i].why))
            fail_msg("%s: %s", rows[i].template, err.text);
        buf_fini(&text);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_models_template_renders_as_transformers_does),
        cmocka_unit_test(every_part_of_the_language_does_as_jinja_does),
        cmocka_unit_test(random_expressions_are_jinjas_or_refused),
        cmocka_unit_test(published_templates_render_as_jinja2_renders_them),
        cmocka_unit_test(what_is_beyond_the_subset_is_refused_with_its_line_and_name),
        cmocka_unit_test(what_a_model_would_have_written_is_learnt),
        cmocka_unit_test(a_template_that_hides_its_turns_cannot_say_what_to_learn),
        cmocka_unit_test(nothing_runs_for_ever_or_grows_without_end),
        cmocka_unit_test(values_that_are_nested_deep_or_at_the_end_of_the_numbers_are_refused),
    };
    return cmocka_run_group_tests(tests, cases_open, cases_close);
}
