/* Compares tokenizers with Hugging Face's `tokenizers` and `sentencepiece`, and reads damaged files.
 * tests/data/tokenizer has small vocabularies of the known families and those libraries' results on some
 * texts; tools/golden_tokenizers.py made most of them, and MOTLEY_TOKENIZERS=FOLDER uses those that it made
 * there. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <jansson.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"
#include "common/rand.h"
#include "model/files/gguf.h"
#include "model/gguf_build.h"
#include "model/shape/tensors.h"
#include "model/text/tokenizer_files.h"
#include "model/text/tokenizer.h"
#include "support/scratch.h"

static const char *const families[] = {"smollm",  "gpt2",  "llama3", "qwen2",     "tekken",   "llama2",
                                       "mistral", "gemma", "phi3",   "metaspace", "tinyllama"};
enum { FAMILIES = sizeof(families) / sizeof(families[0]) };

static void data_path(char *path, size_t size, const char *name)
{
    const char *folder = getenv("MOTLEY_TOKENIZERS");
    snprintf(path, size, "%s/%s", folder ? folder : MOTLEY_TEST_DATA "/tokenizer", name);
}

static void file_load(const char *name, struct buf *text)
{
    char path[512];
    struct err err = {0};
    data_path(path, sizeof(path), name);
    *text = (struct buf){.limit = 1 << 26};
    if (file_read_all(path, 1 << 26, text, &err) < 0)
        fail_msg("%s", err.text);
}

static struct tokenizer *family_open(const char *family)
{
    char name[64];
    struct buf text;
    struct err err = {0};
    struct tokenizer *tokenizer = NULL;
    snprintf(name, sizeof(name), "%s.json", family);
    file_load(name, &text);
    if (tokenizer_from_json(buf_str(&text), text.size, NULL, 0, &tokenizer, &err) < 0)
        fail_msg("%s: %s", family, err.text);
    buf_fini(&text);
    return tokenizer;
}

static json_t *cases_load(const char *family)
{
    char name[64];
    struct buf text;
    snprintf(name, sizeof(name), "%s.cases.json", family);
    file_load(name, &text);
    json_t *cases = json_loadb(buf_str(&text), text.size, JSON_ALLOW_NUL, NULL);
    assert_non_null(cases);
    buf_fini(&text);
    return cases;
}

static void expect_text(const json_t *expected, const struct buf *text, const char *what)
{
    if (json_string_length(expected) != text->size ||
        memcmp(json_string_value(expected), buf_str(text), text->size) != 0) {
        fail_msg("%s: \"%s\" instead of \"%s\"", what, buf_str(text), json_string_value(expected));
    }
}

static void expect_decoded(const struct tokenizer *tokenizer, const int32_t *ids, size_t count, bool skip,
                           const json_t *expected, const char *what)
{
    struct err err = {0};
    struct buf out = {.limit = 1 << 20};
    assert_int_equal(0, tokenizer_decode(tokenizer, ids, count, skip, &out, &err));
    expect_text(expected, &out, what);
    buf_fini(&out);
}

/* Checks that ends never decrease, and that the last is the end of the text (or of its part that has a
 * token). */
static void expect_places(const struct ids *ids, const struct ids *begins, const struct ids *ends,
                          size_t size)
{
    assert_int_equal(ids->count, ends->count);
    for (size_t i = 0; i < ends->count; i++) {
        assert_true(ends->data[i] >= 0 && (size_t)ends->data[i] <= size);
        assert_true(begins->data[i] >= 0 && begins->data[i] <= ends->data[i]);
        assert_true(i == 0 || ends->data[i] >= ends->data[i - 1]);
    }
}

static void expect_case(const struct tokenizer *tokenizer, const json_t *item)
{
    struct err err = {0};
    struct ids ids = {0};
    struct ids begins = {0};
    struct ids ends = {0};
    const json_t *text = json_object_get(item, "text");
    const json_t *expected = json_object_get(item, "ids");
    const json_t *loose = json_object_get(item, "loose");
    assert_int_equal(0, tokenizer_encode_placed(tokenizer, json_string_value(text), json_string_length(text),
                                                TOKENIZER_ADD_SPECIAL, &ids, &begins, &ends, &err));
    for (size_t i = 0; i < ids.count || i < json_array_size(expected); i++) {
        const json_int_t wanted =
            i < json_array_size(expected) ? json_integer_value(json_array_get(expected, i)) : -1;
        if (i >= ids.count || ids.data[i] != wanted) {
            fail_msg("\"%s\": id %zu is %d, not %lld", json_string_value(text), i,
                     i < ids.count ? ids.data[i] : -1, (long long)wanted);
        }
    }
    expect_places(&ids, &begins, &ends, json_string_length(text));
    if (json_object_get(item, "decoded")) {
        expect_decoded(tokenizer, ids.data, ids.count, false, json_object_get(item, "decoded"), "decoded");
        expect_decoded(tokenizer, ids.data, ids.count, true, json_object_get(item, "plain"),
                       "decoded without special tokens");
    }
    if (loose) {
        ids.count = 0;
        for (size_t i = 0; i < json_array_size(loose); i++) {
            const int32_t id = (int32_t)json_integer_value(json_array_get(loose, i));
            assert_int_equal(0, ids_append(&ids, &id, 1, &err));
        }
        expect_decoded(tokenizer, ids.data, ids.count, true, json_object_get(item, "loose_decoded"),
                       "loose ids");
    }
    ids_fini(&ids);
    ids_fini(&begins);
    ids_fini(&ends);
}

static void expect_cases(struct tokenizer *tokenizer, const char *name)
{
    json_t *cases = cases_load(name);
    assert_true(json_array_size(cases) > 30);
    for (size_t i = 0; i < json_array_size(cases); i++)
        expect_case(tokenizer, json_array_get(cases, i));
    json_decref(cases);
    tokenizer_destroy(tokenizer);
}

static void every_family_encodes_and_decodes_as_hugging_face_does(void **state)
{
    (void)state;
    for (size_t f = 0; f < FAMILIES; f++) {
        print_message("%s\n", families[f]);
        expect_cases(family_open(families[f]), families[f]);
    }
}

static struct tokenizer *gguf_tokenizer(void)
{
    char path[512];
    struct err err = {0};
    struct model_source *source = NULL;
    struct gguf *gguf = NULL;
    struct tokenizer *tokenizer = NULL;
    data_path(path, sizeof(path), "sentencepiece.gguf");
    if (model_source_open_local(path, &source, &err) < 0 || gguf_open(source, 0, &gguf, &err) < 0 ||
        tokenizer_from_gguf(gguf, &tokenizer, &err) < 0) {
        fail_msg("%s", err.text);
    }
    gguf_close(gguf);
    model_source_close(source);
    return tokenizer;
}

/* A token's text is cut out of texts, so a part of a character would leave the other part behind. */
static void a_gguf_token_that_is_a_part_of_a_character_is_refused(void **state)
{
    (void)state;
    static const char *const tokens[] = {"a", "b", "\xc4\x80", "\x82\xac"};
    struct err err = {0};
    struct model_source *source = NULL;
    struct gguf *gguf = NULL;
    struct tokenizer *tokenizer = NULL;
    struct gguf_build b;
    gb_begin(&b, 3, 0, 6);
    gb_key_text(&b, "general.architecture", "llama");
    gb_key_text(&b, "tokenizer.ggml.model", "gpt2");
    gb_key_text(&b, "tokenizer.ggml.pre", "llama-bpe");
    gb_text(&b, "tokenizer.ggml.tokens");
    gb_u32(&b, 9);
    gb_u32(&b, 8);
    gb_u64(&b, 4);
    for (size_t i = 0; i < 4; i++)
        gb_text(&b, tokens[i]);
    gb_text(&b, "tokenizer.ggml.token_type");
    gb_u32(&b, 9);
    gb_u32(&b, 5);
    gb_u64(&b, 4);
    for (uint32_t i = 0; i < 4; i++)
        gb_u32(&b, i < 3 ? 1 : 4);
    gb_text(&b, "tokenizer.ggml.merges");
    gb_u32(&b, 9);
    gb_u32(&b, 8);
    gb_u64(&b, 0);
    gb_align(&b, 32);
    assert_int_equal(0, model_source_open_memory("a.gguf", b.data, b.size, &source, &err));
    assert_int_equal(0, gguf_open(source, 0, &gguf, &err));
    if (tokenizer_from_gguf(gguf, &tokenizer, &err) == 0 || err.code != ERR_CORRUPT ||
        !strstr(err.text, "token 3") || !strstr(err.text, "UTF-8"))
        fail_msg("%s", err.text);
    gguf_close(gguf);
    model_source_close(source);
    free(b.data);
}

static void scores_in_a_gguf_merge_as_sentencepiece_does(void **state)
{
    (void)state;
    struct err err = {0};
    struct buf out = {.limit = 1024};
    struct ids ids = {0};
    struct tokenizer *tokenizer = gguf_tokenizer();
    assert_int_equal(1, tokenizer_bos(tokenizer));
    assert_int_equal(2, tokenizer_eos(tokenizer));
    assert_int_equal(0, tokenizer_encode(tokenizer, "the caf\xc3\xa9 \xf0\x9f\xa7\xbf\n", 15, 0, &ids, &err));
    assert_int_equal(0, tokenizer_decode(tokenizer, ids.data, ids.count, true, &out, &err));
    assert_string_equal("the caf\xc3\xa9 \xf0\x9f\xa7\xbf\n", buf_str(&out));
    ids_fini(&ids);
    buf_fini(&out);
    expect_cases(tokenizer, "sentencepiece");
}

static void read_data(const char *name, struct buf *out)
{
    char path[512];
    struct err err = {0};
    data_path(path, sizeof(path), name);
    *out = (struct buf){.limit = 1 << 20};
    assert_int_equal(0, file_read_all(path, 1 << 20, out, &err));
}

/* tools/golden_tokenizers.py made the pieces, in the form of Llama 2's file and of Gemma's. */
static void a_tokenizer_model_gives_the_ids_of_sentencepiece(void **state)
{
    (void)state;
    static const char *const names[] = {"pieces", "pieces-user"};
    for (int i = 0; i < 2; i++) {
        char file[64];
        struct buf bytes, out = {.limit = 1024};
        struct err err = {0};
        struct ids ids = {0};
        struct tokenizer *tokenizer = NULL;
        snprintf(file, sizeof(file), "%s.model", names[i]);
        read_data(file, &bytes);
        if (tokenizer_from_pieces(bytes.data, bytes.size, NULL, &tokenizer, &err) < 0)
            fail_msg("%s", err.text);
        /* Control pieces in a text are tokens, as in transformers; begin and end tokens are added where the
         * flags ask for them. */
        static const char text[] = "a<s>b";
        assert_int_equal(0, tokenizer_encode(tokenizer, text, 5, TOKENIZER_ADD_SPECIAL, &ids, &err));
        assert_true(ids.count >= 4 && ids.data[0] == 1);
        assert_int_equal(0, tokenizer_decode(tokenizer, ids.data, ids.count, true, &out, &err));
        assert_true(tokenizer_is_special(tokenizer, 1) && !tokenizer_is_special(tokenizer, ids.data[1]));
        ids_fini(&ids);
        buf_fini(&out);
        buf_fini(&bytes);
        expect_cases(tokenizer, names[i]);
    }
}

static void what_a_tokenizer_model_has_that_is_not_done_is_named(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        const char *says;
    } cases[] = {
        {"", 0, "unigram"},
        {"\x12\x02\x18\x01", 4, "unigram"},
        {"\x12\x02\x18\x03", 4, "word"},
        {"\x12\x02\x18\x02", 4, "remove_extra_whitespaces"},
        {"\x12\x02\x18\x02\x1a\x03\x12\x01x", 9, "precompiled_charsmap"},
        {"\x12\x02\x18\x02\x1a\x02\x20\x00", 8, "it has no pieces"},
        {"\x12\x02\x18\x02\x1a\x02\x20\x00\x0a\x02\x18\x05", 12, "piece 0 is of type 5"},
        {"\x12\x7f\x18", 3, "longer than what is left"},
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 11, "longer than what is left"},
        {"\x18\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", 12, "more than 10 bytes"},
        {"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff", 11, "more than 10 bytes"},
        {"\x0b", 1, "no SentencePiece model"},
        {"{\"a\": 1}", 8, "tokenizer.model"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        struct tokenizer *tokenizer = NULL;
        assert_int_equal(-1, tokenizer_from_pieces((const uint8_t *)cases[i].bytes, cases[i].size, NULL,
                                                   &tokenizer, &err));
        if (!strstr(err.text, cases[i].says))
            fail_msg("case %zu: %s", i, err.text);
    }
    struct buf bytes;
    struct err err = {0};
    struct tokenizer *tokenizer = NULL;
    static const char adds[] = "{\"added_tokens_decoder\": {\"600\": {\"content\": \"<|im_end|>\"}}}";
    const struct tokenizer_files files = {.config = {adds, sizeof(adds) - 1}};
    read_data("pieces.model", &bytes);
    assert_int_equal(-1, tokenizer_from_pieces(bytes.data, bytes.size, &files, &tokenizer, &err));
    assert_non_null(strstr(err.text, "<|im_end|>"));
    buf_fini(&bytes);
}

/* Any bytes give an error, or a tokenizer whose ids are within its vocabulary. */
static void mutated_tokenizer_models_do_no_harm(void **state)
{
    (void)state;
    static const char text[] = "A na\xc3\xafve <s> don't\n 12345 \xe4\xbd\xa0";
    struct buf bytes;
    struct rand_stream stream;
    unsigned opened = 0;
    read_data("pieces.model", &bytes);
    rand_stream_init(&stream, 5, 0);
    for (int trial = 0; trial < 600; trial++) {
        struct err err = {0};
        struct tokenizer *tokenizer = NULL;
        struct ids ids = {0};
        size_t size = bytes.size - (trial % 3 == 0 ? rand_stream_below(&stream, (uint32_t)bytes.size) : 0);
        uint8_t *copy = malloc(size + 1);
        memcpy(copy, bytes.data, size);
        for (uint32_t i = rand_stream_below(&stream, 4); i > 0 && size > 0; i--)
            copy[rand_stream_below(&stream, (uint32_t)size)] = (uint8_t)rand_stream_below(&stream, 256);
        if (tokenizer_from_pieces(copy, size, NULL, &tokenizer, &err) == 0) {
            opened++;
            if (tokenizer_encode(tokenizer, text, sizeof(text) - 1, TOKENIZER_ADD_SPECIAL, &ids, &err) == 0)
                for (size_t i = 0; i < ids.count; i++)
                    assert_in_range(ids.data[i], 0, tokenizer_vocab(tokenizer) - 1);
        }
        ids_fini(&ids);
        tokenizer_destroy(tokenizer);
        free(copy);
    }
    assert_true(opened > 20);
    buf_fini(&bytes);
}

static void *encode_all(void *arg)
{
    const struct tokenizer *tokenizer = arg;
    json_t *cases = cases_load("smollm");
    for (size_t i = 0; i < json_array_size(cases); i++)
        expect_case(tokenizer, json_array_get(cases, i));
    json_decref(cases);
    return NULL;
}

static void several_threads_share_one_tokenizer(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = family_open("smollm");
    pthread_t threads[4];
    for (size_t i = 0; i < 4; i++)
        assert_int_equal(0, pthread_create(&threads[i], NULL, encode_all, tokenizer));
    for (size_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    tokenizer_destroy(tokenizer);
}

static void text_that_is_not_utf8_is_refused_with_its_place(void **state)
{
    (void)state;
    struct tokenizer *tokenizer = family_open("gpt2");
    static const char *const bad[] = {"abc\xff", "abc\xc0\x80", "abc\xed\xa0\x80", "abc\xf4\x90\x80\x80",
                                      "abc\xe2\x82"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err = {0};
        struct ids ids = {0};
        assert_int_equal(-1,
                         tokenizer_encode(tokenizer, bad[i], strlen(bad[i]), TOKENIZER_PLAIN, &ids, &err));
        assert_int_equal(ERR_INVALID, err.code);
        assert_non_null(strstr(err.text, "byte 3"));
        assert_int_equal(0, ids.count);
        ids_fini(&ids);
    }
    tokenizer_destroy(tokenizer);
}

static void special_tokens_can_be_taken_as_text(void **state)
{
    (void)state;
    struct err err = {0};
    struct ids ids = {0};
    struct tokenizer *tokenizer = family_open("smollm");
    const int32_t end = tokenizer_find(tokenizer, "<|im_end|>", 10);
    assert_true(end >= 0 && tokenizer_is_special(tokenizer, end));
    assert_int_equal(0, tokenizer_encode(tokenizer, "<|im_end|>", 10, TOKENIZER_PLAIN, &ids, &err));
    assert_int_equal(1, ids.count);
    assert_int_equal(end, ids.data[0]);
    ids.count = 0;
    assert_int_equal(0, tokenizer_encode(tokenizer, "<|im_end|>", 10, TOKENIZER_IGNORE_SPECIAL, &ids, &err));
    assert_true(ids.count > 1);
    ids_fini(&ids);
    tokenizer_destroy(tokenizer);
}

/* Llama 3's pre-tokeniser makes one piece of a run of letters, Gemma's makes one of the whole text. */
static void one_piece_of_a_million_bytes_is_merged_in_time(void **state)
{
    (void)state;
    static const char *const names[] = {"llama3", "gemma"};
    char *text = malloc(1 << 20);
    assert_non_null(text);
    for (size_t i = 0; i < 1 << 20; i++)
        text[i] = (char)('a' + (i * 7 + i / 26) % 26);
    for (size_t n = 0; n < 2; n++) {
        struct err err = {0};
        struct ids ids = {0};
        struct buf out = {.limit = 1 << 21};
        struct tokenizer *tokenizer = family_open(names[n]);
        assert_int_equal(0, tokenizer_encode(tokenizer, text, 1 << 20, TOKENIZER_PLAIN, &ids, &err));
        assert_int_equal(0, tokenizer_decode(tokenizer, ids.data, ids.count, false, &out, &err));
        assert_int_equal(1 << 20, out.size);
        assert_memory_equal(text, out.data, out.size);
        buf_fini(&out);
        ids_fini(&ids);
        tokenizer_destroy(tokenizer);
        memset(text, ' ', 1 << 19);
    }
    free(text);
}

static void an_id_outside_the_vocabulary_has_no_text(void **state)
{
    (void)state;
    struct err err = {0};
    struct buf out = {.limit = 1024};
    static const char *const names[] = {"gpt2", "llama2"};
    for (size_t i = 0; i < 2; i++) {
        struct tokenizer *tokenizer = family_open(names[i]);
        struct ids ids = {0};
        const int32_t beyond = (int32_t)tokenizer_vocab(tokenizer);
        assert_int_equal(0, tokenizer_encode(tokenizer, "ab", 2, 0, &ids, &err));
        assert_int_equal(0, ids_append(&ids, &beyond, 1, &err));
        assert_int_equal(0, tokenizer_decode(tokenizer, ids.data, ids.count, false, &out, &err));
        assert_string_equal("ab", buf_str(&out) + strspn(buf_str(&out), " "));
        buf_clear(&out);
        ids_fini(&ids);
        tokenizer_destroy(tokenizer);
    }
    buf_fini(&out);
}

/* ../shared/wild's cases of regular expressions and of Split give the ids of `tokenizers`. */
static void patterns_are_read_as_oniguruma_reads_them(void **state)
{
    (void)state;
    static const struct {
        const char *file, *text;
        int32_t ids[10];
        size_t count;
    } cases[] = {{"cl", "ab 12345 x", {261, 32, 259, 32, 120}, 5},
                 {"cl", "123456\n  \nab  ", {259, 54, 10, 263, 10, 261, 263}, 7},
                 {"cd", "ab\nab 12 \nab", {261, 10, 261, 32, 256, 32, 10, 261}, 8},
                 {"ri", "ab 12345 x", {261, 32, 257, 258, 32, 120}, 6},
                 {"pu", "ab, 12.x", {261, 44, 32, 49, 50, 46, 120}, 7}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        struct buf text = {.limit = 1 << 20};
        struct tokenizer *tokenizer = NULL;
        struct ids ids = {0};
        char path[512];
        snprintf(path, sizeof(path), MOTLEY_TEST_DATA "/wild/tokenizers/%s.json", cases[i].file);
        assert_int_equal(0, file_read_all(path, 1 << 20, &text, &err));
        assert_int_equal(0, tokenizer_from_json(buf_str(&text), text.size, NULL, 0, &tokenizer, &err));
        assert_int_equal(0, tokenizer_encode(tokenizer, cases[i].text, strlen(cases[i].text), TOKENIZER_PLAIN,
                                             &ids, &err));
        assert_int_equal(cases[i].count, ids.count);
        assert_memory_equal(cases[i].ids, ids.data, ids.count * sizeof(*ids.data));
        ids_fini(&ids);
        tokenizer_destroy(tokenizer);
        buf_fini(&text);
    }
}

/* Parts of tokenizer.json that Motley does not support are refused by name. */
static void unknown_parts_are_refused_by_name(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *named;
    } changes[] = {
        {"\"type\":\"BPE\"", "\"type\":\"Unigram\"", "Unigram"},
        {"\"type\":\"BPE\"", "\"type\":\"WordPiece\"", "WordPiece"},
        {"\"dropout\":null", "\"dropout\":0.1", "dropout"},
        {"\"type\":\"Digits\"", "\"type\":\"UnicodeScripts\"", "UnicodeScripts"},
        {"\"normalizer\":null", "\"normalizer\":{\"type\":\"Precompiled\"}", "Precompiled"},
        {"\"normalizer\":null",
         "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\X\"},\"content\":\"\"}", "\\X"},
        {"\"decoder\":{\"type\":\"ByteLevel\"", "\"decoder\":{\"type\":\"Wordy\"", "Wordy"},
        {"\"individual_digits\":true", "\"individual_digits\":null", "individual_digits"},
        {"\"individual_digits\":true", "\"individual_digit\":true", "individual_digits"},
        {"\"use_regex\":true", "\"use_regex\":null", "use_regex"},
        {"\"lstrip\":false", "\"lstrip\":null", "lstrip"},
        {"\"fuse_unk\":false", "\"fuse_unk\":0", "fuse_unk"},
    };
    struct buf text;
    file_load("smollm.json", &text);
    for (size_t i = 0; i < sizeof(changes) / sizeof(changes[0]); i++) {
        struct err err = {0};
        struct tokenizer *tokenizer = NULL;
        struct buf changed = {.limit = 1 << 20};
        const char *at = strstr(buf_str(&text), changes[i].from);
        if (!at)
            fail_msg("%s is not in the file", changes[i].from);
        buf_append(&changed, text.data, (size_t)(at - buf_str(&text)), &err);
        buf_text(&changed, changes[i].to, &err);
        buf_text(&changed, at + strlen(changes[i].from), &err);
        assert_int_equal(-1, tokenizer_from_json(buf_str(&changed), changed.size, NULL, 0, &tokenizer, &err));
        assert_true(err.code == ERR_UNSUPPORTED || err.code == ERR_INVALID);
        if (!strstr(err.text, changes[i].named))
            fail_msg("\"%s\" does not name %s", err.text, changes[i].named);
        buf_fini(&changed);
    }
    buf_fini(&text);
}

/* Any damage to the file gives an error with a text, or a tokenizer that works. */
static void damaged_files_give_errors_and_nothing_worse(void **state)
{
    (void)state;
    struct buf text;
    struct rand_stream random;
    int refused = 0;
    file_load("qwen2.json", &text);
    rand_stream_init(&random, 7, 1);
    char *copy = malloc(text.size + 1);
    assert_non_null(copy);
    for (int round = 0; round < 300; round++) {
        struct err err = {0};
        struct tokenizer *tokenizer = NULL;
        struct ids ids = {0};
        size_t size = text.size;
        memcpy(copy, text.data, size);
        if (round % 4 == 0)
            size = rand_stream_below(&random, (uint32_t)size);
        const uint32_t changes = 1 + rand_stream_below(&random, 4);
        for (uint32_t i = 0; i < changes && size > 0; i++) {
            static const char bytes[] = "\"{}[],:0195tfnu\\e \xc4\xa0";
            copy[rand_stream_below(&random, (uint32_t)size)] =
                bytes[rand_stream_below(&random, sizeof(bytes) - 1)];
        }
        if (tokenizer_from_json(copy, size, NULL, 0, &tokenizer, &err) < 0) {
            assert_true(err.code != ERR_NONE && err.text[0] != '\0');
            refused++;
        } else {
            assert_int_equal(0, tokenizer_encode(tokenizer, "some text 123\n <l> x", 20, 0, &ids, &err));
        }
        ids_fini(&ids);
        tokenizer_destroy(tokenizer);
    }
    assert_true(refused > 100);
    free(copy);
    buf_fini(&text);
}

/* Python's extensions of JSON are read; the template is found in a list by name, or as a single text. */
static void a_tokenizer_config_as_the_hub_has_it_is_read(void **state)
{
    (void)state;
    static const struct {
        const char *config, *template;
    } rows[] = {
        {"{\"model_max_length\": 1000000000000000019884624838656, \"x\": [NaN, Infinity, -Infinity], "
         "\"bos_token\": {\"__type\": \"AddedToken\", \"content\": \"<s>\"}, \"eos_token\": \"</s>\", "
         "\"chat_template\": \"alone\"}",
         "alone"},
        {"{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\", \"chat_template\": [{\"name\": \"tool_use\", "
         "\"template\": \"tools\"}, {\"name\": \"default\", \"template\": \"named\"}]}",
         "named"}};
    struct buf text;
    file_load("llama2.json", &text);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        struct err err = {0};
        struct tokenizer *tokenizer = NULL;
        if (tokenizer_from_json(buf_str(&text), text.size, rows[i].config, strlen(rows[i].config), &tokenizer,
                                &err) < 0) {
            fail_msg("%s", err.text);
        }
        assert_int_equal(1, tokenizer_bos(tokenizer));
        assert_int_equal(2, tokenizer_eos(tokenizer));
        assert_string_equal(rows[i].template, tokenizer_chat_template(tokenizer));
        tokenizer_destroy(tokenizer);
    }
    buf_fini(&text);
}

static void the_template_beside_the_tokenizer_comes_first(void **state)
{
    (void)state;
    static const char config[] = "{\"chat_template\": \"old\"}";
    static const char *const copied[] = {"golden/llama/config.json", "golden/llama/model.safetensors",
                                         "tokenizer/llama2.json"};
    static const char *const names[] = {"config.json", "model.safetensors", "tokenizer.json"};
    struct scratch scratch;
    struct err err = {0};
    struct model *model = NULL;
    struct tokenizer *tokenizer = NULL;
    assert_int_equal(0, scratch_make(&scratch));
    for (size_t i = 0; i < 3; i++) {
        char path[512];
        struct buf file = {.limit = 1 << 26};
        snprintf(path, sizeof(path), "%s/%s", MOTLEY_TEST_DATA, copied[i]);
        assert_int_equal(0, file_read_all(path, file.limit, &file, &err));
        assert_int_equal(
            0, file_write_atomic(scratch_path(&scratch, names[i]), file.data, file.size, 0600, &err));
        buf_fini(&file);
    }
    assert_int_equal(0, file_write_atomic(scratch_path(&scratch, "tokenizer_config.json"), config,
                                          sizeof(config) - 1, 0600, &err));
    assert_int_equal(0,
                     file_write_atomic(scratch_path(&scratch, "chat_template.jinja"), "new", 3, 0600, &err));
    if (model_open_path(scratch.dir, &model, &err) < 0 || tokenizer_open(model, &tokenizer, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal("new", tokenizer_chat_template(tokenizer));
    tokenizer_destroy(tokenizer);
    model_close(model);
    /* Without the one file that is read, the error says what to do. */
    assert_int_equal(0, unlink(scratch_path(&scratch, "tokenizer.json")));
    assert_int_equal(0, model_open_path(scratch.dir, &model, &err));
    assert_int_equal(-1, tokenizer_open(model, &tokenizer, &err));
    assert_non_null(strstr(err.text, "no tokenizer.json"));
    assert_non_null(strstr(err.text, "tokenizer.model"));
    assert_non_null(strstr(err.text, "save_pretrained"));
    model_close(model);
    /* A folder with a tokenizer.model is read from it, unless tokens are added to it. */
    struct buf pieces;
    read_data("pieces.model", &pieces);
    assert_int_equal(0, file_write_atomic(scratch_path(&scratch, "tokenizer.model"), pieces.data, pieces.size,
                                          0600, &err));
    assert_int_equal(0, model_open_path(scratch.dir, &model, &err));
    if (tokenizer_open(model, &tokenizer, &err) < 0)
        fail_msg("%s", err.text);
    assert_string_equal("new", tokenizer_chat_template(tokenizer));
    tokenizer_destroy(tokenizer);
    model_close(model);
    assert_int_equal(
        0, file_write_atomic(scratch_path(&scratch, "added_tokens.json"), "{\"x\": 560}", 10, 0600, &err));
    assert_int_equal(0, model_open_path(scratch.dir, &model, &err));
    assert_int_equal(-1, tokenizer_open(model, &tokenizer, &err));
    assert_non_null(strstr(err.text, "added_tokens.json adds"));
    buf_fini(&pieces);
    model_close(model);
    scratch_remove(&scratch);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_family_encodes_and_decodes_as_hugging_face_does),
        cmocka_unit_test(a_gguf_token_that_is_a_part_of_a_character_is_refused),
        cmocka_unit_test(scores_in_a_gguf_merge_as_sentencepiece_does),
        cmocka_unit_test(a_tokenizer_model_gives_the_ids_of_sentencepiece),
        cmocka_unit_test(what_a_tokenizer_model_has_that_is_not_done_is_named),
        cmocka_unit_test(mutated_tokenizer_models_do_no_harm),
        cmocka_unit_test(several_threads_share_one_tokenizer),
        cmocka_unit_test(text_that_is_not_utf8_is_refused_with_its_place),
        cmocka_unit_test(special_tokens_can_be_taken_as_text),
        cmocka_unit_test(one_piece_of_a_million_bytes_is_merged_in_time),
        cmocka_unit_test(an_id_outside_the_vocabulary_has_no_text),
        cmocka_unit_test(patterns_are_read_as_oniguruma_reads_them),
        cmocka_unit_test(unknown_parts_are_refused_by_name),
        cmocka_unit_test(damaged_files_give_errors_and_nothing_worse),
        cmocka_unit_test(a_tokenizer_config_as_the_hub_has_it_is_read),
        cmocka_unit_test(the_template_beside_the_tokenizer_comes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
