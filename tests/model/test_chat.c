/* Chat templates: the model's own, templates given in the specification, and refusals (test_jinja.c: the
 * language). */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <string.h>

#include "model/chat.h"

static const char qwen2_template[] = "{% for message in messages %}{% if loop.first and messages[0]['role'] "
                                     "!= 'system' %}{{ '<|im_start|>system\\nYou are "
                                     "a helpful assistant.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + "
                                     "message['role'] + '\\n' + message['content'] + "
                                     "'<|im_end|>' + '\\n'}}{% endfor %}";
static const char chatml_template[] =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";
static const char llama3_template[] = "{% set loop_messages = messages %}{% for message in loop_messages "
                                      "%}{% set content = '<|start_header_id|>' + "
                                      "message['role'] + '<|end_header_id|>\\n\\n'+ message['content'] | "
                                      "trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set "
                                      "content = bos_token + content %}{% endif %}{{ content }}{% endfor %}";

static const struct chat_message conversation[] = {{.role = "user", .content = " a\n"},
                                                   {.role = "assistant", .content = "b "}};

static void expect_rendering(const json_t *choice, const char *jinja, bool add, const char *wanted)
{
    struct err err = {0};
    struct chat_template *chat = NULL;
    struct buf text = {.limit = 65536};
    const struct chat_given given = {.template = jinja, .bos = "<|begin_of_text|>", .bos_size = 17};
    if (chat_template_choose(choice, &given, &chat, &err) < 0) {
        fail_msg("%s", err.text);
    }
    assert_int_equal(0, chat_render(chat, conversation, 2, add, &text, NULL, NULL, &err));
    assert_string_equal(wanted, buf_str(&text));
    buf_fini(&text);
    chat_template_destroy(chat);
}

static void the_models_own_template_is_followed(void **state)
{
    (void)state;
    expect_rendering(
        NULL, qwen2_template, false,
        "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\n a\n<|im_end|>\n"
        "<|im_start|>assistant\nb <|im_end|>\n");
    expect_rendering(
        NULL, chatml_template, true,
        "<|im_start|>user\n a\n<|im_end|>\n<|im_start|>assistant\nb <|im_end|>\n<|im_start|>assistant\n");
    expect_rendering(
        NULL, llama3_template, true,
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|><|start_header_id|>assistant"
        "<|end_header_id|>\n\nb<|eot_id|>");
}

static void a_name_in_the_specification_chooses_a_family(void **state)
{
    (void)state;
    json_t *plain = json_string("chatml-plain");
    json_t *llama = json_string("llama3.1");
    expect_rendering(plain, qwen2_template, false,
                     "<|im_start|>user\n a\n<|im_end|>\n<|im_start|>assistant\nb <|im_end|>\n");
    expect_rendering(
        llama, NULL, false,
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nCutting Knowledge Date: December 2023"
        "\nToday Date: 26 Jul 2024\n\n<|eot_id|><|start_header_id|>user<|end_header_id|>\n\na<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\nb<|eot_id|>");
    json_decref(plain);
    json_decref(llama);
}

static void an_object_in_the_specification_is_a_template_of_its_own(void **state)
{
    (void)state;
    json_t *own = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:b}", "begin", "^", "system", "[{content}]",
                            "user", "U:{content}\n", "assistant", "A:{content}</s>\n", "generation",
                            "A:", "default_system", "hi", "trim", 1);
    expect_rendering(own, NULL, true, "^[hi]U:a\nA:b</s>\nA:");
    json_decref(own);
}

static void what_an_assistant_said_and_its_end_marker_are_learnt(void **state)
{
    (void)state;
    struct err err = {0};
    struct chat_template *chat = NULL;
    struct chat_span spans[16];
    size_t count = 0;
    struct buf text = {.limit = 65536};
    const struct chat_given given = {.template = chatml_template};
    assert_int_equal(0, chat_template_choose(NULL, &given, &chat, &err));
    assert_int_equal(0, chat_render(chat, conversation, 2, false, &text, spans, &count, &err));
    size_t at = 0;
    size_t learnt = 0;
    for (size_t i = 0; i < count; i++) {
        assert_int_equal(at, spans[i].begin);
        at = spans[i].end;
        if (spans[i].learn) {
            learnt++;
            assert_int_equal(strlen("b <|im_end|>"), spans[i].end - spans[i].begin);
            assert_memory_equal("b <|im_end|>", buf_str(&text) + spans[i].begin, 12);
        }
    }
    assert_int_equal(text.size, at);
    assert_int_equal(1, learnt);
    buf_fini(&text);
    chat_template_destroy(chat);
}

static void templates_beyond_us_are_refused_and_say_what_to_do(void **state)
{
    (void)state;
    static const char *const unknown[] = {NULL, "a\n{{ messages|groupby('role') }}", "\n{% include 'x' %}"};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        struct err err = {0};
        struct chat_template *chat = NULL;
        const struct chat_given given = {.template = unknown[i]};
        assert_int_equal(-1, chat_template_choose(NULL, &given, &chat, &err));
        assert_int_equal(ERR_UNSUPPORTED, err.code);
        assert_non_null(strstr(err.text, "data.chat_template"));
        assert_true(i == 0 || strstr(err.text, "line 2") != NULL);
        assert_null(chat);
    }
}

static void templates_given_wrongly_are_refused_by_path(void **state)
{
    (void)state;
    static const char *const wrong[] = {
        "\"alpaca\"",
        "{}",
        "{\"user\":\"{content}\"}",
        "{\"user\":\"x\",\"assistant\":\"{content}\"}",
        "{\"user\":\"{content}{content}\",\"assistant\":\"{content}\"}",
        "{\"user\":\"{content}\",\"assistant\":\"{content}\",\"default_system\":\"x\"}",
        "{\"user\":\"{content}\",\"assistant\":\"{content}\",\"tool\":\"x\"}"};
    for (size_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct err err = {0};
        struct chat_template *chat = NULL;
        json_t *choice = json_loads(wrong[i], JSON_DECODE_ANY, NULL);
        const struct chat_given given = {.template = NULL};
        assert_int_equal(-1, chat_template_choose(choice, &given, &chat, &err));
        assert_int_equal(ERR_INVALID, err.code);
        assert_non_null(strstr(err.text, "data.chat_template"));
        json_decref(choice);
    }
}

static void a_role_the_template_has_not_is_refused(void **state)
{
    (void)state;
    struct err err = {0};
    struct chat_template *chat = NULL;
    struct buf text = {.limit = 65536};
    const struct chat_message tool = {.role = "tool", .content = "x"};
    const struct chat_given given = {.template = NULL};
    json_t *llama3 = json_string("llama3");
    assert_int_equal(0, chat_template_choose(llama3, &given, &chat, &err));
    json_decref(llama3);
    assert_int_equal(-1, chat_render(chat, &tool, 1, false, &text, NULL, NULL, &err));
    assert_non_null(strstr(err.text, "messages[0].role"));
    assert_int_equal(0, text.size);
    assert_int_equal(-1, chat_render(chat, &tool, 0, false, &text, NULL, NULL, &err));
    buf_fini(&text);
    chat_template_destroy(chat);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_models_own_template_is_followed),
        cmocka_unit_test(a_name_in_the_specification_chooses_a_family),
        cmocka_unit_test(an_object_in_the_specification_is_a_template_of_its_own),
        cmocka_unit_test(what_an_assistant_said_and_its_end_marker_are_learnt),
        cmocka_unit_test(templates_beyond_us_are_refused_and_say_what_to_do),
        cmocka_unit_test(templates_given_wrongly_are_refused_by_path),
        cmocka_unit_test(a_role_the_template_has_not_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
