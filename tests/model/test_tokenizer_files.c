/* The files beside tokenizer.json are read as AutoTokenizer of transformers 5.24 read them in several hundred
 * folders (tests/data/tokenizer/files.json, recorded by tools/golden_tokenizer_files.py), or refused with a
 * text that names the key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/json.h"
#include "model/templates/chat.h"
#include "model/text/tokenizer.h"
#include "model/text/tokenizer_files.h"
#include "support/scratch.h"

static void write_text(struct scratch *scratch, const char *name, const char *text)
{
    struct err err;
    if (file_write_atomic(scratch_path(scratch, name), text, strlen(text), 0600, &err) < 0)
        fail_msg("%s", err.text);
}

/* Writes the members of 'base' replaced by those of 'change'; the value "-" removes a member. */
static void write_merged(struct scratch *scratch, const char *name, const json_t *base, const json_t *change)
{
    const char *key;
    json_t *value, *merged = json_copy((json_t *)base);
    json_object_foreach ((json_t *)change, key, value) {
        const char *text = json_string_value(value);
        if (text && strcmp(text, "-") == 0)
            json_object_del(merged, key);
        else
            json_object_set(merged, key, value);
    }
    char *text = json_dumps(merged, 0);
    write_text(scratch, name, text);
    free(text);
    json_decref(merged);
}

static void write_case(struct scratch *scratch, const json_t *base, const json_t *one)
{
    static const char *const parts[][2] = {{"config", "config.json"},
                                           {"tokenizer_config", "tokenizer_config.json"},
                                           {"tokenizer", "tokenizer.json"}};
    const char *name;
    json_t *value;
    struct err err;
    for (size_t i = 0; i < 3; i++)
        write_merged(scratch, parts[i][1], json_object_get(base, parts[i][0]),
                     json_object_get(one, parts[i][0]));
    json_object_foreach (json_object_get(one, "files"), name, value) {
        if (strchr(name, '/'))
            assert_int_equal(0, file_mkdirs(scratch_path(scratch, "additional_chat_templates"), 0700, &err));
        char *text = json_is_string(value) ? strdup(json_string_value(value)) : json_dumps(value, 0);
        write_text(scratch, name, text);
        free(text);
    }
}

/* Returns whether the message names a key that the case changes, or one of its files. */
static bool names_a_key(const json_t *one, const char *message)
{
    static const char *const parts[] = {"config", "tokenizer_config", "tokenizer", "files"};
    const char *key;
    json_t *value;
    for (size_t i = 0; i < 4; i++)
        json_object_foreach (json_object_get(one, parts[i]), key, value)
            if (strstr(message, key))
                return true;
    return false;
}

static void rendered_as(const struct tokenizer *tokenizer, const json_t *want, bool tools, const char *name)
{
    struct chat_template *chat = NULL;
    struct err err = {0};
    struct buf text = {.limit = 1 << 16};
    const struct chat_given given = chat_given_by(tokenizer, NULL);
    json_t *messages = json_pack("[{s:s, s:s}]", "role", "user", "content", "hi"), *none = json_array();
    const struct chat_rest rest = {.tools = tools ? none : NULL};
    int status = chat_template_choose(NULL, &given, &chat, &err);
    if (status == 0)
        status = chat_render(chat, messages, &rest, false, &text, NULL, &err);
    if (status == 0 && !json_is_string(want))
        fail_msg("%s: rendered \"%s\", transformers refuses", name, buf_str(&text));
    if (json_is_string(want) && (status < 0 || strcmp(buf_str(&text), json_string_value(want)) != 0))
        fail_msg("%s: \"%s\" and not \"%s\"", name, status < 0 ? err.text : buf_str(&text),
                 json_string_value(want));
    chat_template_destroy(chat);
    buf_fini(&text);
    json_decref(messages);
    json_decref(none);
}

static void ids_are(const struct tokenizer *tokenizer, const json_t *texts, const json_t *want,
                    const char *name)
{
    struct err err;
    for (size_t i = 0; i < json_array_size(texts); i++) {
        const json_t *text = json_array_get(texts, i), *row = json_array_get(want, i);
        struct ids ids = {0};
        if (tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text),
                             TOKENIZER_ADD_SPECIAL, &ids, &err) < 0)
            fail_msg("%s: %s", name, err.text);
        bool same = ids.count == json_array_size(row);
        for (size_t k = 0; k < ids.count && same; k++)
            same = ids.data[k] == json_integer_value(json_array_get(row, k));
        if (!same)
            fail_msg("%s: other ids of \"%s\"", name, json_string_value(text));
        ids_fini(&ids);
    }
}

/* Returns whether some text is refused, as where a tokenizer's unknown token is not in its vocabulary. */
static bool some_text_is_refused(const struct tokenizer *tokenizer, const json_t *texts)
{
    struct err err;
    bool refused = false;
    for (size_t i = 0; i < json_array_size(texts) && !refused; i++) {
        const json_t *text = json_array_get(texts, i);
        struct ids ids = {0};
        refused = tokenizer_encode(tokenizer, json_string_value(text), json_string_length(text),
                                   TOKENIZER_ADD_SPECIAL, &ids, &err) < 0;
        ids_fini(&ids);
    }
    return refused;
}

/* Returns whether the case was refused. */
static bool case_run(const json_t *golden, const json_t *one, const char *name)
{
    struct scratch scratch;
    struct model_source *source;
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    const json_t *want = json_object_get(one, "want"), *texts = json_object_get(one, "texts");
    texts = texts ? texts : json_object_get(golden, "texts");
    assert_int_equal(0, scratch_make(&scratch));
    write_case(&scratch, json_object_get(golden, "base"), one);
    if (model_source_open_local(scratch.dir, &source, &err) < 0)
        fail_msg("%s: %s", name, err.text);
    const bool refused = tokenizer_open_source(source, &tokenizer, &err) < 0;
    if (refused && !json_is_null(want) && !names_a_key(one, err.text))
        fail_msg("%s: refused and no key named: %s", name, err.text);
    if (!refused && json_is_null(want) && !some_text_is_refused(tokenizer, texts))
        fail_msg("%s: taken, transformers refuses", name);
    if (!refused && !json_is_null(want)) {
        ids_are(tokenizer, texts, json_object_get(want, "ids"), name);
        if (!json_equal(tokenizer_special_tokens(tokenizer), json_object_get(want, "special"))) {
            char *text = json_dumps(tokenizer_special_tokens(tokenizer), 0);
            fail_msg("%s: special tokens %s", name, text);
        }
        rendered_as(tokenizer, json_object_get(want, "plain"), false, name);
        rendered_as(tokenizer, json_object_get(want, "tools"), true, name);
    }
    tokenizer_destroy(tokenizer);
    model_source_close(source);
    scratch_remove(&scratch);
    return refused;
}

static void every_folder_is_what_transformers_makes_of_it_or_is_refused(void **state)
{
    (void)state;
    struct err err;
    struct buf text = {.limit = 1 << 20};
    size_t i, refused = 0;
    json_t *one;
    assert_int_equal(0, file_read_all(MOTLEY_TEST_DATA "/tokenizer/files.json", text.limit, &text, &err));
    json_t *golden = json_parse_limited(buf_str(&text), text.size, 32, &err);
    assert_non_null(golden);
    json_array_foreach (json_object_get(golden, "cases"), i, one) {
        json_t *short_one = json_copy(one);
        json_object_del(short_one, "want");
        json_object_del(short_one, "tokenizer");
        char *name = json_dumps(short_one, 0);
        refused += case_run(golden, one, name);
        free(name);
        json_decref(short_one);
    }
    print_message("%zu of %zu folders are refused\n", refused, i);
    assert_true(i > 300 && refused < i / 3);
    json_decref(golden);
    buf_fini(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_folder_is_what_transformers_makes_of_it_or_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
