/* Tests described documents (common/doc.h): every kind of member with its limits and default, null, lists,
 * forms, rules, writing, adopting another reading, and the schema. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/doc.h"

enum colour { RED, GREEN, BLUE };
static const char *const colours[] = {"red", "green", "blue", NULL};
static const char *const moods[] = {NULL, "calm", "loud", NULL}; /* in front: null */

struct item {
    int32_t low;
    char *name;
};

struct sample {
    int8_t small;
    uint16_t port;
    uint64_t bytes, rows;
    int64_t big;
    double ratio, seconds, rate;
    bool on, has_part;
    enum colour colour;
    int mood;
    char *owned;
    const char *view;
    char chars[8];
    json_t *copy;
    const json_t *look;
    int32_t pair[2];
    struct item part, same;
    int32_t inner;
    uint32_t item_count;
    struct item *items;
};

static int forms_alive;

static int pair_start(void *at, struct err *err)
{
    (void)err;
    ((int32_t *)at)[0] = 1;
    forms_alive++;
    return 0;
}

static int pair_read(struct json_reader *r, const struct doc_field *field, void *at)
{
    const json_t *list = NULL;
    int got = jr_array(r, field->key, JR_OPTIONAL, 2, 2, &list);
    for (size_t i = 0; i < json_array_size(list); i++)
        ((int32_t *)at)[i] = (int32_t)json_integer_value(json_array_get(list, i));
    return got;
}

static int pair_write(const struct doc_field *field, const void *at, json_t *object)
{
    const int32_t *pair = at;
    return json_object_set_new(object, field->key, json_pack("[i,i]", pair[0], pair[1]));
}

static void pair_fini(void *at)
{
    forms_alive -= ((int32_t *)at)[0] != 0;
}

static void name_rule(struct json_reader *r, const struct doc_field *field, void *all)
{
    const struct item *item = all;
    if (strcmp(item->name, "bad") == 0)
        jr_fail(r, field->key, "is bad");
}

static void ratio_check(struct json_reader *r, void *all)
{
    const struct sample *sample = all;
    if (sample->ratio > 0.5 && sample->colour == BLUE)
        jr_fail(r, "ratio", "is too much for blue");
}

static const struct doc_form pair_form = {pair_start, pair_read, pair_write, pair_fini};
static const struct doc_field item_fields[] = {
    DOC_NUM("low", item, low, JR_REQUIRED, 0, -5, 5, "a number"),
    DOC_TEXT("name", item, name, JR_OPTIONAL, 1, 8, "", .rule = name_rule),
};
static const struct doc item_doc = DOC(item, item_fields);
static const struct doc_field same_fields[] = {DOC_NUM("beside", item, low, JR_OPTIONAL, 3, -5, 5, "")};
static const struct doc same_doc = DOC(item, same_fields);
static const struct doc_field inner_fields[] = {
    DOC_NUM("depth", sample, inner, JR_OPTIONAL, 4, 0, 9, "how deep", .flags = DOC_LIVE)};
static const struct doc inner_doc = DOC(sample, inner_fields);

static const struct doc_field sample_fields[] = {
    DOC_NUM("small", sample, small, JR_OPTIONAL, -3, -128, 127, "the least"),
    DOC_NUM("port", sample, port, JR_REQUIRED, 0, 1, 65535, ""),
    DOC_NUM("bytes", sample, bytes, JR_OPTIONAL, 1024, 16, INT64_C(1) << 40, "", .flags = DOC_BYTES),
    DOC_NUM("rows", sample, rows, JR_OPTIONAL, 0, 1, 64, "", .flags = DOC_AUTO),
    DOC_NUM("big", sample, big, JR_OPTIONAL, 0, INT64_MIN, INT64_MAX, "", .flags = DOC_SPARSE),
    DOC_NUM("ratio", sample, ratio, JR_GIVEN, 0.25, 0, 1, "", .flags = DOC_LIVE),
    DOC_NUM("seconds", sample, seconds, JR_OPTIONAL, 60, 1, 3600, "", .flags = DOC_SECONDS),
    DOC_NUM("rate", sample, rate, JR_OPTIONAL, 0, 0, 1e12, "", .flags = DOC_RATE | DOC_NULL),
    DOC_FLAG("on", sample, on, JR_OPTIONAL, true, ""),
    DOC_CHOICE("colour", sample, colour, JR_OPTIONAL, GREEN, colours, ""),
    DOC_CHOICE("mood", sample, mood, JR_OPTIONAL, 0, moods, ""),
    DOC_TEXT("owned", sample, owned, JR_OPTIONAL, 1, 5, "", .text = "abc", .flags = DOC_PLAIN | DOC_LIVE),
    DOC_TEXT("view", sample, view, JR_OPTIONAL, 0, 5, ""),
    DOC_CHARS("chars", sample, chars, JR_OPTIONAL, 1, "", .text = "seven", .flags = DOC_SPARSE),
    DOC_JSON("copy", sample, copy, JR_OPTIONAL, "", .flags = DOC_OBJECT),
    DOC_JSON("look", sample, look, JR_OPTIONAL, "", .flags = DOC_ARRAY, .min = 1, .max = 2),
    DOC_OTHER("pair", sample, pair, &pair_form, ""),
    DOC_STRUCT("part", sample, part, JR_OPTIONAL, &item_doc, "", DOC_GIVEN_IN(sample, has_part)),
    DOC_SAME(sample, same, &same_doc, ""),
    DOC_WITHIN("inner", JR_OPTIONAL, &inner_doc, ""),
    DOC_STRUCTS("items", sample, items, item_count, JR_OPTIONAL, 1, 2, &item_doc, "", .flags = DOC_SPARSE),
};
static const struct doc sample_doc = DOC(sample, sample_fields, .check = ratio_check);

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *document = json_loads(text, 0, &error);
    if (!document)
        fail_msg("%s: %s", text, error.text);
    return document;
}

static void absent_keys_have_their_defaults(void **state)
{
    struct err err = {0};
    struct sample s;
    json_t *document = parse("{\"port\": 80, \"big\": null}");
    (void)state;
    assert_int_equal(doc_read(&sample_doc, document, "", &s, &err), 0);
    assert_int_equal(s.small, -3);
    assert_int_equal(s.bytes, 1024);
    assert_int_equal(s.rows, 0);
    assert_true(s.ratio == 0.25 && s.seconds == 60 && s.rate == 0 && s.on && !s.has_part);
    assert_int_equal(s.colour, GREEN);
    assert_null(moods[s.mood]);
    assert_string_equal(s.owned, "abc");
    assert_null(s.view);
    assert_string_equal(s.chars, "seven");
    assert_null(s.copy);
    assert_int_equal(s.pair[0], 1);
    assert_int_equal(s.same.low, 3);
    assert_int_equal(s.inner, 4);
    assert_int_equal(s.item_count, 0);
    doc_fini(&sample_doc, &s);
    doc_fini(&sample_doc, &(struct sample){0});
    json_decref(document);
}

static const char whole[] =
    "{\"small\": 7, \"port\": 443, \"bytes\": 65536, \"rows\": \"auto\", \"ratio\": 0.5, \"seconds\": 90.0, "
    "\"rate\": 5.0, "
    "\"on\": false, \"colour\": \"blue\", \"mood\": \"loud\", \"owned\": \"xyz\", \"view\": \"\", \"chars\": "
    "\"x\", "
    "\"copy\": {\"a\": [1]}, \"look\": [2], \"pair\": [8, 9], \"part\": {\"low\": -5, \"name\": \"n\"}, "
    "\"beside\": -1, "
    "\"inner\": {\"depth\": 9}, \"items\": [{\"low\": 1}, {\"low\": 2, \"name\": \"two\"}]}";

static void what_is_written_is_what_was_read(void **state)
{
    struct err err = {0};
    struct sample s;
    json_t *document = parse(whole), *object = json_pack("{s:i}", "before", 1);
    (void)state;
    assert_int_equal(doc_read(&sample_doc, document, "", &s, &err), 0);
    assert_true(s.has_part && !s.on && s.colour == BLUE && s.item_count == 2);
    assert_string_equal(s.items[1].name, "two");
    assert_ptr_equal(s.look, json_object_get(document, "look"));
    assert_ptr_not_equal(s.copy, json_object_get(document, "copy"));
    json_t *written = doc_write(&sample_doc, &s, &err);
    char *text = json_dumps(written, 0);
    char *given = json_dumps(document, 0);
    assert_string_equal(text, given); /* keys stand in the table's order */
    assert_int_equal(doc_add(&sample_doc, &s, object, &err), 0);
    assert_int_equal(json_object_size(object), json_object_size(document) + 1);
    free(text);
    free(given);
    json_decref(written);
    json_decref(object);
    doc_fini(&sample_doc, &s);
    assert_null(s.items);
    json_decref(document);
    /* Of defaults, sparse ones and absent values are not written; null, "auto" and the others are. */
    document = parse("{\"port\": 80}");
    assert_int_equal(doc_read(&sample_doc, document, "", &s, &err), 0);
    memset(s.chars, 0, sizeof(s.chars));
    written = doc_write(&sample_doc, &s, &err);
    static const char *const out[] = {"big", "view", "chars", "copy", "look", "part", "items"};
    for (size_t i = 0; i < sizeof(out) / sizeof(out[0]); i++)
        assert_null(json_object_get(written, out[i]));
    assert_true(json_is_null(json_object_get(written, "rate")) &&
                json_is_null(json_object_get(written, "mood")));
    assert_string_equal(json_string_value(json_object_get(written, "rows")), "auto");
    assert_string_equal(json_string_value(json_object_get(written, "owned")), "abc");
    json_decref(written);
    doc_fini(&sample_doc, &s);
    json_decref(document);
}

static void units_are_numbers_or_words(void **state)
{
    struct err err = {0};
    struct sample s;
    json_t *document = parse(
        "{\"port\": 1e3, \"bytes\": \"2KiB\", \"seconds\": \"2min\", \"rate\": \"8Mbit/s\", \"rows\": 64}");
    (void)state;
    assert_int_equal(doc_read(&sample_doc, document, "", &s, &err), 0);
    assert_true(s.port == 1000 && s.bytes == 2048 && s.seconds == 120 && s.rate == 1e6 && s.rows == 64);
    doc_fini(&sample_doc, &s);
    json_decref(document);
}

static void what_is_wrong_is_refused_by_its_path(void **state)
{
    static const struct {
        const char *more, *path;
    } cases[] = {
        {"\"small\": 128", "small:"},
        {"\"small\": \"1\"", "small:"},
        {"\"port\": 0", "port:"},
        {"\"port\": null", "port:"},
        {"\"bytes\": 15", "bytes:"},
        {"\"bytes\": \"much\"", "bytes:"},
        {"\"rows\": 65", "rows:"},
        {"\"rows\": \"none\"", "rows:"},
        {"\"ratio\": 1.5", "ratio:"},
        {"\"ratio\": null", "ratio:"},
        {"\"seconds\": \"2h\"", "seconds:"},
        {"\"rate\": -1", "rate:"},
        {"\"on\": 1", "on:"},
        {"\"colour\": \"grey\"", "colour:"},
        {"\"mood\": \"\"", "mood:"},
        {"\"owned\": \"\"", "owned:"},
        {"\"owned\": \"abcdef\"", "owned:"},
        {"\"owned\": \"a\\tb\"", "owned:"},
        {"\"view\": \"abcdef\"", "view:"},
        {"\"chars\": \"12345678\"", "chars:"},
        {"\"copy\": []", "copy:"},
        {"\"look\": []", "look:"},
        {"\"look\": [1, 2, 3]", "look:"},
        {"\"pair\": [1]", "pair:"},
        {"\"part\": 1", "part:"},
        {"\"part\": {}", "part.low:"},
        {"\"part\": {\"low\": 6}", "part.low:"},
        {"\"part\": {\"low\": 1, \"name\": \"bad\"}", "part.name:"},
        {"\"part\": {\"low\": 1, \"x\": 1}", "part.x:"},
        {"\"beside\": 6", "beside:"},
        {"\"inner\": {\"depth\": 10}", "inner.depth:"},
        {"\"items\": []", "items:"},
        {"\"items\": [{\"low\": 1}, {\"low\": 9}]", "items[1].low:"},
        {"\"items\": [{\"low\": 1, \"name\": \"bad\"}]", "items[0].name:"},
        {"\"items\": [{\"low\": 1}, 2]", "items[1]"},
        {"\"other\": 1", "other:"},
        {"\"ratio\": 0.6, \"colour\": \"blue\"", "ratio:"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct err err = {0};
        struct sample s;
        char text[200], path[40];
        snprintf(text, sizeof(text), "{\"port\": 80, %s}", cases[i].more);
        snprintf(path, sizeof(path), "top.%s", cases[i].path);
        json_t *document = json_loads(text, 0, NULL); /* of two "port" the last one counts */
        assert_non_null(document);
        if (doc_read(&sample_doc, document, "top", &s, &err) == 0)
            fail_msg("taken: %s", text);
        if (err.code != ERR_INVALID || strncmp(err.text, path, strlen(path)) != 0)
            fail_msg("%s: %s", text, err.text);
        json_decref(document);
    }
    assert_int_equal(forms_alive, 0); /* a refused reading has released what it had */
}

static void every_error_is_told_where_all_are_asked_for(void **state)
{
    struct err err = {0};
    struct sample s;
    struct json_reader reader;
    json_t *document = parse("{\"small\": 500, \"items\": [{\"low\": 9}, {\"low\": 8}], \"other\": 1}");
    json_t *all = json_array();
    (void)state;
    assert_int_equal(doc_start(&sample_doc, &s, &err), 0);
    jr_init(&reader, document, "", &err);
    jr_collect(&reader, all);
    assert_int_equal(doc_take(&sample_doc, &reader, &s), -1);
    assert_int_equal(json_array_size(all), 5); /* and port, which is required */
    doc_fini(&sample_doc, &s);
    json_decref(all);
    json_decref(document);
}

static void a_loose_document_may_have_more(void **state)
{
    static const struct doc loose = DOC(item, item_fields, .loose = true);
    struct err err = {0};
    struct item item;
    json_t *document = parse("{\"low\": 1, \"more\": 2}");
    (void)state;
    assert_int_equal(doc_read(&item_doc, document, "", &item, &err), -1);
    assert_int_equal(doc_read(&loose, document, "", &item, &err), 0);
    doc_fini(&loose, &item);
    json_decref(document);
}

/* Reads two documents and takes the second over into the first. Returns the error's text, or "". */
static const char *adopted(const char *first, const char *second, double *ratio, char name[8])
{
    static struct err err;
    struct sample now, fresh;
    json_t *was = parse(first), *is = parse(second);
    assert_int_equal(doc_read(&sample_doc, was, "", &now, &err), 0);
    assert_int_equal(doc_read(&sample_doc, is, "", &fresh, &err), 0);
    int result = doc_adopt(&sample_doc, &now, was, &fresh, is, &err);
    *ratio = now.ratio + now.inner;
    snprintf(name, 8, "%s", now.owned);
    doc_fini(&sample_doc, &fresh);
    doc_fini(&sample_doc, &now);
    json_decref(was);
    json_decref(is);
    assert_true(result == 0 || err.code == ERR_CONFLICT);
    return result == 0 ? "" : err.text;
}

static void a_new_reading_is_taken_over_where_it_may_be(void **state)
{
    double ratio;
    char name[8];
    (void)state;
    assert_string_equal(
        adopted(
            "{\"port\": 80}",
            "{\"port\": 80, \"ratio\": 0.5, \"owned\": \"new\", \"inner\": {\"depth\": 2}, \"small\": -3}",
            &ratio, name),
        "");
    assert_true(ratio == 2.5);
    assert_string_equal(name, "new");
    const char *why = adopted("{\"port\": 80}", "{\"port\": 81, \"ratio\": 0.5}", &ratio, name);
    assert_non_null(strstr(why, "port: another value takes a restart"));
    assert_true(ratio == 4.25);
    why = adopted("{\"port\": 80}", "{\"port\": 80, \"items\": [{\"low\": 1}]}", &ratio, name);
    assert_non_null(strstr(why, "items"));
}

static void the_schema_says_what_is_taken(void **state)
{
    static const struct {
        const char *key, *schema;
    } rows[] = {
        {"small", "{\"type\": \"integer\", \"minimum\": -128, \"maximum\": 127, \"default\": -3, "
                  "\"description\": \"the least\"}"},
        {"port", "{\"type\": \"integer\", \"minimum\": 1, \"maximum\": 65535}"},
        {"rows", "{\"anyOf\": [{\"type\": \"integer\", \"minimum\": 1, \"maximum\": 64}, {\"type\": "
                 "\"string\", \"enum\": [\"auto\"]}]}"},
        {"on", "{\"type\": \"boolean\", \"default\": true}"},
        {"colour",
         "{\"type\": \"string\", \"enum\": [\"red\", \"green\", \"blue\"], \"default\": \"green\"}"},
        {"mood", "{\"type\": [\"string\", \"null\"], \"enum\": [\"calm\", \"loud\", null]}"},
        {"owned", "{\"type\": \"string\", \"minLength\": 1, \"maxLength\": 5, \"pattern\": "
                  "\"^[^\\\\x00-\\\\x1f\\\\x7f]*$\"}"},
        {"look", "{\"type\": \"array\", \"minItems\": 1, \"maxItems\": 2}"},
        {"beside", "{\"type\": \"integer\", \"minimum\": -5, \"maximum\": 5, \"default\": 3}"},
    };
    struct err err;
    json_t *schema = doc_schema(&sample_doc, &err), *properties = json_object_get(schema, "properties");
    (void)state;
    assert_int_equal(json_array_size(json_object_get(schema, "required")), 1);
    assert_true(json_is_false(json_object_get(schema, "additionalProperties")));
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        json_t *wanted = parse(rows[i].schema);
        if (!json_equal(json_object_get(properties, rows[i].key), wanted))
            fail_msg("%s: %s", rows[i].key, json_dumps(json_object_get(properties, rows[i].key), 0));
        json_decref(wanted);
    }
    const json_t *items = json_object_get(properties, "items");
    assert_non_null(json_object_get(json_object_get(json_object_get(items, "items"), "properties"), "low"));
    json_decref(schema);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(absent_keys_have_their_defaults),
        cmocka_unit_test(what_is_written_is_what_was_read),
        cmocka_unit_test(units_are_numbers_or_words),
        cmocka_unit_test(what_is_wrong_is_refused_by_its_path),
        cmocka_unit_test(every_error_is_told_where_all_are_asked_for),
        cmocka_unit_test(a_loose_document_may_have_more),
        cmocka_unit_test(a_new_reading_is_taken_over_where_it_may_be),
        cmocka_unit_test(the_schema_says_what_is_taken),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
