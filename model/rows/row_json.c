/* Values that a JSON document cannot hold are replaced in a copy of the text, and their columns are recorded;
 * jansson parses the copy. */
#include "model/rows/row_json.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"

enum {
    DIGITS_EXACT = 18,   /* every whole number of at most 18 digits fits 64 bits */
    DIGITS_PYTHON = 4300 /* Python refuses numbers of more digits (sys.int_info.default_max_str_digits) */
};

/* The state of one pass over the text. */
struct json_pass {
    const char *text;
    size_t size, at;
    unsigned depth;
    const char *key; /* the current column's name as written, without quotes; NULL before the first column */
    size_t key_size;
    struct buf copy;
    size_t copied; /* how many bytes of the text are in `copy` */
    struct row_json *row;
};

static bool row_json_is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Copies the current column's name, cut to fit, with its escapes decoded. A name with half a surrogate pair
 * stays as written, since no format reads such a column. */
static void key_copy(const struct json_pass *pass, char out[ROW_JSON_KEY_BYTES])
{
    json_t *read = pass->key_size > 0 && memchr(pass->key, '\\', pass->key_size)
                       ? json_loadb(pass->key - 1, pass->key_size + 2, JSON_DECODE_ANY, NULL)
                       : NULL;
    const char *key = read ? json_string_value(read) : pass->key;
    size_t size = read ? json_string_length(read) : pass->key_size;
    size = size < ROW_JSON_KEY_BYTES ? size : ROW_JSON_KEY_BYTES - 1;
    if (size > 0)
        memcpy(out, key, size);
    out[size] = '\0';
    json_decref(read);
}

static void odd_add(struct json_pass *pass, const char *what)
{
    struct row_json *row = pass->row;
    char key[ROW_JSON_KEY_BYTES];
    key_copy(pass, key);
    for (unsigned i = 0; i < row->odd_count; i++)
        if (strcmp(row->odd[i].key, key) == 0)
            return;
    if (row->odd_count < ROW_JSON_ODD_MAX) {
        memcpy(row->odd[row->odd_count].key, key, sizeof(key));
        row->odd[row->odd_count++].what = what;
    }
}

/* Writes 'instead' to the copy in place of text[from..to) and records the column. */
static int replace(struct json_pass *pass, size_t from, size_t to, const char *instead, const char *what,
                   struct err *err)
{
    odd_add(pass, what);
    if (buf_append(&pass->copy, pass->text + pass->copied, from - pass->copied, err) < 0 ||
        buf_text(&pass->copy, instead, err) < 0) {
        return -1;
    }
    pass->copied = to;
    return 0;
}

/* Returns the value of the four hexadecimal digits behind "\u" at text[at], or -1. */
static int row_json_escaped(const struct json_pass *pass, size_t at)
{
    int value = 0;
    if (at + 6 > pass->size || pass->text[at] != '\\' || pass->text[at + 1] != 'u')
        return -1;
    for (size_t i = at + 2; i < at + 6; i++) {
        const char c = pass->text[i];
        const int digit = c >= '0' && c <= '9'   ? c - '0'
                          : c >= 'a' && c <= 'f' ? c - 'a' + 10
                          : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                                 : -1;
        if (digit < 0)
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

/* Returns the offset behind the closing quote of the string at 'at', or the text's size. */
static size_t string_end(const struct json_pass *pass, size_t at)
{
    for (at++; at < pass->size && pass->text[at] != '"'; at++)
        at += pass->text[at] == '\\';
    return at < pass->size ? at + 1 : pass->size;
}

static int string_pass(struct json_pass *pass, struct err *err)
{
    const size_t begin = pass->at;
    const size_t end = string_end(pass, begin);
    size_t behind = end;
    while (behind < pass->size && row_json_is_blank(pass->text[behind]))
        behind++;
    const bool key = behind < pass->size && pass->text[behind] == ':';
    if (key && pass->depth == 1) {
        pass->key = pass->text + begin + 1;
        pass->key_size = end - begin - 2;
    }
    for (size_t at = begin + 1; at < end;) {
        const int code = row_json_escaped(pass, at);
        const bool first = code >= 0xd800 && code < 0xdc00;
        const int next = first ? row_json_escaped(pass, at + 6) : -1;
        if (first && next >= 0xdc00 && next < 0xe000) {
            at += 12;
        } else if (code >= 0xd800 && code < 0xe000) {
            if (replace(pass, at, at + 6, "\\ufffd", "half of a surrogate pair, which is no character", err) <
                0) {
                return -1;
            }
            at += 6;
        } else if (code == 0 && key) {
            if (replace(pass, at, at + 6, "\\ufffd", "U+0000 in a key", err) < 0)
                return -1;
            at += 6;
        } else {
            at += pass->text[at] == '\\' ? 2 : 1;
        }
    }
    pass->at = end;
    return 0;
}

static bool row_json_is_of_word(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
           c == '+' || c == '.';
}

static bool row_json_word_is(const char *word, size_t size, const char *other)
{
    return size == strlen(other) && memcmp(word, other, size) == 0;
}

/* Returns why a JSON document cannot hold the word, or NULL if it can. */
static const char *word_odd(const char *word, size_t size)
{
    if (row_json_word_is(word, size, "NaN") || row_json_word_is(word, size, "Infinity") ||
        row_json_word_is(word, size, "-Infinity"))
        return "NaN or Infinity, which are no JSON";
    const size_t sign = word[0] == '-';
    size_t digits = sign;
    while (digits < size && word[digits] >= '0' && word[digits] <= '9')
        digits++;
    if (digits == sign || (word[sign] == '0' && digits > sign + 1))
        return NULL;
    if (digits == size) {
        const size_t count = size - sign;
        const char *limit = sign ? "9223372036854775808" : "9223372036854775807";
        return count > DIGITS_PYTHON || count <= DIGITS_EXACT ||
                       (count == DIGITS_EXACT + 1 && memcmp(word + sign, limit, count) <= 0)
                   ? NULL
                   : "a whole number beyond 64 bits";
    }
    char copy[400]; /* longer numbers are read as 0 */
    const size_t take = size < sizeof(copy) ? size : sizeof(copy) - 1;
    memcpy(copy, word, take);
    copy[take] = '\0';
    char *end;
    const double value = strtod(take == size ? copy : "0", &end);
    return isinf(value) ? "a number beyond the range of a double" : NULL;
}

static int word_pass(struct json_pass *pass, struct err *err)
{
    const size_t begin = pass->at;
    while (pass->at < pass->size && row_json_is_of_word(pass->text[pass->at]))
        pass->at++;
    const char *what = word_odd(pass->text + begin, pass->at - begin);
    return !what ? 0 : replace(pass, begin, pass->at, "null", what, err);
}

static int pass_all(struct json_pass *pass, struct err *err)
{
    while (pass->at < pass->size) {
        const char c = pass->text[pass->at];
        if (c == '"') {
            if (string_pass(pass, err) < 0)
                return -1;
        } else if (row_json_is_of_word(c)) {
            if (word_pass(pass, err) < 0)
                return -1;
        } else {
            pass->depth += c == '{' || c == '[';
            pass->depth -= (c == '}' || c == ']') && pass->depth > 0;
            if (pass->depth > ROW_JSON_DEPTH_MAX)
                return err_set(err, ERR_TOO_BIG, "the row is nested more than %d deep", ROW_JSON_DEPTH_MAX);
            pass->at++;
        }
    }
    return pass->copied == 0
               ? 0
               : buf_append(&pass->copy, pass->text + pass->copied, pass->size - pass->copied, err);
}

/* Returns true if the text ends with '}', apart from white space. */
static bool ends(const char *text, size_t size)
{
    while (size > 0 && row_json_is_blank(text[size - 1]))
        size--;
    return size > 0 && text[size - 1] == '}';
}

int row_json_parse(const char *text, size_t size, struct row_json *row, struct err *err)
{
    struct json_pass pass = {.text = text, .size = size, .copy = {.limit = 2 * size + 64}, .row = row};
    json_error_t where = {0};
    row->object = NULL;
    row->odd_count = 0;
    int status = pass_all(&pass, err);
    if (status == 0) {
        const bool same = pass.copied == 0;
        row->object = json_loadb(same ? text : buf_str(&pass.copy), same ? size : pass.copy.size,
                                 JSON_DECODE_ANY | JSON_ALLOW_NUL, &where);
        if (!row->object) {
            status = err_set(
                err, ERR_INVALID, "no valid JSON: column %d: %s%s", where.column, where.text,
                ends(text, size) ? "" : "; a row is a whole object on one line, or give one array of rows");
        } else if (!json_is_object(row->object)) {
            row_json_fini(row);
            status = err_set(err, ERR_INVALID, "a row must be a JSON object");
        }
    }
    buf_fini(&pass.copy);
    return status;
}

void row_json_fini(struct row_json *row)
{
    json_decref(row->object);
    row->object = NULL;
}

static const char *odd_find(const struct row_json *row, const char *key)
{
    for (unsigned i = 0; i < row->odd_count; i++)
        if (strncmp(row->odd[i].key, key, ROW_JSON_KEY_BYTES - 1) == 0)
            return row->odd[i].what;
    return row->odd_count == ROW_JSON_ODD_MAX ? "something that JSON has not, as many columns of the row"
                                              : NULL;
}

int row_json_get(const struct row_json *row, const char *key, const json_t **out, struct err *err)
{
    const char *what = odd_find(row, key);
    const json_t *value = json_object_get(row->object, key);
    *out = json_is_null(value) ? NULL : value;
    return !what ? 0 : err_set(err, ERR_UNSUPPORTED, "%s: has %s; mend it, or leave it out", key, what);
}

bool row_json_says(const struct row_json *row, const char *key)
{
    const json_t *value = json_object_get(row->object, key);
    if (!value)
        return false;
    return odd_find(row, key) || !(json_is_null(value) || json_is_false(value) ||
                                   (json_is_string(value) && json_string_length(value) == 0) ||
                                   (json_is_array(value) && json_array_size(value) == 0) ||
                                   (json_is_object(value) && json_object_size(value) == 0));
}
