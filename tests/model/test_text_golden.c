/* Text has the ids that transformers gave it (../shared/golden/smollm2), with the real model's GGUF. The test
 * skips visibly where the golden files or the model (tools/fetch_smollm2.sh, or MOTLEY_SMOLLM2)
 * are missing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "model/rows/rows.h"
#include "model/shape/tensors.h"

struct golden {
    struct model *model;
    struct tokenizer *tokenizer;
    char folder[4096];
};

static const char *source_folder(void)
{
    const char *source = getenv("MOTLEY_SOURCE");
    return source ? source : ".";
}

static int golden_setup(void **state)
{
    static struct golden golden;
    struct err err = {0};
    char path[4096];
    const char *given = getenv("MOTLEY_SMOLLM2");
    snprintf(path, sizeof(path), "%s/.cache/SmolLM2-135M-Instruct.Q4_1.gguf", source_folder());
    snprintf(golden.folder, sizeof(golden.folder), "%s/../shared/golden/smollm2", source_folder());
    const char *model = given ? given : path;
    *state = NULL;
    if (access(model, R_OK) != 0 || access(golden.folder, R_OK) != 0) {
        fprintf(stderr, "SKIP: %s or %s is not there\n", model, golden.folder);
        return 0;
    }
    if (model_open_path(model, &golden.model, &err) < 0 ||
        tokenizer_open(golden.model, &golden.tokenizer, &err) < 0) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    *state = &golden;
    return 0;
}

static int golden_teardown(void **state)
{
    struct golden *golden = *state;
    if (golden) {
        tokenizer_destroy(golden->tokenizer);
        model_close(golden->model);
    }
    return 0;
}

static struct golden *need(void **state)
{
    if (!*state)
        skip();
    return *state;
}

static json_t *load(const struct golden *golden, const char *name)
{
    char path[8192];
    json_error_t why;
    snprintf(path, sizeof(path), "%s/%s", golden->folder, name);
    json_t *document = json_load_file(path, JSON_ALLOW_NUL, &why);
    if (!document)
        fail_msg("%s: %s", path, why.text);
    return document;
}

static void expect_ids(const json_t *expected, const int32_t *ids, size_t count, const char *what)
{
    if (json_array_size(expected) != count)
        fail_msg("%s: %zu ids instead of %zu", what, count, json_array_size(expected));
    for (size_t i = 0; i < count; i++)
        if (json_integer_value(json_array_get(expected, i)) != ids[i])
            fail_msg("%s: id %zu is %d", what, i, ids[i]);
}

static void every_text_has_the_golden_ids_and_decodes_back(void **state)
{
    struct golden *golden = need(state);
    struct err err = {0};
    json_t *cases = load(golden, "tokenizer.json");
    assert_true(json_array_size(cases) > 50);
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *item = json_array_get(cases, i);
        const json_t *text = json_object_get(item, "text");
        const json_t *decoded = json_object_get(item, "decoded");
        struct ids ids = {0};
        struct buf out = {.limit = 1 << 24};
        assert_int_equal(0, tokenizer_encode(golden->tokenizer, json_string_value(text),
                                             json_string_length(text), TOKENIZER_ADD_SPECIAL, &ids, &err));
        expect_ids(json_object_get(item, "ids"), ids.data, ids.count, json_string_value(text));
        assert_int_equal(0, tokenizer_decode(golden->tokenizer, ids.data, ids.count, false, &out, &err));
        assert_int_equal(json_string_length(decoded), out.size);
        assert_memory_equal(json_string_value(decoded), buf_str(&out), out.size);
        ids_fini(&ids);
        buf_fini(&out);
    }
    json_decref(cases);
}

static void every_conversation_has_the_golden_text_and_ids(void **state)
{
    struct golden *golden = need(state);
    struct err err = {0};
    struct chat_template *chat = NULL;
    const struct chat_given given = chat_given_by(golden->tokenizer, NULL);
    assert_int_equal(0, chat_template_choose(NULL, &given, &chat, &err));
    json_t *cases = load(golden, "chat.json");
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *item = json_array_get(cases, i);
        struct buf text = {.limit = 1 << 20};
        struct ids ids = {0};
        const bool add = json_is_true(json_object_get(item, "add_generation_prompt"));
        assert_int_equal(0,
                         chat_render(chat, json_object_get(item, "messages"), NULL, add, &text, NULL, &err));
        assert_string_equal(json_string_value(json_object_get(item, "text")), buf_str(&text));
        assert_int_equal(
            0, tokenizer_encode(golden->tokenizer, buf_str(&text), text.size, TOKENIZER_PLAIN, &ids, &err));
        expect_ids(json_object_get(item, "ids"), ids.data, ids.count, buf_str(&text));
        ids_fini(&ids);
        buf_fini(&text);
    }
    json_decref(cases);
    chat_template_destroy(chat);
}

static void alpaca_rows_become_the_golden_batches(void **state)
{
    struct golden *golden = need(state);
    struct err err = {0};
    json_t *list = load(golden, "rows.json");
    json_t *train = load(golden, "train.json");
    struct buf text = {.limit = 1 << 20};
    for (size_t i = 0; i < json_array_size(list); i++) {
        char *line = json_dumps(json_array_get(list, i), JSON_COMPACT);
        assert_int_equal(0, buf_printf(&text, &err, "%s\n", line));
        free(line);
    }
    struct spec_data_part data = {.sequence_tokens = 512, .learn = SPEC_LEARN_ANSWER};
    struct rows_options options;
    struct chat_template *chat = NULL;
    struct rows *rows = NULL;
    struct rows_report report;
    assert_int_equal(0, rows_options_from_spec(&data, golden->tokenizer, 49152, &options, &chat, &err));
    assert_int_equal(0, rows_encode(buf_str(&text), text.size, &options, &rows, &report, &err));
    assert_int_equal(SPEC_FORMAT_ALPACA, report.format);
    const json_t *batches = json_object_get(train, "batches");
    uint32_t row = 0;
    for (size_t b = 0; b < json_array_size(batches); b++) {
        const json_t *ids = json_object_get(json_array_get(batches, b), "ids");
        const json_t *labels = json_object_get(json_array_get(batches, b), "labels");
        for (size_t i = 0; i < json_array_size(ids); i++, row++) {
            assert_true(row < rows->count);
            const uint64_t at = rows->offset[row];
            const size_t count = (size_t)(rows->offset[row + 1] - at);
            expect_ids(json_array_get(ids, i), rows->ids + at, count, "ids");
            expect_ids(json_array_get(labels, i), rows->labels + at, count, "labels");
        }
    }
    assert_int_equal(row, rows->count);
    rows_destroy(rows);
    chat_template_destroy(chat);
    buf_fini(&text);
    json_decref(list);
    json_decref(train);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_text_has_the_golden_ids_and_decodes_back),
        cmocka_unit_test(every_conversation_has_the_golden_text_and_ids),
        cmocka_unit_test(alpaca_rows_become_the_golden_batches),
    };
    return cmocka_run_group_tests(tests, golden_setup, golden_teardown);
}
