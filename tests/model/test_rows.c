/* Tests datasets: which tokens are learnt, what is cut, dropped or refused, and the binary form. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"
#include "common/file.h"
#include "common/rand.h"
#include "model/rows/rows.h"

/* A small SmolLM-like tokenizer with a ChatML template. */
struct fixture {
    struct tokenizer *tokenizer;
    struct chat_template *chat;
    struct rows_options options;
    int32_t end;
};

static const char config[] =
    "{\"eos_token\": \"<|im_end|>\", \"bos_token\": {\"__type\": \"AddedToken\", \"content\": "
    "\"<|im_start|>\"}, \"chat_template\": "
    "\"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ "
    "'<|im_start|>system\\nBe kind.<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + "
    "message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ "
    "'<|im_start|>assistant\\n' }}{% endif %}\"}";

static int setup(void **state)
{
    static struct fixture f;
    struct err err = {0};
    struct buf text = {.limit = 1 << 20};
    const struct spec_data_part data = {.sequence_tokens = 512};
    if (file_read_all(MOTLEY_TEST_DATA "/tokenizer/smollm.json", 1 << 20, &text, &err) < 0 ||
        tokenizer_from_json(buf_str(&text), text.size, config, sizeof(config) - 1, &f.tokenizer, &err) < 0 ||
        rows_options_from_spec(&data, f.tokenizer, tokenizer_vocab(f.tokenizer), &f.options, &f.chat, &err) <
            0) {
        fprintf(stderr, "%s\n", err.text);
        return -1;
    }
    buf_fini(&text);
    f.end = tokenizer_eos(f.tokenizer);
    *state = &f;
    return f.end >= 0 ? 0 : -1;
}

static int teardown(void **state)
{
    struct fixture *f = *state;
    tokenizer_destroy(f->tokenizer);
    chat_template_destroy(f->chat);
    return 0;
}

static struct rows *encode(const struct rows_options *options, const char *text, struct rows_report *report)
{
    struct err err = {0};
    struct rows *rows = NULL;
    if (rows_encode(text, strlen(text), options, &rows, report, &err) < 0)
        fail_msg("%s: %s", text, err.text);
    return rows;
}

/* Opens a tokenizer of another family, with a template of tests/data/chat. */
static void fixture_open(struct fixture *f, const char *family, const char *template)
{
    struct err err = {0};
    struct buf text = {.limit = 1 << 20};
    struct buf jinja = {.limit = 1 << 20};
    char path[512];
    static const char specials[] = "{\"bos_token\": \"<s>\", \"eos_token\": \"</s>\"}";
    const struct spec_data_part data = {.sequence_tokens = 512};
    snprintf(path, sizeof(path), "%s/tokenizer/%s.json", MOTLEY_TEST_DATA, family);
    assert_int_equal(0, file_read_all(path, 1 << 20, &text, &err));
    snprintf(path, sizeof(path), "%s/chat/%s.jinja", MOTLEY_TEST_DATA, template);
    assert_int_equal(0, file_read_all(path, 1 << 20, &jinja, &err));
    assert_int_equal(0, tokenizer_from_json(buf_str(&text), text.size, specials, sizeof(specials) - 1,
                                            &f->tokenizer, &err));
    assert_int_equal(0, tokenizer_give_template(f->tokenizer, buf_str(&jinja), &err));
    assert_int_equal(0, rows_options_from_spec(&data, f->tokenizer, tokenizer_vocab(f->tokenizer),
                                               &f->options, &f->chat, &err));
    buf_fini(&text);
    buf_fini(&jinja);
}

/* Returns the text of a row's learnt labels, or of all its ids. */
static const char *text_of(const struct fixture *f, const struct rows *rows, uint32_t row, bool learnt,
                           struct buf *out)
{
    struct err err = {0};
    struct ids ids = {0};
    buf_clear(out);
    for (uint64_t i = rows->offset[row]; i < rows->offset[row + 1]; i++) {
        if (!learnt || rows->labels[i] != ROWS_IGNORE) {
            const int32_t id = learnt ? rows->labels[i] : rows->ids[i];
            assert_int_equal(0, ids_append(&ids, &id, 1, &err));
        }
    }
    assert_int_equal(0, tokenizer_decode(f->tokenizer, ids.data, ids.count, false, out, &err));
    ids_fini(&ids);
    return buf_str(out);
}

static void an_alpaca_row_learns_its_answer_and_the_end(void **state)
{
    const struct fixture *f = *state;
    struct rows_report report;
    struct buf out = {.limit = 65536};
    struct rows *rows = encode(&f->options,
                               "{\"instruction\":\"Add.\",\"input\":\"1 2\",\"output\":\"3\",\"id\":7}\n\n"
                               "{\"instruction\":\"Hi\",\"input\":null,\"output\":\"Hello.\"}\r\n",
                               &report);
    assert_int_equal(SPEC_FORMAT_ALPACA, report.format);
    assert_int_equal(2, rows->count);
    assert_string_equal("3<|im_end|>", text_of(f, rows, 0, true, &out));
    assert_string_equal(
        "Below is an instruction that describes a task, paired with an input that provides further "
        "context. Write a response that appropriately completes the request.\n\n### Instruction:\nAdd."
        "\n\n### Input:\n1 2\n\n### Response:\n3<|im_end|>",
        text_of(f, rows, 0, false, &out));
    assert_string_equal("Hello.<|im_end|>", text_of(f, rows, 1, true, &out));
    assert_int_equal(report.tokens, rows->offset[2]);
    rows_destroy(rows);
    struct rows_options all = f->options;
    all.learn = SPEC_LEARN_ALL;
    rows = encode(&all, "{\"instruction\":\"Hi\",\"output\":\"Hello.\"}", &report);
    assert_int_equal(report.tokens - 1, report.labelled_tokens);
    rows_destroy(rows);
    buf_fini(&out);
}

/* SentencePiece writes spaces as U+2581 and puts one before each part, so places, not the bytes of tokens,
 * decide what is learnt. The space before an answer belongs to its first token. */
static void a_chat_row_of_a_sentencepiece_model_learns_the_same(void **state)
{
    (void)state;
    static const struct {
        const char *family, *template, *learnt, *all;
    } cases[] = {
        {"llama2", "llama2", "The caf\xc3\xa9 \xf0\x9f\xa7\xbf </s> No. </s>",
         "<s> [INST] Hi there [/INST] The caf\xc3\xa9 \xf0\x9f\xa7\xbf </s><s> [INST] And? [/INST] No. </s>"},
        {"mistral", "mistral-v0.3", "The caf\xc3\xa9 \xf0\x9f\xa7\xbf</s> No.</s>",
         "<s>[INST] Hi there[/INST] The caf\xc3\xa9 \xf0\x9f\xa7\xbf</s>[INST] And?[/INST] No.</s>"},
        {"gemma", "gemma2", "The caf\xc3\xa9 \xf0\x9f\xa7\xbf<end_of_turn>No.<end_of_turn>",
         "<s><start_of_turn>user\nHi there<end_of_turn>\n<start_of_turn>model\nThe caf\xc3\xa9 "
         "\xf0\x9f\xa7\xbf<end_of_turn>\n<start_of_turn>user\nAnd?<end_of_turn>\n<start_of_turn>model\nNo."
         "<end_of_turn>\n"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct fixture f = {0};
        struct rows_report report;
        struct buf out = {.limit = 65536};
        fixture_open(&f, cases[i].family, cases[i].template);
        struct rows *rows =
            encode(&f.options,
                   "{\"messages\":[{\"role\":\"user\",\"content\":\"Hi there\"},"
                   "{\"role\":\"assistant\",\"content\":\"The caf\xc3\xa9 \xf0\x9f\xa7\xbf\"},"
                   "{\"role\":\"user\",\"content\":\"And?\"},"
                   "{\"role\":\"assistant\",\"content\":\"No.\"}]}",
                   &report);
        assert_string_equal(cases[i].all, text_of(&f, rows, 0, false, &out));
        assert_string_equal(cases[i].learnt, text_of(&f, rows, 0, true, &out));
        rows_destroy(rows);
        buf_fini(&out);
        chat_template_destroy(f.chat);
        tokenizer_destroy(f.tokenizer);
    }
}

static void a_chat_row_learns_every_assistant_turn_and_its_end(void **state)
{
    const struct fixture *f = *state;
    struct rows_report report;
    struct buf out = {.limit = 65536};
    static const char row[] =
        "{\"messages\":[{\"role\":\"user\",\"content\":\"a?\"},{\"role\":\"assistant\",\"content\":\"b!\"},"
        "{\"role\":\"user\",\"content\":\"c?\"},{\"role\":\"assistant\",\"content\":\" d.\"}]}";
    struct rows *rows = encode(&f->options, row, &report);
    assert_string_equal("b!<|im_end|> d.<|im_end|>", text_of(f, rows, 0, true, &out));
    assert_string_equal(
        "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\na?<|im_end|>\n<|im_start|>assistant"
        "\nb!<|im_end|>\n<|im_start|>user\nc?<|im_end|>\n<|im_start|>assistant\n d.<|im_end|>\n",
        text_of(f, rows, 0, false, &out));
    rows_destroy(rows);
    buf_fini(&out);
}

static void text_and_token_rows_learn_what_they_say(void **state)
{
    const struct fixture *f = *state;
    struct rows_report report;
    struct buf out = {.limit = 65536};
    struct rows *rows = encode(&f->options, "{\"text\":\"plain words\"}", &report);
    assert_string_equal("plain words<|im_end|>", text_of(f, rows, 0, false, &out));
    assert_int_equal(report.tokens - 1, report.labelled_tokens);
    rows_destroy(rows);
    /* Token 0 is a label like any other; the first label can never be learnt. */
    rows = encode(&f->options, "{\"ids\":[5,0,7],\"labels\":[5,0,-100]}", &report);
    assert_int_equal(1, report.labelled_tokens);
    const int32_t wanted[3] = {ROWS_IGNORE, 0, ROWS_IGNORE};
    assert_memory_equal(wanted, rows->labels, sizeof(wanted));
    rows_destroy(rows);
    buf_fini(&out);
}

static void long_rows_are_cut_and_rows_with_nothing_left_are_dropped(void **state)
{
    const struct fixture *f = *state;
    struct rows_report report;
    struct rows_options options = f->options;
    options.sequence_tokens = 3;
    struct rows *rows =
        encode(&options,
               "{\"ids\":[1,2,3,4],\"labels\":[1,2,3,4]}\n{\"ids\":[1,2,3,4],\"labels\":[-100,-100,-100,4]}\n"
               "{\"ids\":[9],\"labels\":[9]}\n{\"ids\":[1,2,3],\"labels\":[1,2,3]}\n",
               &report);
    assert_int_equal(2, report.rows);
    assert_int_equal(1, report.truncated);
    assert_int_equal(1, report.first_truncated_line);
    assert_int_equal(2, report.dropped);
    assert_int_equal(2, report.first_dropped_line);
    assert_int_equal(3, report.longest);
    assert_int_equal(6, report.tokens);
    assert_int_equal(4, report.labelled_tokens);
    rows_destroy(rows);
}

static void a_bad_row_is_refused_with_line_and_reason(void **state)
{
    const struct fixture *f = *state;
    static const struct {
        const char *text, *line, *reason;
    } cases[] = {
        {"{\"text\":\"a\"}\n[1]\n", "line 2", "object"},
        {"{\"text\":\"a\"}\n\n{\"text\":1}\n", "line 3", "text"},
        {"{\"text\":\"a\"}\n{\"instruction\":\"a\",\"output\":\"b\"}\n", "line 2", "text"},
        {"{\"prompt\":\"a\"}\n", "line 1", "instruction"},
        {"{\"instruction\":\"a\"}\n", "line 1", "output"},
        {"{\"instruction\":\"a\",\"input\":3,\"output\":\"b\"}\n", "line 1", "input"},
        {"{\"text\":\"a\"\n", "line 1", ""},
        {"{\"text\":\"\xff\"}\n", "line 1", "UTF-8"},
        {"{\"messages\":[]}\n", "line 1", "messages"},
        {"{\"messages\":[{\"role\":\"gpt\",\"content\":\"x\"}]}\n", "line 1", "gpt"},
        {"{\"messages\":[{\"role\":\"user\"}]}\n", "line 1", "undefined: \"content\""},
        {"{\"ids\":[1,2],\"labels\":[1]}\n", "line 1", "labels"},
        {"{\"ids\":[1,99999],\"labels\":[1,2]}\n", "line 1", "ids[1]"},
        {"{\"ids\":[1,-1],\"labels\":[1,2]}\n", "line 1", "ids[1]"},
        {"{\"ids\":[1,2],\"labels\":[1,-5]}\n", "line 1", "labels[1]"},
        {"{\"ids\":[1,2.5],\"labels\":[1,2]}\n", "line 1", "ids[1]"},
        {"", "no rows", ""},
        {"\n \n", "no rows", ""},
        {"{\"ids\":[1],\"labels\":[1]}\n", "no row is left", "(the longest has 1 tokens)"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        struct rows *rows = NULL;
        struct rows_report report;
        if (rows_encode(cases[i].text, strlen(cases[i].text), &f->options, &rows, &report, &err) == 0)
            fail_msg("accepted: %s", cases[i].text);
        if (err.code != ERR_INVALID || !strstr(err.text, cases[i].line) || !strstr(err.text, cases[i].reason))
            fail_msg("%s: %s", cases[i].text, err.text);
    }
}

static void a_row_of_ten_megabytes_is_refused_by_its_size(void **state)
{
    const struct fixture *f = *state;
    const size_t size = 10 << 20;
    struct err err = {0};
    struct rows *rows = NULL;
    struct rows_report report;
    char *text = malloc(size);
    assert_non_null(text);
    memset(text, 'x', size);
    memcpy(text, "{\"text\":\"", 9);
    memcpy(text + size - 3, "\"}\n", 3);
    assert_int_equal(-1, rows_encode(text, size, &f->options, &rows, &report, &err));
    assert_int_equal(ERR_TOO_BIG, err.code);
    assert_non_null(strstr(err.text, "line 1"));
    free(text);
}

static void without_a_tokenizer_only_token_rows_are_taken(void **state)
{
    const struct fixture *f = *state;
    struct err err = {0};
    struct rows *rows = NULL;
    struct rows_report report;
    struct rows_options options = f->options;
    options.tokenizer = NULL;
    assert_int_equal(-1, rows_encode("{\"text\":\"a\"}", 12, &options, &rows, &report, &err));
    assert_non_null(strstr(err.text, "no tokenizer"));
    rows = encode(&options, "{\"ids\":[1,2],\"labels\":[1,2]}", &report);
    rows_destroy(rows);
}

static void chat_rows_without_a_known_template_say_how_to_give_one(void **state)
{
    const struct fixture *f = *state;
    struct err err = {0};
    struct rows *rows = NULL;
    struct rows_report report;
    struct rows_options options = f->options;
    static const char row[] = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\"}]}";
    options.chat = NULL;
    err_set(&options.chat_error, ERR_UNSUPPORTED, "give one as data.chat_template");
    assert_int_equal(-1, rows_encode(row, strlen(row), &options, &rows, &report, &err));
    assert_int_equal(ERR_UNSUPPORTED, err.code);
    assert_non_null(strstr(err.text, "data.chat_template"));
}

static struct rows *some_rows(const struct fixture *f, struct buf *file)
{
    struct err err = {0};
    struct rows_report report;
    struct rows *rows =
        encode(&f->options,
               "{\"ids\":[1,2,3,4],\"labels\":[-100,2,3,4]}\n{\"ids\":[5,0],\"labels\":[-100,0]}\n"
               "{\"ids\":[7,8,9],\"labels\":[-100,-100,9]}\n",
               &report);
    *file = (struct buf){.limit = 1 << 20};
    assert_int_equal(0, rows_save(rows, file, &err));
    return rows;
}

static void saved_rows_are_loaded_as_they_were(void **state)
{
    const struct fixture *f = *state;
    struct err err = {0};
    struct buf file;
    struct rows *loaded = NULL;
    struct row_size sizes[3];
    struct rows_histogram histogram;
    struct rows *rows = some_rows(f, &file);
    assert_int_equal(0, rows_load(file.data, file.size, 480, &loaded, &err));
    assert_int_equal(3, loaded->count);
    assert_memory_equal(rows->offset, loaded->offset, 4 * sizeof(uint64_t));
    assert_memory_equal(rows->ids, loaded->ids, 9 * sizeof(int32_t));
    assert_memory_equal(rows->labels, loaded->labels, 9 * sizeof(int32_t));
    rows_sizes(loaded, sizes);
    assert_true(sizes[0].tokens == 4 && sizes[0].labelled == 3 && sizes[2].labelled == 1);
    rows_histogram(loaded, &histogram);
    assert_true(histogram.rows == 3 && histogram.tokens == 9 && histogram.labelled == 5 &&
                histogram.sum_sq == 29 && histogram.longest == 4 && histogram.count[2] == 1 &&
                histogram.count[4] == 1);
    rows_destroy(rows);
    rows_destroy(loaded);
    buf_fini(&file);
}

/* A changed file whose hash was recomputed is still checked value by value. */
static void damaged_files_of_rows_are_refused(void **state)
{
    const struct fixture *f = *state;
    struct buf file;
    struct rand_stream random;
    struct rows *rows = some_rows(f, &file);
    rows_destroy(rows);
    rand_stream_init(&random, 5, 5);
    uint8_t *copy = malloc(file.size);
    assert_non_null(copy);
    int loaded_count = 0;
    for (int round = 0; round < 3000; round++) {
        struct err err = {0};
        struct rows *loaded = NULL;
        memcpy(copy, file.data, file.size);
        size_t size = file.size;
        const bool fit = round % 2 == 0;
        if (round % 7 == 0)
            size = rand_stream_below(&random, (uint32_t)size);
        if (size > 0) {
            copy[rand_stream_below(&random, (uint32_t)size)] ^=
                (uint8_t)(1 + rand_stream_below(&random, 255));
        }
        if (fit && size > DIGEST_SIZE)
            assert_int_equal(0, digest_sha256(copy, size - DIGEST_SIZE, copy + size - DIGEST_SIZE, &err));
        if (rows_load(copy, size, 480, &loaded, &err) < 0) {
            assert_true((err.code == ERR_CORRUPT || err.code == ERR_UNSUPPORTED) && err.text[0] != '\0');
        } else {
            assert_true(fit); /* the byte changed an id or label to another within range */
            loaded_count++;
            rows_destroy(loaded);
        }
    }
    assert_true(loaded_count < 1000);
    struct err err = {0};
    struct rows *loaded = NULL;
    /* the vocabulary is that of another model */
    assert_int_equal(-1, rows_load(file.data, file.size, 8, &loaded, &err));
    free(copy);
    buf_fini(&file);
}

static void damaged_datasets_give_errors_and_nothing_worse(void **state)
{
    const struct fixture *f = *state;
    static const char text[] = "{\"instruction\":\"a\",\"input\":\"\",\"output\":\"b\"}\n{\"instruction\":"
                               "\"c d\",\"output\":\"e\"}\n"
                               "{\"instruction\":\"\\u00e9\",\"input\":\"x\",\"output\":\"y\\n\"}\n";
    struct rand_stream random;
    char copy[sizeof(text)];
    rand_stream_init(&random, 6, 6);
    for (int round = 0; round < 3000; round++) {
        struct err err = {0};
        struct rows *rows = NULL;
        struct rows_report report;
        memcpy(copy, text, sizeof(text));
        for (uint32_t i = rand_stream_below(&random, 3) + 1; i > 0; i--)
            copy[rand_stream_below(&random, sizeof(text) - 1)] = (char)rand_stream_below(&random, 256);
        if (rows_encode(copy, sizeof(text) - 1, &f->options, &rows, &report, &err) < 0)
            assert_true(err.code != ERR_NONE && err.text[0] != '\0');
        rows_destroy(rows);
    }
}

static void a_tokenizer_larger_than_the_model_is_caught(void **state)
{
    const struct fixture *f = *state;
    struct err err = {0};
    struct rows *rows = NULL;
    struct rows_report report;
    struct ids ids = {0};
    struct rows_options options = f->options;
    options.vocab = 10;
    assert_int_equal(-1, rows_encode("{\"text\":\"words\"}", 16, &options, &rows, &report, &err));
    assert_non_null(strstr(err.text, "line 1"));
    assert_non_null(strstr(err.text, "10 tokens"));
    assert_int_equal(-1, rows_render_prompt("words", SPEC_FORMAT_TEXT, &options, &ids, &err));
    assert_int_equal(0, ids.count);
    ids_fini(&ids);
}

static void a_prompt_is_rendered_as_the_rows_are(void **state)
{
    const struct fixture *f = *state;
    struct err err = {0};
    struct buf out = {.limit = 65536};
    static const struct {
        enum spec_format format;
        const char *text;
    } cases[] = {
        {SPEC_FORMAT_ALPACA,
         "Below is an instruction that describes a task. Write a response that appropriately completes "
         "the request.\n\n### Instruction:\nHi\n\n### Response:\n"},
        {SPEC_FORMAT_CHAT,
         "<|im_start|>system\nBe kind.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"},
        {SPEC_FORMAT_TEXT, "Hi"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ids ids = {0};
        buf_clear(&out);
        assert_int_equal(0, rows_render_prompt("Hi", cases[i].format, &f->options, &ids, &err));
        assert_int_equal(0, tokenizer_decode(f->tokenizer, ids.data, ids.count, false, &out, &err));
        assert_string_equal(cases[i].text, buf_str(&out));
        ids_fini(&ids);
    }
    buf_fini(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_alpaca_row_learns_its_answer_and_the_end),
        cmocka_unit_test(a_chat_row_of_a_sentencepiece_model_learns_the_same),
        cmocka_unit_test(a_chat_row_learns_every_assistant_turn_and_its_end),
        cmocka_unit_test(text_and_token_rows_learn_what_they_say),
        cmocka_unit_test(long_rows_are_cut_and_rows_with_nothing_left_are_dropped),
        cmocka_unit_test(a_bad_row_is_refused_with_line_and_reason),
        cmocka_unit_test(a_row_of_ten_megabytes_is_refused_by_its_size),
        cmocka_unit_test(without_a_tokenizer_only_token_rows_are_taken),
        cmocka_unit_test(chat_rows_without_a_known_template_say_how_to_give_one),
        cmocka_unit_test(saved_rows_are_loaded_as_they_were),
        cmocka_unit_test(damaged_files_of_rows_are_refused),
        cmocka_unit_test(damaged_datasets_give_errors_and_nothing_worse),
        cmocka_unit_test(a_tokenizer_larger_than_the_model_is_caught),
        cmocka_unit_test(a_prompt_is_rendered_as_the_rows_are),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
