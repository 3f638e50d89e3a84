/* 2 MB of mixed text (code, 48 scripts, emoji sequences, marks, control characters, every kind of white
 * space) have the ids of `tokenizers` under the pre-tokenisers and normalisers of every known family
 * (tests/data/tokenizer/mixed.json, made by tools/golden_mixed_text.py, holds what the text is made of and a
 * hash of each family's ids). */
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
#include "model/text/tokenizer.h"
#include "model/text/utf8.h"

enum { TEXT_BYTES = 2 << 20, CODES = 0x33480 };

struct mixed {
    json_t *golden;
    struct buf text;
};

/* The random numbers of tools/golden_mixed_text.py. */
static uint32_t below(uint64_t *state, uint32_t limit)
{
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*state >> 33) % limit);
}

static void text_make(struct mixed *mixed)
{
    const json_t *parts = json_object_get(mixed->golden, "fragments");
    struct err err = {0};
    uint64_t state = 1;
    while (mixed->text.size < TEXT_BYTES) {
        if (below(&state, 8) == 0) {
            const uint32_t code = below(&state, CODES);
            uint8_t bytes[4];
            const unsigned size = utf8_encode(code >= 0xd800 && code < 0xe000 ? 0xfffd : code, bytes);
            assert_int_equal(0, buf_append(&mixed->text, bytes, size, &err));
        } else {
            const json_t *part = json_array_get(parts, below(&state, (uint32_t)json_array_size(parts)));
            assert_int_equal(
                0, buf_append(&mixed->text, json_string_value(part), json_string_length(part), &err));
        }
    }
}

static void expect_digest(const json_t *expected, const void *data, size_t size, const char *what)
{
    struct err err = {0};
    char hex[DIGEST_HEX_SIZE];
    assert_int_equal(0, digest_sha256_hex(data, size, hex, &err));
    if (strcmp(hex, json_string_value(expected)) != 0)
        fail_msg("%s is not what it was with tokenizers", what);
}

static int mixed_setup(void **state)
{
    static struct mixed mixed = {.text = {.limit = 2 * TEXT_BYTES}};
    struct buf file = {.limit = 1 << 22};
    struct err err = {0};
    assert_int_equal(0, file_read_all(MOTLEY_TEST_DATA "/tokenizer/mixed.json", 1 << 22, &file, &err));
    mixed.golden = json_loadb(buf_str(&file), file.size, JSON_ALLOW_NUL, NULL);
    if (!mixed.golden)
        fail_msg("%s", err.text);
    buf_fini(&file);
    text_make(&mixed);
    *state = &mixed;
    return 0;
}

static int mixed_teardown(void **state)
{
    struct mixed *mixed = *state;
    json_decref(mixed->golden);
    buf_fini(&mixed->text);
    return 0;
}

static struct tokenizer *family_open(const json_t *golden, const json_t *family)
{
    const char *model = json_string_value(json_object_get(family, "model"));
    json_t *document =
        json_pack("{s:s, s:[], s:O, s:O, s:O}", "version", "1.0", "added_tokens", "normalizer",
                  json_object_get(family, "normalizer"), "pre_tokenizer",
                  json_object_get(family, "pre_tokenizer"), "model", json_object_get(golden, model));
    if (strcmp(model, "bytes") == 0) {
        json_object_set_new(
            document, "decoder",
            json_pack("{s:s, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0, "trim_offsets", 1));
    }
    char *text = json_dumps(document, JSON_COMPACT);
    struct err err = {0};
    struct tokenizer *tokenizer = NULL;
    if (tokenizer_from_json(text, strlen(text), NULL, 0, &tokenizer, &err) < 0)
        fail_msg("%s: %s", json_string_value(json_object_get(family, "name")), err.text);
    free(text);
    json_decref(document);
    return tokenizer;
}

static void the_text_is_the_one_that_was_recorded(void **state)
{
    const struct mixed *mixed = *state;
    expect_digest(json_object_get(mixed->golden, "text_sha256"), mixed->text.data, mixed->text.size,
                  "the text");
}

static void every_family_has_the_ids_of_tokenizers(void **state)
{
    const struct mixed *mixed = *state;
    size_t i;
    const json_t *family;
    json_array_foreach (json_object_get(mixed->golden, "families"), i, family) {
        const char *name = json_string_value(json_object_get(family, "name"));
        struct tokenizer *tokenizer = family_open(mixed->golden, family);
        struct err err = {0};
        struct ids ids = {0};
        if (tokenizer_encode(tokenizer, buf_str(&mixed->text), mixed->text.size, TOKENIZER_PLAIN, &ids,
                             &err) < 0) {
            fail_msg("%s: %s", name, err.text);
        }
        print_message("%s: %zu ids\n", name, ids.count);
        if (json_integer_value(json_object_get(family, "count")) != (json_int_t)ids.count) {
            fail_msg("%s: %zu ids instead of %lld", name, ids.count,
                     json_integer_value(json_object_get(family, "count")));
        }
        expect_digest(json_object_get(family, "sha256"), ids.data, ids.count * sizeof(*ids.data), name);
        ids_fini(&ids);
        tokenizer_destroy(tokenizer);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_text_is_the_one_that_was_recorded),
                                       cmocka_unit_test(every_family_has_the_ids_of_tokenizers)};
    return cmocka_run_group_tests(tests, mixed_setup, mixed_teardown);
}
