/* Parsing with limits: jansson checks the grammar. A pass before it checks nesting and size, so that no
 * memory is allocated for a document that will be refused. */
#include "common/json.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/units.h"

/* Returns the deepest nesting of brackets outside strings. */
static unsigned text_depth(const char *text, size_t size)
{
    unsigned depth = 0;
    unsigned deepest = 0;
    bool quoted = false;
    for (size_t i = 0; i < size; i++) {
        char c = text[i];
        if (quoted) {
            if (c == '\\')
                i++;
            else if (c == '"')
                quoted = false;
        } else if (c == '"') {
            quoted = true;
        } else if (c == '{' || c == '[') {
            depth++;
            deepest = depth > deepest ? depth : deepest;
        } else if ((c == '}' || c == ']') && depth > 0) {
            depth--;
        }
    }
    return deepest;
}

/* Whether jansson's syntax error is a bracket that closes after a comma; 'position' is just behind it. */
static bool after_comma(const char *text, size_t size, int position)
{
    size_t at = position > 0 && (size_t)position <= size ? (size_t)position - 1 : 0;
    if (at == 0 || (text[at] != '}' && text[at] != ']'))
        return false;
    while (at > 0 && strchr(" \t\r\n", text[at - 1]) && text[at - 1] != '\0')
        at--;
    return at > 0 && text[at - 1] == ',';
}

static json_t *json_parse(const char *text, size_t size, unsigned depth_max, size_t flags, struct err *err)
{
    if (size >= 3 && memcmp(text, "\xef\xbb\xbf", 3) == 0) {
        err_set(err, ERR_INVALID,
                "no valid JSON: it begins with a byte order mark; save it as UTF-8 without one");
        return NULL;
    }
    unsigned depth = text_depth(text, size);
    if (depth > depth_max) {
        err_set(err, ERR_INVALID, "JSON is nested %u deep, the limit is %u", depth, depth_max);
        return NULL;
    }
    json_error_t where;
    json_t *value = json_loadb(text, size, flags | JSON_DECODE_ANY, &where);
    if (!value && json_error_code(&where) == json_error_numeric_overflow) {
        err_set(err, ERR_TOO_BIG, "line %d column %d: %s", where.line, where.column, where.text);
    } else if (!value) {
        err_set(err, ERR_INVALID, "no valid JSON: line %d column %d: %s%s", where.line, where.column,
                where.text, after_comma(text, size, where.position) ? " (a comma stands before it)" : "");
    }
    return value;
}

json_t *json_parse_limited(const char *text, size_t size, unsigned depth_max, struct err *err)
{
    return json_parse(text, size, depth_max, JSON_REJECT_DUPLICATES, err);
}

json_t *json_parse_last(const char *text, size_t size, unsigned depth_max, struct err *err)
{
    return json_parse(text, size, depth_max, 0, err);
}

struct print_target {
    struct buf *out;
    struct err *err;
};

static int print_some(const char *text, size_t size, void *data)
{
    struct print_target *target = data;
    return buf_append(target->out, text, size, target->err);
}

const char *json_text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

int json_print(const json_t *value, bool sorted, struct buf *out, struct err *err)
{
    struct print_target target = {.out = out, .err = err};
    size_t flags = JSON_COMPACT | JSON_ENCODE_ANY | (sorted ? JSON_SORT_KEYS : 0);
    err_clear(err);
    if (json_dump_callback(value, print_some, &target, flags) != 0)
        return err->code != ERR_NONE ? -1 : err_set(err, ERR_INTERNAL, "could not print a JSON document");
    return 0;
}

/* ---- the reader ---- */

static const char *json_type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT:
        return "an object";
    case JSON_ARRAY:
        return "a list";
    case JSON_STRING:
        return "a text";
    case JSON_INTEGER:
        return "an integer";
    case JSON_REAL:
        return "a number";
    case JSON_TRUE:
    case JSON_FALSE:
        return "true or false";
    case JSON_NULL:
        return "null";
    }
    return "nothing";
}

static void path_join(const struct json_reader *reader, const char *key, char *out, size_t size)
{
    if (!key)
        snprintf(out, size, "%s", reader->path[0] == '\0' ? "the document" : reader->path);
    else
        snprintf(out, size, "%s%s%s", reader->path, reader->path[0] == '\0' ? "" : ".", key);
}

/* Writes a path ("train.targets[2]") as a JSON pointer ("/train/targets/2"). */
static void path_pointer(const char *path, char *out, size_t size)
{
    size_t used = 0;
    if (*path && used + 1 < size)
        out[used++] = '/';
    for (; *path && used + 1 < size; path++)
        if (*path != ']')
            out[used++] = *path == '.' || *path == '[' ? '/' : *path;
    out[used] = '\0';
}

int jr_fail(struct json_reader *reader, const char *key, const char *fmt, ...)
{
    bool first = true;
    struct json_reader *each = reader;
    do {
        first = first && !each->failed;
        each->failed = true;
        each = each->parent;
    } while (each);
    if (!first && !reader->all)
        return -1;
    char text[sizeof(reader->err->text)];
    va_list args;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    char path[256] = "", pointer[256];
    if (key || *reader->path)
        path_join(reader, key, path, sizeof(path));
    if (reader->all && json_array_size(reader->all) < JR_ERRORS_MAX) {
        path_pointer(path, pointer, sizeof(pointer));
        json_array_append_new(reader->all, json_pack("{s:s, s:s}", "pointer", pointer, "detail", text));
    }
    return first ? err_set(reader->err, ERR_INVALID, "%s: %s", *path ? path : "the document", text) : -1;
}

static void reader_init(struct json_reader *reader, const json_t *object, const char *path,
                        struct json_reader *parent, struct err *err)
{
    reader->object = object;
    reader->err = err;
    reader->parent = parent;
    reader->all = parent ? parent->all : NULL;
    reader->failed = false;
    reader->key_count = 0;
    snprintf(reader->path, sizeof(reader->path), "%.*s", (int)sizeof(reader->path) - 1, path);
    if (!json_is_object(object))
        jr_fail(reader, NULL, "must be an object, is %s", !object ? "absent" : json_type_name(object));
}

void jr_init(struct json_reader *reader, const json_t *object, const char *path, struct err *err)
{
    reader_init(reader, object, path, NULL, err);
}

void jr_collect(struct json_reader *reader, json_t *all)
{
    reader->all = all;
}

/* Records the key. Returns its value if it is present and not null and the reader has not failed. */
static const json_t *value_find(struct json_reader *reader, const char *key, enum jr_need need)
{
    if (reader->failed && !reader->all)
        return NULL;
    if (reader->key_count == JR_KEYS_MAX) {
        jr_fail(reader, key, "more than %d keys are read of one object", JR_KEYS_MAX);
        return NULL;
    }
    reader->keys[reader->key_count++] = key;
    const json_t *value = json_object_get(reader->object, key);
    if (json_is_null(value) && need == JR_GIVEN)
        jr_fail(reader, key, "is null, which is no value here: leave the key out for its default");
    if (json_is_null(value))
        value = NULL;
    if (!value && need == JR_REQUIRED)
        jr_fail(reader, key, "is required");
    return value;
}

static int absent(const struct json_reader *reader)
{
    return reader->failed ? -1 : 0;
}

static int json_found(const struct json_reader *reader)
{
    return reader->failed ? -1 : 1;
}

int jr_str(struct json_reader *reader, const char *key, enum jr_need need, size_t bytes_min, size_t bytes_max,
           const char **out)
{
    const json_t *value = value_find(reader, key, need);
    if (!value)
        return absent(reader);
    if (!json_is_string(value))
        return jr_fail(reader, key, "must be a text, is %s", json_type_name(value));
    size_t length = json_string_length(value);
    if (length < bytes_min || length > bytes_max)
        return jr_fail(reader, key, "must have %zu to %zu bytes, has %zu", bytes_min, bytes_max, length);
    if (strlen(json_string_value(value)) != length)
        return jr_fail(reader, key, "must not contain U+0000");
    *out = json_string_value(value);
    return json_found(reader);
}

/* Converts an integer, also one written as 16.0 or 1e3, as YAML and other languages do. */
static bool integer_of(const json_t *value, int64_t *out)
{
    if (json_is_integer(value)) {
        *out = json_integer_value(value);
        return true;
    }
    if (!json_is_real(value))
        return false;
    double number = json_real_value(value);
    if (number != floor(number) || fabs(number) > 9007199254740992.0)
        return false;
    *out = (int64_t)number;
    return true;
}

int jr_i64(struct json_reader *reader, const char *key, enum jr_need need, int64_t min, int64_t max,
           int64_t *out)
{
    const json_t *value = value_find(reader, key, need);
    if (!value)
        return absent(reader);
    int64_t number;
    if (!integer_of(value, &number)) {
        return jr_fail(reader, key, "must be an integer, is %s",
                       json_is_real(value) ? "a number with a fraction" : json_type_name(value));
    }
    if (number < min || number > max) {
        return jr_fail(reader, key, "must be %lld to %lld, is %lld", (long long)min, (long long)max,
                       (long long)number);
    }
    *out = number;
    return json_found(reader);
}

int jr_u32(struct json_reader *reader, const char *key, enum jr_need need, uint32_t min, uint32_t max,
           uint32_t *out)
{
    int64_t number = 0;
    const int got = jr_i64(reader, key, need, min, max, &number);
    if (got == 1)
        *out = (uint32_t)number;
    return got;
}

/* Writes an amount for an error about its limits. */
typedef char *amount_writer(char out[32], double value);

static char *json_number_write(char out[32], double value)
{
    snprintf(out, 32, "%.15g", value); /* no exponent below 1e15 */
    return out;
}

static int f64_check(struct json_reader *reader, const char *key, double number, double min, double max,
                     amount_writer *write, double *out)
{
    char low[32], high[32], is[32];
    if (!isfinite(number))
        return jr_fail(reader, key, "must be finite");
    if (number < min || number > max)
        return jr_fail(reader, key, "must be %s to %s, is %s", write(low, min), write(high, max),
                       write(is, number));
    *out = number;
    return json_found(reader);
}

int jr_f64(struct json_reader *reader, const char *key, enum jr_need need, double min, double max,
           double *out)
{
    const json_t *value = value_find(reader, key, need);
    if (!value)
        return absent(reader);
    if (!json_is_number(value))
        return jr_fail(reader, key, "must be a number, is %s", json_type_name(value));
    return f64_check(reader, key, json_number_value(value), min, max, json_number_write, out);
}

int jr_bool(struct json_reader *reader, const char *key, enum jr_need need, bool *out)
{
    const json_t *value = value_find(reader, key, need);
    if (!value)
        return absent(reader);
    if (!json_is_boolean(value))
        return jr_fail(reader, key, "must be true or false, is %s", json_type_name(value));
    *out = json_is_true(value);
    return json_found(reader);
}

int jr_choice(struct json_reader *reader, const char *key, enum jr_need need, const char *const *names,
              int *out)
{
    const json_t *value = value_find(reader, key, need);
    if (!value)
        return absent(reader);
    char known[256] = "";
    size_t used = 0;
    for (int i = 0; names[i] != NULL; i++) {
        if (json_is_string(value) && strcmp(names[i], json_string_value(value)) == 0) {
            *out = i;
            return json_found(reader);
        }
        int wrote = snprintf(known + used, sizeof(known) - used, "%s%s", i == 0 ? "" : ", ", names[i]);
        used += wrote > 0 && (size_t)wrote < sizeof(known) - used ? (size_t)wrote : 0;
    }
    if (!json_is_string(value))
        return jr_fail(reader, key, "must be one of %s, is %s", known, json_type_name(value));
    return jr_fail(reader, key, "must be one of %s, is \"%.60s\"", known, json_string_value(value));
}

int jr_bytes(struct json_reader *reader, const char *key, enum jr_need need, uint64_t min, uint64_t max,
             uint64_t *out)
{
    const json_t *value = value_find(reader, key, need);
    if (!value)
        return absent(reader);
    uint64_t bytes = 0;
    int64_t number = 0;
    if (json_is_string(value)) {
        struct err inner = {0};
        if (units_parse_bytes(json_string_value(value), &bytes, &inner) < 0)
            return jr_fail(reader, key, "%s", inner.text);
    } else if (integer_of(value, &number) && number >= 0) {
        bytes = (uint64_t)number;
    } else {
        return jr_fail(reader, key, "must be a number of bytes such as 450MiB");
    }
    if (bytes < min || bytes > max) {
        char low[32], high[32], is[32];
        return jr_fail(reader, key, "must be %s to %s, is %s", units_bytes(low, min), units_bytes(high, max),
                       units_bytes(is, bytes));
    }
    *out = bytes;
    return json_found(reader);
}

typedef int unit_parser(const char *text, double *value, struct err *err);

static int unit_read(struct json_reader *reader, const char *key, enum jr_need need, unit_parser *parser,
                     amount_writer *write, double min, double max, double *out)
{
    const json_t *value = value_find(reader, key, need);
    if (!value)
        return absent(reader);
    double number = 0;
    if (json_is_string(value)) {
        struct err inner = {0};
        if (parser(json_string_value(value), &number, &inner) < 0)
            return jr_fail(reader, key, "%s", inner.text);
    } else if (json_is_number(value)) {
        number = json_number_value(value);
    } else {
        return jr_fail(reader, key, "must be a number or a text with a unit, is %s", json_type_name(value));
    }
    return f64_check(reader, key, number, min, max, write, out);
}

int jr_seconds(struct json_reader *reader, const char *key, enum jr_need need, double min, double max,
               double *out)
{
    return unit_read(reader, key, need, units_parse_seconds, units_duration, min, max, out);
}

int jr_rate(struct json_reader *reader, const char *key, enum jr_need need, double min, double max,
            double *out)
{
    return unit_read(reader, key, need, units_parse_rate, units_rate, min, max, out);
}

int jr_array(struct json_reader *reader, const char *key, enum jr_need need, size_t count_min,
             size_t count_max, const json_t **out)
{
    const json_t *value = value_find(reader, key, need);
    if (!value)
        return absent(reader);
    if (!json_is_array(value))
        return jr_fail(reader, key, "must be a list, is %s", json_type_name(value));
    size_t count = json_array_size(value);
    if (count < count_min || count > count_max)
        return jr_fail(reader, key, "must have %zu to %zu elements, has %zu", count_min, count_max, count);
    *out = value;
    return json_found(reader);
}

int jr_object(struct json_reader *reader, const char *key, enum jr_need need, const json_t **out)
{
    const json_t *value = value_find(reader, key, need);
    if (!value)
        return absent(reader);
    if (!json_is_object(value))
        return jr_fail(reader, key, "must be an object, is %s", json_type_name(value));
    *out = value;
    return json_found(reader);
}

int jr_any(struct json_reader *reader, const char *key, enum jr_need need, const json_t **out)
{
    const json_t *value = value_find(reader, key, need);
    if (!value)
        return absent(reader);
    *out = value;
    return json_found(reader);
}

/* Makes a sub-reader for an object that is missing or of the wrong type. It has failed from the start, so it
 * sets nothing. */
static void sub_dead(const struct json_reader *reader, struct json_reader *sub)
{
    sub->object = NULL;
    sub->err = reader->err;
    sub->parent = NULL;
    sub->all = NULL;
    sub->failed = true;
    sub->key_count = 0;
    sub->path[0] = '\0';
}

int jr_sub(struct json_reader *reader, const char *key, enum jr_need need, struct json_reader *sub)
{
    sub_dead(reader, sub);
    const json_t *value = value_find(reader, key, need);
    if ((reader->failed && !reader->all) || (!value && need == JR_REQUIRED))
        return -1;
    char path[256];
    path_join(reader, key, path, sizeof(path));
    if (!value) {
        sub->parent = reader;
        sub->all = reader->all;
        sub->failed = false; /* json_object_get(NULL) finds nothing, so all defaults stay */
        snprintf(sub->path, sizeof(sub->path), "%.*s", (int)sizeof(sub->path) - 1, path);
        return 0;
    }
    reader_init(sub, value, path, reader, reader->err);
    return sub->failed ? -1 : 1;
}

int jr_item(struct json_reader *reader, const char *key, const json_t *array, size_t index,
            struct json_reader *sub)
{
    sub_dead(reader, sub);
    if (reader->failed && !reader->all)
        return -1;
    char path[256];
    path_join(reader, key, path, sizeof(path));
    char item[300];
    snprintf(item, sizeof(item), "%s[%zu]", path, index);
    reader_init(sub, json_array_get(array, index), item, reader, reader->err);
    return sub->failed ? -1 : 1;
}

int jr_finish_loose(struct json_reader *reader)
{
    return reader->failed ? -1 : 0;
}

int jr_finish(struct json_reader *reader)
{
    if ((reader->failed && !reader->all) || !reader->object)
        return reader->failed ? -1 : 0;
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)reader->object, name, value) {
        bool known = false;
        for (unsigned i = 0; i < reader->key_count && !known; i++)
            known = strcmp(reader->keys[i], name) == 0;
        if (known)
            continue;
        char list[360] = "";
        size_t used = 0;
        for (unsigned i = 0; i < reader->key_count; i++) {
            int wrote =
                snprintf(list + used, sizeof(list) - used, "%s%s", i == 0 ? "" : ", ", reader->keys[i]);
            if (wrote < 0 || (size_t)wrote >= sizeof(list) - used)
                break;
            used += (size_t)wrote;
        }
        char shown[64];
        snprintf(shown, sizeof(shown), "%s", name);
        jr_fail(reader, shown, "unknown key; known here: %s", list);
        if (!reader->all)
            return -1;
    }
    return reader->failed ? -1 : 0;
}
