/* Tests that documents are read and written: JSON, YAML, msgpack frames, amounts with units. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/document.h"
#include "common/frame.h"
#include "common/json.h"
#include "common/rand.h"
#include "common/units.h"
#include "common/yaml.h"

static json_t *parse(const char *text)
{
    struct err err = {0};
    json_t *value = json_parse_limited(text, strlen(text), 8, &err);
    if (!value)
        fail_msg("%s: %s", text, err.text);
    return value;
}

static void bad_json_is_refused_with_its_place(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "",
        "{",
        "{\"a\":1,\"a\":2}",
        "[1,]",
        "{\"a\":NaN}",
        "[1] x",
        "\"\\u0000\"",
        "[\"\xff\"]",
        "[[[[[[[[[1]]]]]]]]]",
        "{'a':1}",
        "\xef\xbb\xbf{}",
        "[1,2",
        "nul",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err = {0};
        assert_null(json_parse_limited(bad[i], strlen(bad[i]), 8, &err));
        assert_int_equal(err.code, ERR_INVALID);
        assert_true(strlen(err.text) > 10);
    }
    static const char *const large[] = {"[1e999]", "[9223372036854775808]"};
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++) {
        struct err err = {0};
        assert_null(json_parse_limited(large[i], strlen(large[i]), 8, &err));
        assert_int_equal(err.code, ERR_TOO_BIG);
        assert_non_null(strstr(err.text, "line 1 column"));
    }
    /* Brackets inside texts are no nesting. */
    json_decref(parse("{\"deep\": [[[[[[1, \"]]]]]][[[[[[[\\\"\"]]]]]]}"));
}

static void readers_name_the_path_and_the_limit(void **state)
{
    (void)state;
    struct {
        const char *text;
        const char *want;
    } cases[] = {
        {"{\"train\":{\"batch_rows\":0}}", "train.batch_rows: must be 1 to 100, is 0"},
        {"{\"train\":{\"batch_rows\":\"x\"}}", "train.batch_rows: must be an integer, is a text"},
        {"{\"train\":{\"batch_rows\":1.5}}",
         "train.batch_rows: must be an integer, is a number with a fraction"},
        {"{\"train\":{\"batch_rows\":2,\"bach\":1}}",
         "train.bach: unknown key; known here: batch_rows, memory, list"},
        {"{\"train\":{}}", "train.batch_rows: is required"},
        {"{\"train\":[]}", "train: must be an object, is a list"},
        {"{\"train\":{\"batch_rows\":2,\"memory\":\"many\"}}",
         "train.memory: \"many\" is no amount of memory"},
        {"{\"train\":{\"batch_rows\":2,\"memory\":\"2GiB\"}}",
         "train.memory: must be 1 B to 1.00 GiB, is 2.00 GiB"},
        {"{\"train\":{\"batch_rows\":2,\"list\":[{\"a\":true},{\"a\":3}]}}",
         "train.list[1].a: must be true or false"},
        {"{\"train\":{\"batch_rows\":2,\"list\":[{},{},{}]}}",
         "train.list: must have 1 to 2 elements, has 3"},
        {"{\"train\":{\"batch_rows\":null}}", "train.batch_rows: is required"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        struct json_reader root, train;
        json_t *document = parse(cases[i].text);
        int64_t rows = 0;
        uint64_t memory = 0;
        const json_t *list = NULL;
        jr_init(&root, document, "", &err);
        jr_sub(&root, "train", JR_REQUIRED, &train);
        jr_i64(&train, "batch_rows", JR_REQUIRED, 1, 100, &rows);
        jr_bytes(&train, "memory", JR_OPTIONAL, 1, 1 << 30, &memory);
        if (jr_array(&train, "list", JR_OPTIONAL, 1, 2, &list) == 1) {
            for (size_t k = 0; k < json_array_size(list); k++) {
                struct json_reader item;
                bool a = false;
                jr_item(&train, "list", list, k, &item);
                jr_bool(&item, "a", JR_OPTIONAL, &a);
                jr_finish(&item); /* the readers of the parents report the item's error too */
            }
        }
        jr_finish(&train);
        int result = jr_finish(&root);
        assert_int_equal(result, -1);
        if (strstr(err.text, cases[i].want) != err.text)
            fail_msg("%s: \"%s\", wanted \"%s\"", cases[i].text, err.text, cases[i].want);
        json_decref(document);
    }
}

static void absent_and_null_leave_the_default(void **state)
{
    (void)state;
    struct err err = {0};
    struct json_reader root, sub;
    json_t *document = parse("{\"a\": null, \"rate\": \"1Gbit/s\", \"wait\": \"1h30m\", \"n\": 16.0}");
    int64_t a = 7, inner = 9, n = 0;
    double rate = 0, wait = 0;
    int choice = 1;
    static const char *const names[] = {"x", "y", NULL};
    jr_init(&root, document, "", &err);
    assert_int_equal(jr_i64(&root, "a", JR_OPTIONAL, 0, 10, &a), 0);
    assert_int_equal(jr_sub(&root, "sub", JR_OPTIONAL, &sub), 0);
    assert_int_equal(jr_i64(&sub, "inner", JR_OPTIONAL, 0, 10, &inner), 0);
    assert_int_equal(jr_rate(&root, "rate", JR_OPTIONAL, 0, 1e12, &rate), 1);
    assert_int_equal(jr_seconds(&root, "wait", JR_OPTIONAL, 0, 1e6, &wait), 1);
    assert_int_equal(jr_choice(&root, "choice", JR_OPTIONAL, names, &choice), 0);
    assert_int_equal(jr_i64(&root, "n", JR_OPTIONAL, 0, 100, &n), 1);
    assert_int_equal(jr_finish(&sub), 0);
    assert_int_equal(jr_finish(&root), 0);
    assert_true(a == 7 && inner == 9 && rate == 1.25e8 && wait == 5400 && choice == 1 && n == 16);
    json_decref(document);
}

static void yaml_means_the_same_as_json(void **state)
{
    (void)state;
    static const struct {
        const char *yaml, *json;
    } cases[] = {
        {"a: 1\nb: [x, 'y', \"z\"]\n", "{\"a\":1,\"b\":[\"x\",\"y\",\"z\"]}"},
        {"learning_rate: 2e-4\nx: 1.\ny: .5\nz: -3\n",
         "{\"learning_rate\":0.0002,\"x\":1.0,\"y\":0.5,\"z\":-3}"},
        {"no: no\nyes: on\nt: true\nn: null\nm: ~\ne:\n",
         "{\"no\":\"no\",\"yes\":\"on\",\"t\":true,\"n\":null,\"m\":null,\"e\":null}"},
        {"h: 0x10\no: 0o17\nt: 1_000\nv: 1.2.3\nd: 2024-01-02\n",
         "{\"h\":16,\"o\":15,\"t\":\"1_000\",\"v\":\"1.2.3\",\"d\":\"2024-01-02\"}"},
        {"memory: 450MiB   # a comment\nq: \"12\"\n", "{\"memory\":\"450MiB\",\"q\":\"12\"}"},
        {"a: |\n  one\n  two\n", "{\"a\":\"one\\ntwo\\n\"}"},
        {"{\"a\": {\"b\": [1, 2.5, \"\\u00e9\", null, false]}}",
         "{\"a\":{\"b\":[1,2.5,\"\xc3\xa9\",null,false]}}"},
        {"- {kind: cpu, threads: 1}\n- x\n", "[{\"kind\":\"cpu\",\"threads\":1},\"x\"]"},
        {"", "null"},
        {"!!str 12", "\"12\""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        json_t *got = yaml_parse(cases[i].yaml, strlen(cases[i].yaml), &err);
        if (!got)
            fail_msg("%s: %s", cases[i].yaml, err.text);
        json_t *want = parse(cases[i].json);
        if (!json_equal(got, want))
            fail_msg("%s became %s", cases[i].yaml, json_dumps(got, JSON_ENCODE_ANY));
        json_decref(got);
        json_decref(want);
    }
}

static void bad_yaml_is_refused_with_its_line(void **state)
{
    (void)state;
    static const char *const bad[] = {
        "a: 1\na: 2\n",
        "a: &x 1\nb: *x\n",
        "a: .inf\n",
        "a: .nan",
        "a: 1\n---\nb: 2\n",
        "a: [1\n",
        "? [1]\n: 2\n",
        "a: !!int 3\n",
        "a: \"x\\0y\"\n",
        "\ta: 1\n",
        "a: 1e999\n",
        "a: 010\n",
        "a: -007\n",
        "a: \"b\xc2\x85"
        "c\"\n",
        "a: b\xe2\x80\xa8"
        "c\n",
        "a: \xff\n",
        "{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{{",
        "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]]",
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err = {0};
        json_t *value = yaml_parse(bad[i], strlen(bad[i]), &err);
        if (value)
            fail_msg("accepted: %s", bad[i]);
        assert_true(err.code == ERR_INVALID || err.code == ERR_TOO_BIG);
        assert_non_null(strstr(err.text, "line "));
    }
}

static void a_file_is_json_by_its_ending_or_its_text(void **state)
{
    (void)state;
    static const struct {
        /* 'json' is the value and 'said' the error; one of them is NULL */
        const char *path, *text, *json, *said;
    } cases[] = {
        {"a.json", "{\"a\": \"x\\ud83d\\ude00\"}", "{\"a\": \"x\xf0\x9f\x98\x80\"}", NULL},
        {"a.yaml", "{\"a\": \"x\\ud83d\\ude00\"}", "{\"a\": \"x\xf0\x9f\x98\x80\"}", NULL},
        {"a.json", "{\"a\": \"x\xe2\x80\xa8y\xc2\x85z\"}", "{\"a\": \"x\xe2\x80\xa8y\xc2\x85z\"}", NULL},
        {"/dev/stdin", "{\"a\": \"x\xc2\x85z\"}", "{\"a\": \"x\xc2\x85z\"}", NULL},
        {"a.yaml",
         "\xef\xbb\xbf"
         "a: 1\n",
         "{\"a\": 1}", NULL},
        {"A.JSON", "\xef\xbb\xbf{\"a\": 1}", "{\"a\": 1}", NULL},
        {"a.yaml", "{a: 1, b: [1, 2,],}", "{\"a\": 1, \"b\": [1, 2]}", NULL},
        {"a.yaml", "{\"a\": 1, \"a\": 2}", NULL, "\"a\" appears twice"},
        {"a.json", "{\"a\": 1, \"a\": 2}", NULL, "duplicate object key near '\"a\"'"},
        {"a.json", "{\"a\": 1,}", NULL, "line 1 column 9"},
        {"a.json", "{\"a\": [1,\n ]}", NULL, "(a comma stands before it)"},
        {"a.json", "a: 1\n", NULL, "no valid JSON"},
        {"a.yaml", "# name: second\n", "{}", NULL},
        {"a.yaml", "", "{}", NULL},
        {"a.json", "", NULL, "no valid JSON"},
        {"a.json", "{\"a\": NaN}", NULL, "no valid JSON"},
        {"a.json", "{\"a\": \"\\ud83d\"}", NULL, "no valid JSON"},
        {"a.yaml", "a:\n\tb: 1\n", NULL, "a tab stands here"},
        {"a.yaml", "a: 1\nb: 010\n", NULL, "line 2 column 4: a number that begins with 0"},
        {"a.yaml", "a: 1\nb: x\xc2\x85\n", NULL, "line 2: U+0085"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        json_t *got = document_parse(cases[i].path, cases[i].text, strlen(cases[i].text), &err);
        json_t *want = cases[i].json ? parse(cases[i].json) : NULL;
        if ((got != NULL) != (want != NULL) || (want && !json_equal(got, want)) ||
            (!want && !strstr(err.text, cases[i].said))) {
            fail_msg("%s: %s: %s", cases[i].path, cases[i].text, err.text);
        }
        json_decref(got);
        json_decref(want);
    }
    static const struct {
        const char *bytes, *encoding;
        size_t size;
    } others[] = {{"\xff\xfe"
                   "a\0",
                   "UTF-16", 4},
                  {"\xfe\xff\0a", "UTF-16", 4},
                  {"{\0\"\0", "UTF-16", 4},
                  {"\0{\0\"", "UTF-16", 4},
                  {"\xff\xfe\0\0a\0\0\0", "UTF-32", 8},
                  {"\0\0\xfe\xff\0\0\0a", "UTF-32", 8},
                  {"{\0\0\0", "UTF-32", 4}};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct err err = {0};
        assert_null(document_parse("a.yaml", others[i].bytes, others[i].size, &err));
        assert_non_null(strstr(err.text, others[i].encoding));
    }
}

static void amounts_are_read_and_printed(void **state)
{
    (void)state;
    struct err err = {0};
    static const struct {
        const char *text;
        uint64_t bytes;
    } sizes[] = {{"0", 0},
                 {"1024", 1024},
                 {"450MiB", 471859200},
                 {"1.5GiB", 1610612736},
                 {"2GB", 2000000000},
                 {"2 KiB", 2048},
                 {"9007199254740993", 9007199254740993u}};
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        uint64_t bytes = 1;
        assert_int_equal(units_parse_bytes(sizes[i].text, &bytes, &err), 0);
        assert_true(bytes == sizes[i].bytes);
    }
    static const char *const bad[] = {"",    "-1",  "MiB",  "1.5",  "1XiB", "1MiB2",
                                      "inf", "nan", "0x10", "1e30", "1 2",  "9e18GB"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        uint64_t bytes;
        double number;
        assert_int_equal(units_parse_bytes(bad[i], &bytes, &err), -1);
        assert_int_equal(err.code, ERR_INVALID);
        if (strcmp(bad[i], "1.5") != 0 && strcmp(bad[i], "1e30") != 0)
            assert_int_equal(units_parse_rate(bad[i], &number, &err), -1);
    }
    double seconds;
    assert_int_equal(units_parse_seconds("1h30m", &seconds, &err), 0);
    assert_true(seconds == 5400);
    assert_int_equal(units_parse_seconds("250us", &seconds, &err), 0);
    assert_true(fabs(seconds - 250e-6) < 1e-12);
    assert_int_equal(units_parse_seconds("30m1h", &seconds, &err), -1);
    assert_int_equal(units_parse_seconds("1h30", &seconds, &err), -1);
    char out[32];
    assert_string_equal(units_bytes(out, 432013312), "412 MiB");
    assert_string_equal(units_bytes(out, 1023), "1023 B");
    assert_string_equal(units_seconds(out, 0.041), "41.0 ms");
    assert_string_equal(units_seconds(out, 11100), "3 h 05 m");
    assert_string_equal(units_duration(out, 7776000), "90d");
    assert_string_equal(units_duration(out, 5400.25), "1h30m250ms");
    assert_string_equal(units_duration(out, 0), "0s");
    assert_string_equal(units_rate(out, 1.25e8), "1.00 Gbit/s");
}

/* ---- frames ---- */

static json_t *random_document(struct rand_stream *random, int depth)
{
    uint32_t kind = rand_stream_below(random, depth > 4 ? 6 : 8);
    switch (kind) {
    case 0:
        return json_null();
    case 1:
        return json_boolean(rand_stream_below(random, 2));
    case 2:
        return json_integer((json_int_t)(rand_stream_u64(random) >> rand_stream_below(random, 64)));
    case 3:
        return json_integer((json_int_t)(~rand_stream_u64(random) >> rand_stream_below(random, 64)) * -1);
    case 4:
        return json_real(rand_stream_normal(random) * pow(10, (int)rand_stream_below(random, 40) - 20));
    case 5: {
        char text[400];
        size_t size = rand_stream_below(random, 3) == 0 ? rand_stream_below(random, 399)
                                                        : rand_stream_below(random, 20);
        for (size_t i = 0; i < size; i++)
            text[i] = (char)rand_stream_below(random, 128);
        return json_stringn(text, size);
    }
    case 6: {
        json_t *array = json_array();
        for (uint32_t i = rand_stream_below(random, 20); i > 0; i--)
            json_array_append_new(array, random_document(random, depth + 1));
        return array;
    }
    default: {
        json_t *object = json_object();
        for (uint32_t i = rand_stream_below(random, 20); i > 0; i--) {
            char key[16];
            snprintf(key, sizeof(key), "k%u", rand_stream_u32(random));
            json_object_set_new(object, key, random_document(random, depth + 1));
        }
        return object;
    }
    }
}

static void frames_carry_any_document_unchanged(void **state)
{
    (void)state;
    struct rand_stream random;
    rand_stream_init(&random, 20260101, 1);
    for (int i = 0; i < 400; i++) {
        struct err err = {0};
        struct buf bytes;
        buf_init(&bytes, 1 << 20);
        json_t *document = random_document(&random, 0);
        assert_int_equal(frame_put(document, &bytes, &err), 0);
        json_t *back = NULL;
        size_t used = 0;
        for (size_t cut = 0; cut < bytes.size; cut += 1 + bytes.size / 7)
            assert_int_equal(frame_take(bytes.data, cut, &frame_limits_default, &back, &used, &err), 0);
        assert_int_equal(frame_take(bytes.data, bytes.size, &frame_limits_default, &back, &used, &err), 1);
        assert_int_equal(used, bytes.size);
        assert_true(json_equal(document, back));
        json_decref(document);
        json_decref(back);
        buf_fini(&bytes);
    }
}

static void damaged_frames_are_refused_or_are_documents(void **state)
{
    (void)state;
    struct rand_stream random;
    rand_stream_init(&random, 20260101, 2);
    for (int i = 0; i < 3000; i++) {
        struct err err = {0};
        struct buf bytes;
        buf_init(&bytes, 1 << 20);
        json_t *document = random_document(&random, 2);
        assert_int_equal(frame_encode(document, &bytes, &err), 0);
        for (uint32_t hits = 1 + rand_stream_below(&random, 4); hits > 0 && bytes.size > 0; hits--)
            bytes.data[rand_stream_below(&random, (uint32_t)bytes.size)] = (uint8_t)rand_stream_u32(&random);
        size_t size =
            rand_stream_below(&random, 2) ? bytes.size : rand_stream_below(&random, (uint32_t)bytes.size + 1);
        json_t *back = frame_decode(bytes.data, size, &frame_limits_default, &err);
        assert_true(back || err.code == ERR_CORRUPT || err.code == ERR_TOO_BIG);
        json_decref(back);
        json_decref(document);
        buf_fini(&bytes);
    }
}

static void lying_frames_take_no_memory(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t size;
        enum err_code code;
    } bad[] = {
        {"\xdd\xff\xff\xff\xff", 5, ERR_CORRUPT},      /* a list of 2^32 - 1 entries */
        {"\xdf\xff\xff\xff\xff\xa1x", 7, ERR_CORRUPT}, /* a map of 2^32 - 1 entries */
        {"\xdb\x7f\xff\xff\xff", 5, ERR_CORRUPT},      /* a text of 2 GiB */
        {"\xc4\x01x", 3, ERR_CORRUPT},                 /* a value of the type "binary" */
        {"\xc7\x01\x05x", 4, ERR_CORRUPT},             /* a value of the type "extension" */
        {"\xcf\xff\xff\xff\xff\xff\xff\xff\xff", 9, ERR_CORRUPT},
        {"\xcb\x7f\xf0\0\0\0\0\0\0", 9, ERR_CORRUPT}, /* the number infinity */
        {"\xca\x7f\xc0\0\0", 5, ERR_CORRUPT},         /* the number NaN */
        {"\x81\x01\x01", 3, ERR_CORRUPT},             /* a key that is a number */
        {"\x82\xa1x\x01\xa1x\x02", 7, ERR_CORRUPT},   /* a key that occurs twice */
        {"\xa1\xff", 2, ERR_CORRUPT},                 /* a text of invalid UTF-8 */
        {"\x01\x01", 2, ERR_CORRUPT},                 /* bytes behind the document */
        {"", 0, ERR_CORRUPT},
    };
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct err err = {0};
        assert_null(frame_decode(bad[i].bytes, bad[i].size, &frame_limits_default, &err));
        assert_int_equal(err.code, bad[i].code);
    }
    struct err err = {0};
    uint8_t deep[100];
    memset(deep, 0x91, sizeof(deep));
    assert_null(frame_decode(deep, sizeof(deep), &frame_limits_default, &err));
    assert_int_equal(err.code, ERR_TOO_BIG);
    json_t *out = NULL;
    size_t used;
    assert_int_equal(frame_take("\xff\xff\xff\xff", 4, &frame_limits_default, &out, &used, &err), -1);
    assert_int_equal(err.code, ERR_TOO_BIG);
    const struct frame_limits few = {.bytes_max = 1000, .depth_max = 4, .count_max = 10};
    uint8_t many[40] = {0xdc, 0, 30};
    assert_null(frame_decode(many, 33, &few, &err));
    assert_int_equal(err.code, ERR_TOO_BIG);
}

static void sockets_carry_frames_and_say_how_they_ended(void **state)
{
    (void)state;
    struct err err = {0};
    int pair[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
    uint64_t soon = clock_mono_ns() + 5000000000u;
    json_t *document = parse("{\"type\":\"assign\",\"run\":1}");
    json_t *back = NULL;
    assert_int_equal(frame_send(pair[0], document, soon, &err), 0);
    assert_int_equal(frame_recv(pair[1], &frame_limits_default, soon, &back, &err), 0);
    assert_true(json_equal(document, back));
    json_decref(back);
    assert_int_equal(frame_recv(pair[1], &frame_limits_default, clock_mono_ns() + 20000000, &back, &err), -1);
    assert_int_equal(err.code, ERR_TIMEOUT);
    assert_int_equal(write(pair[0], "\0\0\0\x20\x81", 5), 5);
    close(pair[0]);
    assert_int_equal(frame_recv(pair[1], &frame_limits_default, soon, &back, &err), -1);
    assert_int_equal(err.code, ERR_NET);
    assert_non_null(strstr(err.text, "inside a frame"));
    close(pair[1]);
    json_decref(document);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bad_json_is_refused_with_its_place),
        cmocka_unit_test(readers_name_the_path_and_the_limit),
        cmocka_unit_test(absent_and_null_leave_the_default),
        cmocka_unit_test(yaml_means_the_same_as_json),
        cmocka_unit_test(bad_yaml_is_refused_with_its_line),
        cmocka_unit_test(a_file_is_json_by_its_ending_or_its_text),
        cmocka_unit_test(amounts_are_read_and_printed),
        cmocka_unit_test(frames_carry_any_document_unchanged),
        cmocka_unit_test(damaged_frames_are_refused_or_are_documents),
        cmocka_unit_test(lying_frames_take_no_memory),
        cmocka_unit_test(sockets_carry_frames_and_say_how_they_ended),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
