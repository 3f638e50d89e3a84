/* Tests chat templates: the model's own, those given in the specification, and refusals. test_jinja.c tests
 * the language. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <string.h>

#include "model/templates/chat.h"

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

static json_t *messages_of(const char *text)
{
    json_t *messages = json_loads(text, JSON_DECODE_ANY, NULL);
    assert_non_null(messages);
    return messages;
}

static int render(const struct chat_template *chat, const char *messages, bool add, struct buf *text,
                  struct chat_spans *spans, struct err *err)
{
    json_t *list = messages_of(messages);
    const int status = chat_render(chat, list, NULL, add, text, spans, err);
    json_decref(list);
    return status;
}

static const char conversation[] =
    "[{\"role\":\"user\",\"content\":\" a\\n\"},{\"role\":\"assistant\",\"content\":\"b \"}]";

static void expect_rendering(const json_t *choice, const char *jinja, bool add, const char *wanted)
{
    struct err err = {0};
    struct chat_template *chat = NULL;
    struct buf text = {.limit = 65536};
    const struct chat_given given = {.template = jinja, .bos = "<|begin_of_text|>", .bos_size = 17};
    if (chat_template_choose(choice, &given, &chat, &err) < 0)
        fail_msg("%s", err.text);
    assert_int_equal(0, render(chat, conversation, add, &text, NULL, &err));
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
    struct chat_spans spans = {0};
    struct buf text = {.limit = 65536};
    const struct chat_given given = {.template = chatml_template};
    assert_int_equal(0, chat_template_choose(NULL, &given, &chat, &err));
    assert_int_equal(0, render(chat, conversation, false, &text, &spans, &err));
    size_t at = 0;
    size_t learnt = 0;
    for (size_t i = 0; i < spans.count; i++) {
        const struct chat_span *span = &spans.items[i];
        assert_int_equal(at, span->begin);
        at = span->end;
        if (span->part == CHAT_LEARNT) {
            learnt++;
            assert_int_equal(strlen("b <|im_end|>"), span->end - span->begin);
            assert_memory_equal("b <|im_end|>", buf_str(&text) + span->begin, 12);
        }
    }
    assert_int_equal(text.size, at);
    assert_int_equal(1, learnt);
    chat_spans_fini(&spans);
    buf_fini(&text);
    chat_template_destroy(chat);
}

/* Checks which parts of a conversation are learnt under a template: the parts in order, with "|" between
 * them. */
static void expect_learnt(const char *template, const char *messages, const char *rest, const char *rendered,
                          const char *learnt)
{
    struct err err = {0};
    struct chat_template *chat = NULL;
    struct chat_spans spans = {0};
    struct buf text = {.limit = 65536}, parts = {.limit = 65536};
    const struct chat_given given = {.template = template, .tool_use = NULL, .eos = "</s>", .eos_size = 4};
    json_t *list = messages_of(messages);
    json_t *more = messages_of(rest);
    const struct chat_rest passed = {.tools = json_object_get(more, "tools"),
                                     .documents = json_object_get(more, "documents"),
                                     .kwargs = json_object_get(more, "kwargs")};
    assert_int_equal(0, chat_template_choose(NULL, &given, &chat, &err));
    if (chat_render(chat, list, &passed, false, &text, &spans, &err) < 0)
        fail_msg("%s", err.text);
    for (size_t i = 0; i < spans.count; i++) {
        if (spans.items[i].part == CHAT_LEARNT) {
            buf_append(&parts, buf_str(&text) + spans.items[i].begin,
                       spans.items[i].end - spans.items[i].begin, &err);
            buf_text(&parts, "|", &err);
        }
    }
    assert_string_equal(rendered, buf_str(&text));
    assert_string_equal(learnt, buf_str(&parts));
    chat_spans_fini(&spans);
    buf_fini(&text);
    buf_fini(&parts);
    json_decref(list);
    json_decref(more);
    chat_template_destroy(chat);
}

static const char tools_template[] = "{% if tools %}TOOLS{{ tools|tojson }}{% endif %}{% for m in messages "
                                     "%}<{{ m.role }}>{% if m.reasoning_content "
                                     "%}[{{ m.reasoning_content }}]{% endif %}{% if m.tool_calls %}{% for t "
                                     "in m.tool_calls %}CALL{{ t.function.name "
                                     "}}{{ t.function.arguments|tojson }}{% endfor %}{% elif m.content is "
                                     "string %}{{ m.content }}{% else %}{% for p "
                                     "in m.content %}{{ p.text }}{% endfor %}{% endif %}</s>\n{% endfor %}{% "
                                     "if add_generation_prompt %}<assistant>{% "
                                     "endif %}";

static void messages_reach_the_template_with_every_key(void **state)
{
    (void)state;
    expect_learnt(
        tools_template,
        "[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"q\"}]},{\"role\":\"assistant\","
        "\"content\":null,\"tool_calls\":[{\"type\":\"function\",\"function\":{\"name\":\"w\","
        "\"arguments\":{\"c\":\"x\"}}}]},{\"role\":\"tool\",\"content\":\"5\"},{\"role\":\"assistant\","
        "\"content\":\"five\",\"thinking\":\"hm\"}]",
        "{\"tools\":[{\"name\":\"w\"}]}",
        "TOOLS[{\"name\": \"w\"}]<user>q</s>\n<assistant>CALLw{\"c\": \"x\"}</s>\n<tool>5</s>\n"
        "<assistant>[hm]five</s>\n",
        "CALLw{\"c\": \"x\"}</s>|[hm]five</s>|");
    expect_learnt(
        "{{ mode }}{{ documents[0].title }}{% for m in messages %}{{ m.role }}:{{ m.content is defined "
        "}}{{ m.thinking }};{% endfor %}",
        "[{\"role\":\"user\",\"content\":null,\"reasoning\":\"r\"}]",
        "{\"documents\":[{\"title\":\"t\"}],\"kwargs\":{\"mode\":\"m\"}}", "mtuser:Falser;", "");
}

static void a_message_may_say_that_it_is_not_learnt(void **state)
{
    (void)state;
    static const char *const off[] = {"\"weight\":0", "\"weight\":0.0", "\"train\":false", "\"loss\":false"};
    static const char *const on[] = {"\"weight\":1", "\"weight\":1.0", "\"weight\":true", "\"train\":null"};
    static const char *const wrong[] = {"\"weight\":0.5", "\"weight\":\"0\"", "\"train\":1",
                                        "\"train_detail\":[]"};
    static const char form[] =
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"a\",%s},"
        "{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"b\"}]";
    static const char generation[] =
        "{% for m in messages %}{{ m.role }}:{% generation %}{{ m.content if m.role == "
        "'assistant' }}{% endgeneration %};{% endfor %}";
    char messages[512];
    for (int i = 0; i < 4; i++) {
        struct err err = {0};
        bool learn;
        snprintf(messages, sizeof(messages), form, off[i]);
        expect_learnt(tools_template, messages, "{}",
                      "<user>q</s>\n<assistant>a</s>\n<user>q</s>\n<assistant>b</s>\n", "b</s>|");
        expect_learnt(generation, messages, "{}", "user:;assistant:a;user:;assistant:b;", "b|");
        snprintf(messages, sizeof(messages), form, on[i]);
        expect_learnt(tools_template, messages, "{}",
                      "<user>q</s>\n<assistant>a</s>\n<user>q</s>\n<assistant>b</s>\n", "a</s>|b</s>|");
        snprintf(messages, sizeof(messages), form, wrong[i]);
        json_t *list = messages_of(messages);
        assert_int_equal(-1, chat_messages_mute(list, &learn, &err));
        assert_non_null(strstr(err.text, "messages[1]."));
        json_decref(list);
    }
}

static void a_turn_beside_the_loop_is_refused_and_one_that_is_cut_is_not_learnt(void **state)
{
    (void)state;
    static const char messages[] =
        "[{\"role\":\"assistant\",\"content\":\"old\"},{\"role\":\"user\",\"content\":\"q\"},"
        "{\"role\":\"assistant\",\"content\":\"a\"}]";
    struct err err = {0};
    struct chat_template *chat = NULL;
    struct chat_spans spans = {0};
    struct buf text = {.limit = 65536};
    const struct chat_given given = {
        .template = "{{ messages[0].content }}{% for m in messages[1:] %}{{ m.content }}{% endfor %}"};
    expect_learnt("{% for m in messages[-2:] %}{{ m.content }};{% endfor %}", messages, "{}", "q;a;", "a;|");
    assert_int_equal(0, chat_template_choose(NULL, &given, &chat, &err));
    assert_int_equal(-1, render(chat, messages, false, &text, &spans, &err));
    assert_non_null(strstr(err.text, "messages[0]"));
    chat_template_destroy(chat);
    /* This template writes each turn one round later, behind the next turn's head. */
    const struct chat_given late = {
        .template =
            "{% set ns = namespace(t='') %}{% for m in messages %}{{ ns.t }}<{{ m.role }}>{% set ns.t = "
            "m.content %}{% endfor %}{{ ns.t }}"};
    assert_int_equal(0, chat_template_choose(NULL, &late, &chat, &err));
    assert_int_equal(-1, render(chat, messages, false, &text, &spans, &err));
    assert_non_null(strstr(err.text, "messages[0]"));
    chat_template_destroy(chat);
    chat_spans_fini(&spans);
    buf_fini(&text);
}

static void an_answer_begins_where_it_is_asked_for(void **state)
{
    (void)state;
    /* The template writes a system turn of its own at the first message, which is an answer. */
    expect_learnt(
        "{% for m in messages %}{% if loop.first and m.role != 'system' %}<|system|>S.</s>{% endif "
        "%}<|{{ m.role }}|>{{ m.content }}</s>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% "
        "endif %}",
        "[{\"role\":\"assistant\",\"content\":\"a\"},{\"role\":\"user\",\"content\":\"q\"},{\"role\":"
        "\"assistant\",\"content\":\"b\"}]",
        "{}", "<|system|>S.</s><|assistant|>a</s><|user|>q</s><|assistant|>b</s>", "a</s>|b</s>|");
    /* The generation prompt has the beginning of a thought; recorded answers are written without it, and one
     * answer begins like it. */
    static const char thought[] =
        "{% for m in messages %}{% if m.role == 'tool' %}[{{ m.content }}]{% else %}<{{ m.role "
        "}}>{{ m.content }};{% endif %}{% endfor %}{% if add_generation_prompt "
        "%}<assistant><think>{% endif %}";
    expect_learnt(thought,
                  "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"<b>\"}]",
                  "{}", "<user>q;<assistant><b>;", "<b>;|");
    expect_learnt(thought,
                  "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"<think>h\"}]",
                  "{}", "<user>q;<assistant><think>h;", "h;|");
    /* The text between a tool's answer and the assistant's is part of the generation prompt. */
    expect_learnt(
        "{% set ns = namespace(tool=false) %}{% for m in messages %}{% if m.role == 'tool' %}<t>{{ m.content "
        "}}{% set ns.tool = true %}{% elif m.role == 'assistant' %}{% if ns.tool %}</t>{% else %}<a>{% endif "
        "%}{{ m.content }};{% set ns.tool = false %}{% else %}<u>{{ m.content }}{% endif %}{% endfor %}{% if "
        "ns.tool %}</t>{% elif add_generation_prompt %}<a>{% endif %}",
        "[{\"role\":\"user\",\"content\":\"q\"},{\"role\":\"assistant\",\"content\":\"call\"},{\"role\":"
        "\"tool\","
        "\"content\":\"5\"},{\"role\":\"assistant\",\"content\":\"five\"}]",
        "{}", "<u>q<a>call;<t>5</t>five;", "call;|five;|");
}

static void what_a_row_gives_wrongly_is_refused_by_its_key(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"{\"tools\":[1]}", "tools[0]"},
        {"{\"tools\":{}}", "tools"},
        {"{\"documents\":[\"a\"]}", "documents[0]"},
        {"{\"kwargs\":{\"max_length\":3}}", "chat_template_kwargs.max_length"},
        {"{\"kwargs\":[]}", "chat_template_kwargs"}};
    struct chat_template *chat = NULL;
    struct err err = {0};
    const struct chat_given given = {.template = tools_template};
    assert_int_equal(0, chat_template_choose(NULL, &given, &chat, &err));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct buf text = {.limit = 65536};
        json_t *list = messages_of(conversation);
        json_t *more = messages_of(cases[i][0]);
        const struct chat_rest rest = {.tools = json_object_get(more, "tools"),
                                       .documents = json_object_get(more, "documents"),
                                       .kwargs = json_object_get(more, "kwargs")};
        assert_int_equal(-1, chat_render(chat, list, &rest, false, &text, NULL, &err));
        assert_non_null(strstr(err.text, cases[i][1]));
        json_decref(list);
        json_decref(more);
        buf_fini(&text);
    }
    chat_template_destroy(chat);
}

static void templates_beyond_us_are_refused_and_say_what_to_do(void **state)
{
    (void)state;
    static const char *const unknown[] = {NULL, "\n{{ messages|unknown }}"};
    for (size_t i = 0; i < sizeof(unknown) / sizeof(unknown[0]); i++) {
        struct err err = {0};
        struct chat_template *chat = NULL;
        const struct chat_given given = {.template = unknown[i]};
        assert_int_equal(-1, chat_template_choose(NULL, &given, &chat, &err));
        assert_int_equal(ERR_UNSUPPORTED, err.code);
        assert_non_null(strstr(err.text, "data.chat_template"));
        assert_true(i == 0 || strstr(err.text, "line 2"));
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
    const struct chat_given given = {.template = NULL};
    json_t *llama3 = json_string("llama3");
    assert_int_equal(0, chat_template_choose(llama3, &given, &chat, &err));
    json_decref(llama3);
    assert_int_equal(-1, render(chat, "[{\"role\":\"tool\",\"content\":\"x\"}]", false, &text, NULL, &err));
    assert_non_null(strstr(err.text, "messages[0].role"));
    assert_int_equal(0, text.size);
    assert_int_equal(-1, render(chat, "[]", false, &text, NULL, &err));
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
        cmocka_unit_test(messages_reach_the_template_with_every_key),
        cmocka_unit_test(a_message_may_say_that_it_is_not_learnt),
        cmocka_unit_test(a_turn_beside_the_loop_is_refused_and_one_that_is_cut_is_not_learnt),
        cmocka_unit_test(an_answer_begins_where_it_is_asked_for),
        cmocka_unit_test(what_a_row_gives_wrongly_is_refused_by_its_key),
        cmocka_unit_test(templates_beyond_us_are_refused_and_say_what_to_do),
        cmocka_unit_test(templates_given_wrongly_are_refused_by_path),
        cmocka_unit_test(a_role_the_template_has_not_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
