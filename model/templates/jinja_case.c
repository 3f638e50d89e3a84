#include "model/templates/jinja_case.h"

#include <string.h>
#include <utf8proc.h>

#include "model/templates/jinja_print.h"
#include "model/text/utf8.h"

enum {
    FOLDED_MAX = 4,
    MAPPED_BYTES_MAX = 12
}; /* Unicode maps a letter to at most three, with
               at most 4 bytes each in UTF-8 */

static utf8proc_category_t category(uint32_t code)
{
    return utf8proc_category((utf8proc_int32_t)code);
}

static bool jinja_case_is_letter(uint32_t code)
{
    const utf8proc_category_t c = category(code);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LO;
}

static bool is_cased(uint32_t code)
{
    const utf8proc_category_t c = category(code);
    return c >= UTF8PROC_CATEGORY_LU && c <= UTF8PROC_CATEGORY_LT;
}

static size_t jinja_case_fold(uint32_t code, utf8proc_int32_t out[FOLDED_MAX])
{
    const utf8proc_ssize_t count =
        utf8proc_decompose_char((utf8proc_int32_t)code, out, FOLDED_MAX, UTF8PROC_CASEFOLD, NULL);
    if (count < 1 || count > FOLDED_MAX) {
        out[0] = (utf8proc_int32_t)code;
        return 1;
    }
    return (size_t)count;
}

/* Writes a letter's upper or title case and returns the number of letters. The letters that Unicode's
 * SpecialCasing.txt maps to several letters are those that case folding maps to several. */
static size_t raise_letter(uint32_t code, bool title, utf8proc_int32_t out[FOLDED_MAX])
{
    const utf8proc_int32_t single =
        title ? utf8proc_totitle((utf8proc_int32_t)code) : utf8proc_toupper((utf8proc_int32_t)code);
    size_t count = category(code) == UTF8PROC_CATEGORY_LU ? 1 : jinja_case_fold(code, out);
    if (count == 1 || (title && code != 0xdf &&
                       (single != (utf8proc_int32_t)code || category(code) == UTF8PROC_CATEGORY_LT))) {
        out[0] = single;
        return 1;
    }
    for (size_t i = 0; i < count; i++) {
        const bool iota =
            title && i > 0 && out[i] == 0x3b9; /* the iota becomes a combining mark below the letter */
        out[i] = iota ? 0x345 : i == 0 || !title || code == 0x149 ? utf8proc_toupper(out[i]) : out[i];
    }
    return count;
}

/* Writes the lower case of the capital sigma text[at..next), which has another form at the end of a word. */
static int lower_sigma(const struct jv *text, size_t at, size_t next, utf8proc_int32_t *out, struct err *err)
{
    uint32_t before = ' ', behind = ' ';
    if (at > 0)
        jv_before(text, at, &before);
    if (next < text->size)
        jv_next(text, next, &behind);
    const uint32_t around[2] = {before, behind};
    for (size_t i = 0; i < 2; i++) {
        const utf8proc_category_t c = category(around[i]);
        if (!is_cased(around[i]) && c != UTF8PROC_CATEGORY_LO && c != UTF8PROC_CATEGORY_ND &&
            c != UTF8PROC_CATEGORY_ZS && c != UTF8PROC_CATEGORY_CC) {
            return err_set(err, ERR_UNSUPPORTED, "lower of a capital sigma beside U+%04X",
                           (unsigned)around[i]);
        }
    }
    *out = is_cased(before) && !is_cased(behind) ? 0x3c2 : 0x3c3;
    return 0;
}

static int lower_letter(const struct jv *text, size_t at, size_t next, uint32_t code, utf8proc_int32_t *out,
                        struct err *err)
{
    if (code == 0x3a3)
        return lower_sigma(text, at, next, out, err) < 0 ? -1 : 1;
    out[0] = code == 0x130 ? 'i' : utf8proc_tolower((utf8proc_int32_t)code);
    out[1] = 0x307;
    return code == 0x130 ? 2 : 1;
}

static bool begins_word(enum jinja_letters how, uint32_t before, size_t at)
{
    if (how == LETTERS_TITLE_FILTER)
        return at == 0 || (before < 0x80 && strchr("-({[<", (int)before) != NULL) || utf8_is_blank(before);
    return at == 0 || !is_cased(before);
}

/* Writes the letter's other case to out. Returns the number of letters, or -1. */
static int jinja_case_change(const struct jv *text, size_t at, enum jinja_letters how, uint32_t before,
                             utf8proc_int32_t *out, struct err *err)
{
    uint32_t code;
    const size_t next = jv_next(text, at, &code);
    const bool begins = how == LETTERS_CAPITAL ? at == 0 : begins_word(how, before, at);
    switch (how) {
    case LETTERS_UPPER:
        return (int)raise_letter(code, false, out);
    case LETTERS_FOLD:
        return (int)jinja_case_fold(code, out);
    case LETTERS_SWAP:
        out[0] = (utf8proc_int32_t)code;
        return category(code) == UTF8PROC_CATEGORY_LT ? 1
               : utf8proc_tolower(out[0]) != out[0] || code == 0x130
                   ? lower_letter(text, at, next, code, out, err)
               : category(code) == UTF8PROC_CATEGORY_LL || utf8proc_toupper(out[0]) != out[0]
                   ? (int)raise_letter(code, false, out)
                   : 1;
    case LETTERS_CAPITAL:
    case LETTERS_TITLE:
    case LETTERS_TITLE_FILTER:
        if (begins)
            return (int)raise_letter(code, how != LETTERS_TITLE_FILTER, out);
        break;
    case LETTERS_LOWER:
        break;
    }
    return lower_letter(text, at, next, code, out, err);
}

int jinja_letters(struct jinja_arena *arena, const struct jv *text, enum jinja_letters how, struct jv *out,
                  struct err *err)
{
    struct buf made = {.limit = JINJA_TEXT_MAX};
    uint32_t before = ' ', code;
    int status = 0;
    for (size_t at = 0; at < text->size && status == 0; at = jv_next(text, at, &code), before = code) {
        utf8proc_int32_t letters[FOLDED_MAX];
        uint8_t bytes[4 * FOLDED_MAX];
        size_t size = 0;
        const int count = jinja_case_change(text, at, how, before, letters, err);
        for (int i = 0; i < count; i++)
            size += utf8_encode((uint32_t)letters[i], bytes + size);
        status = count < 0 ? -1 : buf_append(&made, bytes, size, err);
    }
    const bool safe = text->safe && how != LETTERS_TITLE_FILTER;
    status = jv_take(arena, &made, status, out, err);
    out->safe = status == 0 && safe;
    return status;
}

#define LETTERS(name, how)                                                                                   \
    int name(const struct jinja_call *c)                                                                     \
    {                                                                                                        \
        struct jv text;                                                                                      \
        return jv_text_of(c->arena, c->self, &text, c->err) < 0                                              \
                   ? -1                                                                                      \
                   : jinja_letters(c->arena, &text, how, c->out, c->err);                                    \
    }

LETTERS(jinja_do_upper, LETTERS_UPPER)
LETTERS(jinja_do_lower, LETTERS_LOWER)
LETTERS(jinja_do_capitalize, LETTERS_CAPITAL)
LETTERS(jinja_do_title_method, LETTERS_TITLE)
LETTERS(jinja_do_title_filter, LETTERS_TITLE_FILTER)
LETTERS(jinja_do_swapcase, LETTERS_SWAP)
LETTERS(jinja_do_casefold, LETTERS_FOLD)

/* ---- kinds of characters ---- */

/* Returns 1 if a character is of a kind, 0 if not, -1 if utf8proc's tables do not say. */
typedef int character_test(uint32_t code);

static int alpha(uint32_t code)
{
    return jinja_case_is_letter(code);
}

static int decimal(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_ND;
}

/* Tests str.isdigit(). Of the category No Python takes superscripts and circled digits for digits, and
 * fractions not; utf8proc does not distinguish them. */
static int digit(uint32_t code)
{
    return category(code) == UTF8PROC_CATEGORY_NO ? -1 : decimal(code);
}

/* Tests str.isnumeric(). Some ideographs are numbers for Python; utf8proc does not say which. */
static int numeric(uint32_t code)
{
    const utf8proc_category_t c = category(code);
    return c == UTF8PROC_CATEGORY_LO && code >= 0x3000
               ? -1
               : c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO;
}

static int alnum(uint32_t code)
{
    const utf8proc_category_t c = category(code);
    return jinja_case_is_letter(code) || (c >= UTF8PROC_CATEGORY_ND && c <= UTF8PROC_CATEGORY_NO);
}

static int space(uint32_t code)
{
    return utf8_is_blank(code);
}

static int ascii(uint32_t code)
{
    return code < 0x80;
}

static int printable(uint32_t code)
{
    const utf8proc_category_t c = category(code);
    return code == ' ' || !(c == UTF8PROC_CATEGORY_CN || c >= UTF8PROC_CATEGORY_ZS);
}

static int identifier(uint32_t code)
{
    return code == '_' ? 1 : code < 0x80 ? alnum(code) : -1;
}

bool jinja_is_word(uint32_t code)
{
    return code == '_' || alnum(code) == 1;
}

static int all_are(const struct jinja_call *c, character_test *test, bool empty)
{
    bool all = c->self->size > 0 || empty;
    for (size_t at = 0; at < c->self->size && all;) {
        uint32_t code;
        at = jv_next(c->self, at, &code);
        const int is = test(code);
        if (is < 0)
            return err_set(c->err, ERR_UNSUPPORTED, "%s of a string with U+%04X", c->name, (unsigned)code);
        all = is == 1;
    }
    *c->out = jv_bool(all);
    return 0;
}

#define ALL_ARE(name, test, empty)                                                                           \
    int name(const struct jinja_call *c)                                                                     \
    {                                                                                                        \
        return all_are(c, test, empty);                                                                      \
    }

ALL_ARE(jinja_is_alpha, alpha, false)
ALL_ARE(jinja_is_digit, digit, false)
ALL_ARE(jinja_is_decimal, decimal, false)
ALL_ARE(jinja_is_numeric, numeric, false)
ALL_ARE(jinja_is_alnum, alnum, false)
ALL_ARE(jinja_is_space, space, false)
ALL_ARE(jinja_is_ascii, ascii, true)
ALL_ARE(jinja_is_printable_text, printable, true)

int jinja_is_identifier(const struct jinja_call *c)
{
    const bool digit_first = c->self->size > 0 && c->self->text[0] >= '0' && c->self->text[0] <= '9';
    if (digit_first) {
        *c->out = jv_bool(false);
        return 0;
    }
    return all_are(c, identifier, false);
}

/* Returns the case of a letter: 'u', 'l', 't', or 0 for none. Returns -1 for characters whose case Unicode
 * does not derive from their category. */
static int case_of(uint32_t code)
{
    const utf8proc_category_t c = category(code);
    if (code >= 0x80 && (c == UTF8PROC_CATEGORY_LM || c == UTF8PROC_CATEGORY_NL ||
                         c == UTF8PROC_CATEGORY_SO || c == UTF8PROC_CATEGORY_MN)) {
        return utf8proc_toupper((utf8proc_int32_t)code) == (utf8proc_int32_t)code &&
                       utf8proc_tolower((utf8proc_int32_t)code) == (utf8proc_int32_t)code &&
                       c != UTF8PROC_CATEGORY_LM &&
                       !(code >= 0x1f130 && code <= 0x1f189) /* letters in squares */
                   ? 0
                   : -1;
    }
    return c == UTF8PROC_CATEGORY_LU                                   ? 'u'
           : c == UTF8PROC_CATEGORY_LL || code == 0xaa || code == 0xba ? 'l'
           : c == UTF8PROC_CATEGORY_LT                                 ? 't'
                                                                       : 0;
}

/* islower and isupper: at least one letter has the wanted case, and none has another. */
static int all_cased(const struct jinja_call *c, int wanted)
{
    struct jv text;
    bool some = false, other = false;
    if (jv_text_of(c->arena, c->self, &text, c->err) < 0)
        return -1;
    for (size_t at = 0; at < text.size;) {
        uint32_t code;
        at = jv_next(&text, at, &code);
        const int is = case_of(code);
        if (is < 0)
            return err_set(c->err, ERR_UNSUPPORTED, "%s of a string with U+%04X", c->name, (unsigned)code);
        some = some || is == wanted;
        other = other || (is != 0 && is != wanted);
    }
    *c->out = jv_bool(some && !other);
    return 0;
}

int jinja_is_lower(const struct jinja_call *c)
{
    return all_cased(c, 'l');
}

int jinja_is_upper(const struct jinja_call *c)
{
    return all_cased(c, 'u');
}

int jinja_is_title(const struct jinja_call *c)
{
    bool some = false, good = true, inside = false;
    for (size_t at = 0; at < c->self->size && good;) {
        uint32_t code;
        at = jv_next(c->self, at, &code);
        const int is = case_of(code);
        if (is < 0)
            return err_set(c->err, ERR_UNSUPPORTED, "%s of a string with U+%04X", c->name, (unsigned)code);
        good = is == 0 || (is == 'l') == inside;
        inside = is != 0;
        some = some || inside;
    }
    *c->out = jv_bool(some && good);
    return 0;
}
