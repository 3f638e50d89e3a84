/* Rows of every format equal those of transformers and TRL (tests/data/rows, by tools/golden_rows.py) in ids
 * and labels, or are refused by key. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>

#include "common/file.h"
#include "common/json.h"
#include "model/rows/rows.h"

static struct tokenizer *open_tokenizer(const json_t *item)
{
    const char *name = json_string_value(json_object_get(item, "tokenizer"));
    char path[512];
    struct buf text = {.limit = 1 << 22}, config = {.limit = 1 << 20};
    struct tokenizer *tokenizer = NULL;
    struct err err = {0};
    snprintf(path, sizeof(path), "%s/%s/%s.json", MOTLEY_TEST_DATA,
             strcmp(name, "bytes") == 0 ? "rows" : "tokenizer", name);
    assert_int_equal(0, file_read_all(path, 1 << 22, &text, &err));
    assert_int_equal(0, json_print(json_object_get(item, "config"), false, &config, &err));
    if (tokenizer_from_json(buf_str(&text), text.size, buf_str(&config), config.size, &tokenizer, &err) < 0)
        fail_msg("%s", err.text);
    buf_fini(&text);
    buf_fini(&config);
    return tokenizer;
}

static int encode(const json_t *item, const char *text, size_t size, struct rows **rows,
                  struct rows_report *report, struct err *err)
{
    struct tokenizer *tokenizer = open_tokenizer(item);
    struct chat_template *chat = NULL;
    struct rows_options options;
    struct spec_data_part data = {.sequence_tokens = 4096};
    const char *format = json_string_value(json_object_get(item, "format"));
    for (int f = 0; format && f < SPEC_FORMAT_COUNT; f++) {
        data.format =
            strcmp(spec_format_name((enum spec_format)f), format) == 0 ? (enum spec_format)f : data.format;
    }
    assert_int_equal(
        0, rows_options_from_spec(&data, tokenizer, tokenizer_vocab(tokenizer), &options, &chat, err));
    const int status = rows_encode(text, size, &options, rows, report, err);
    chat_template_destroy(chat);
    tokenizer_destroy(tokenizer);
    return status;
}

static void list_print(struct buf *out, const int32_t *values, size_t count)
{
    struct err err;
    for (size_t i = 0; i < count; i++)
        buf_printf(out, &err, "%d ", values[i]);
}

static void expect_list(const char *name, const char *what, const json_t *wanted, const int32_t *got,
                        size_t count)
{
    bool same = json_array_size(wanted) == count;
    for (size_t i = 0; i < count && same; i++)
        same = json_integer_value(json_array_get(wanted, i)) == got[i];
    if (!same) {
        struct buf text = {.limit = 1 << 20};
        list_print(&text, got, count);
        char *json = json_dumps(wanted, JSON_COMPACT);
        fail_msg("%s: %s %s, not %s", name, what, buf_str(&text), json);
    }
}

static void expect_case(const json_t *item, const char *text, size_t size)
{
    const char *name = json_string_value(json_object_get(item, "name"));
    const json_t *want = json_object_get(item, "want");
    struct rows *rows = NULL;
    struct rows_report report;
    struct err err = {0};
    const int status = encode(item, text, size, &rows, &report, &err);
    if (json_is_string(want)) {
        if (status == 0 || !strstr(err.text, json_string_value(want))) {
            fail_msg("%s: \"%s\", not \"%s\"", name, status == 0 ? "taken" : err.text,
                     json_string_value(want));
        }
        return;
    }
    if (status < 0 || rows->count != json_array_size(want))
        fail_msg("%s: %s, %u rows", name, err.text, status == 0 ? rows->count : 0);
    for (uint32_t r = 0; r < rows->count; r++) {
        const json_t *row = json_array_get(want, r);
        const size_t count = rows->offset[r + 1] - rows->offset[r];
        char label[128];
        snprintf(label, sizeof(label), "%s, row %u", name, r + 1);
        expect_list(label, "ids", json_array_get(row, 0), rows->ids + rows->offset[r], count);
        expect_list(label, "labels", json_array_get(row, 1), rows->labels + rows->offset[r], count);
    }
    rows_destroy(rows);
}

static json_t *cases_open(void)
{
    json_error_t why;
    json_t *cases = json_load_file(MOTLEY_TEST_DATA "/rows/cases.json", JSON_ALLOW_NUL, &why);
    assert_non_null(cases);
    return cases;
}

static void every_row_has_the_libraries_ids_and_labels_or_is_refused_by_key(void **state)
{
    (void)state;
    json_t *cases = cases_open();
    size_t i;
    json_t *item;
    json_array_foreach (cases, i, item) {
        const json_t *lines = json_object_get(item, "lines");
        expect_case(item, json_string_value(lines), json_string_length(lines));
    }
    json_decref(cases);
}

/* Returns a new gzip file of the bytes in two members, as `cat a.gz b.gz` makes it. */
static uint8_t *gzip(const char *text, size_t size, size_t *packed)
{
    uint8_t *out = malloc(size + 4096);
    assert_non_null(out);
    *packed = 0;
    for (int half = 0; half < 2; half++) {
        z_stream stream = {.next_in = (Bytef *)(uintptr_t)(text + (half ? size / 2 : 0)),
                           .avail_in = (uInt)(half ? size - size / 2 : size / 2),
                           .next_out = out + *packed,
                           .avail_out = (uInt)(size + 4096 - *packed)};
        assert_int_equal(Z_OK, deflateInit2(&stream, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY));
        assert_int_equal(Z_STREAM_END, deflate(&stream, Z_FINISH));
        *packed += stream.total_out;
        deflateEnd(&stream);
    }
    return out;
}

static void gzip_files_are_read_as_what_is_in_them(void **state)
{
    (void)state;
    json_t *cases = cases_open();
    size_t i;
    json_t *item;
    json_array_foreach (cases, i, item) {
        const json_t *lines = json_object_get(item, "lines");
        size_t packed;
        uint8_t *bytes = gzip(json_string_value(lines), json_string_length(lines), &packed);
        expect_case(item, (const char *)bytes, packed);
        free(bytes);
    }
    json_decref(cases);
}

static void many_rows_of_a_gzip_file_and_a_damaged_one(void **state)
{
    (void)state;
    enum { ROWS = 20000 };
    json_t *cases = cases_open();
    const json_t *item = json_array_get(cases, 0);
    struct buf lines = {.limit = 1 << 24}, array = {.limit = 1 << 24};
    struct err err = {0};
    buf_text(&array, "[", &err);
    for (int i = 0; i < ROWS; i++) {
        buf_printf(&lines, &err, "{\"text\":\"row %d of a file that is read piece by piece\"}\n", i);
        buf_printf(&array, &err, "%s{\"text\":\"row %d of a file that is read piece by piece\"}",
                   i ? ",\n" : "", i);
    }
    buf_text(&array, "]\n", &err);
    for (int which = 0; which < 2; which++) {
        const struct buf *text = which ? &array : &lines;
        struct rows *plain = NULL, *rows = NULL;
        struct rows_report report;
        size_t packed;
        uint8_t *bytes = gzip(buf_str(text), text->size, &packed);
        assert_int_equal(0, encode(item, buf_str(text), text->size, &plain, &report, &err));
        assert_string_equal(which ? "row" : "line", report.unit);
        assert_int_equal(0, encode(item, (const char *)bytes, packed, &rows, &report, &err));
        assert_int_equal(ROWS, rows->count);
        assert_memory_equal(plain->ids, rows->ids, plain->offset[ROWS] * sizeof(int32_t));
        rows_destroy(rows);
        rows_destroy(plain);
        assert_int_equal(-1, encode(item, (const char *)bytes, packed - 9, &rows, &report, &err));
        assert_non_null(strstr(err.text, "cut off"));
        bytes[packed / 4] ^= 0x55;
        assert_int_equal(-1, encode(item, (const char *)bytes, packed, &rows, &report, &err));
        free(bytes);
    }
    buf_fini(&lines);
    buf_fini(&array);
    json_decref(cases);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_has_the_libraries_ids_and_labels_or_is_refused_by_key),
        cmocka_unit_test(gzip_files_are_read_as_what_is_in_them),
        cmocka_unit_test(many_rows_of_a_gzip_file_and_a_damaged_one),
    };
    return cmocka_run_group_tests_name("rows_golden", tests, NULL, NULL);
}
