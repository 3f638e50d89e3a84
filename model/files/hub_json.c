/* Words that only Python writes are replaced in a copy of the text, outside strings; json_parse_limited()
 * then parses the copy. */
#include "model/files/hub_json.h"

#include <string.h>

#include "model/files/file_kind.h"

enum {
    DIGITS_EXACT = 18, /* every whole number of at most 18 digits fits 64 bits */
    DIGITS_DOUBLE = 308
};

static const char largest[] = "1.7976931348623157e308";

static bool hub_json_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Returns the length of the JSON string that begins at text[0], both quotes included, or 'size' when the
 * string has no end. */
static size_t string_length(const char *text, size_t size)
{
    size_t i = 1;
    while (i < size && text[i] != '"')
        i += text[i] == '\\' ? 2 : 1;
    return i < size ? i + 1 : size;
}

/* Returns the length of the word that begins at text[0]: a number, a name, or one other character. */
static size_t word_length(const char *text, size_t size)
{
    size_t i = 0;
    while (i < size &&
           (hub_json_is_digit(text[i]) || (text[i] >= 'a' && text[i] <= 'z') ||
            (text[i] >= 'A' && text[i] <= 'Z') || text[i] == '-' || text[i] == '+' || text[i] == '.'))
        i++;
    return i ? i : 1;
}

static bool hub_json_word_is(const char *word, size_t size, const char *other)
{
    return size == strlen(other) && memcmp(word, other, size) == 0;
}

/* Returns the JSON text that replaces a word that only Python writes, or NULL when the word stays. */
static const char *word_instead(const char *word, size_t size)
{
    if (hub_json_word_is(word, size, "NaN"))
        return "\"NaN\"";
    if (hub_json_word_is(word, size, "Infinity"))
        return largest;
    if (hub_json_word_is(word, size, "-Infinity"))
        return "-1.7976931348623157e308";
    size_t sign = word[0] == '-';
    for (size_t i = sign; i < size; i++)
        if (!hub_json_is_digit(word[i]))
            return NULL;
    if (size - sign > DIGITS_DOUBLE)
        return sign ? "-1.7976931348623157e308" : largest;
    return NULL;
}

static bool is_long_integer(const char *word, size_t size)
{
    size_t sign = word[0] == '-';
    for (size_t i = sign; i < size; i++)
        if (!hub_json_is_digit(word[i]))
            return false;
    if (size - sign <= DIGITS_EXACT)
        return false;
    const char *limit = sign ? "9223372036854775808" : "9223372036854775807";
    return size - sign > 19 || memcmp(word + sign, limit, 19) > 0;
}

/* Returns the value of the escape "\\uXXXX" that begins at text[0], or -1 when none begins there. */
static int hub_json_escaped(const char *text, size_t size)
{
    int value = 0;
    if (size < 6 || text[0] != '\\' || text[1] != 'u')
        return -1;
    for (int i = 2; i < 6; i++) {
        const char *digits = "0123456789abcdef0123456789ABCDEF", *at = strchr(digits, text[i]);
        if (!at || text[i] == '\0')
            return -1;
        value = value * 16 + (int)((at - digits) % 16);
    }
    return value;
}

/* Appends the string quoted[0..size) with U+FFFD in the place of U+0000 and of each half of a
 * surrogate pair. */
static int string_replace(const char *quoted, size_t size, struct buf *out, struct err *err)
{
    size_t done = 0;
    for (size_t i = 0, n; i < size; i += n) {
        int code = hub_json_escaped(quoted + i, size - i);
        int next = code >= 0xd800 && code < 0xdc00 ? hub_json_escaped(quoted + i + 6, size - i - 6) : -1;
        n = code < 0 ? (quoted[i] == '\\' ? 2 : 1) : next >= 0xdc00 && next < 0xe000 ? 12 : 6;
        if (n != 6 || (code != 0 && (code < 0xd800 || code >= 0xe000)))
            continue;
        if (buf_append(out, quoted + done, i - done, err) < 0 || buf_text(out, "\\ufffd", err) < 0)
            return -1;
        done = i + n;
    }
    return buf_append(out, quoted + done, size - done, err);
}

/* Writes the text to 'out' with all words that only Python writes replaced, and with any_text strings changed
 * by string_replace(). 'out' stays empty when nothing changes. */
static int text_replace(const char *text, size_t size, bool any_text, struct buf *out, struct err *err)
{
    size_t done = 0; /* text[0..done) is already in 'out' */
    for (size_t i = 0, n; i < size; i += n) {
        bool quoted = text[i] == '"';
        n = quoted ? string_length(text + i, size - i) : word_length(text + i, size - i);
        const char *instead = quoted ? NULL : word_instead(text + i, n);
        if (quoted && any_text && memmem(text + i, n, "\\u", 2)) {
            if (buf_append(out, text + done, i - done, err) < 0 || string_replace(text + i, n, out, err) < 0)
                return -1;
            done = i + n;
            continue;
        }
        bool extend = !quoted && !instead && is_long_integer(text + i, n);
        if (!instead && !extend)
            continue;
        if (buf_append(out, text + done, i + (extend ? n : 0) - done, err) < 0 ||
            buf_text(out, instead ? instead : ".0", err) < 0)
            return -1;
        done = i + n;
    }
    return done ? buf_append(out, text + done, size - done, err) : 0;
}

static json_t *files_parse(const char *text, size_t size, unsigned depth_max, bool any_text, struct err *err)
{
    struct buf copy = {.limit = 3 * size + 64};
    json_t *value = NULL;
    if (text_replace(text, size, any_text, &copy, err) == 0)
        value = copy.size ? json_parse_last((const char *)copy.data, copy.size, depth_max, err)
                          : json_parse_last(text, size, depth_max, err);
    buf_fini(&copy);
    struct err other;
    if (!value && file_kind_expect(text, size, FILE_KIND_JSON_OBJECT, &other) < 0 &&
        file_kind_of(text, size) != FILE_KIND_JSON_ARRAY)
        err_set(err, ERR_INVALID, "%s", other.text);
    return value;
}

json_t *hub_json_parse(const char *text, size_t size, unsigned depth_max, struct err *err)
{
    return files_parse(text, size, depth_max, false, err);
}

json_t *hub_json_parse_settings(const char *text, size_t size, unsigned depth_max, struct err *err)
{
    return files_parse(text, size, depth_max, true, err);
}
