/* This file finds the patterns that Oniguruma and PCRE2 read alike, and writes them for PCRE2. See
 * dialect.h. */
#include <string.h>

#include "model/text/dialect.h"
#include "model/text/utf8.h"

/* The greatest depth of nested groups, and the most digits of a quantifier's bound, that PCRE2 is given. */
enum { GROUPS_DEEP = 32, COUNT_DIGITS = 3 };

/* Unicode's White_Space property as the inside of a character class. PCRE2's own \s has U+180E too. */
static const char white_space[] =
    "\\t-\\r\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}";

/* The pattern that is being read. */
struct pattern_reader {
    const char *text;
    size_t size, at;
    bool ignore_case; /* true inside a group "(?i:" */
    char before;      /* the literal before 'at', or '\0'; used with 'ignore_case' */
};

/* Returns the size of the "\p{Name}" that 'text' begins with, or 0. Only categories are listed that mean the
 * same in both engines and from which Unicode 16 removed no character. */
static size_t category_size(const char *text, size_t size)
{
    static const char *const names[] = {"L",  "N",  "P",  "S",  "M",  "Z",  "Lu", "Ll", "Lt", "Lm",
                                        "Lo", "Nd", "Nl", "No", "Pc", "Pd", "Ps", "Pe", "Pi", "Pf",
                                        "Po", "Sm", "Sc", "Sk", "So", "Mc", "Me", "Zs"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        const size_t length = strlen(names[i]);
        if (size >= length + 4 && (text[1] == 'p' || text[1] == 'P') && text[2] == '{' &&
            memcmp(text + 3, names[i], length) == 0 && text[3 + length] == '}') {
            return length + 4;
        }
    }
    return 0;
}

static bool dialect_common_is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Returns true for two letters that Oniguruma, unlike PCRE2, takes for another case of one character ("ss"
 * for U+00DF). */
static bool folds_together(char first, char second)
{
    static const char *const pairs[] = {"ss", "st", "ff", "fi", "fl"};
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        if ((first | 0x20) == pairs[i][0] && (second | 0x20) == pairs[i][1])
            return true;
    return false;
}

/* Returns the size of the escape at the current position, or 0 if the two engines may read it differently. */
static size_t escape_size(const struct pattern_reader *r, bool in_class)
{
    const char *text = r->text + r->at;
    const size_t left = r->size - r->at;
    if (left < 2)
        return 0;
    const char next = text[1];
    if (next == 'p' || next == 'P')
        return r->ignore_case || (in_class && next == 'P') ? 0 : category_size(text, left);
    if (next == 'r' || next == 'n' || next == 't' || next == 's' || (next == 'S' && !in_class))
        return 2;
    return next > ' ' && next < 0x7f && !dialect_common_is_letter(next) && !(next >= '0' && next <= '9') &&
                   next != '<' && next != '>' && next != '\'' && next != '`'
               ? 2
               : 0;
}

/* Returns the size of the character at 'at' inside a class, or 0 if it may have a special meaning there. */
static size_t member_size(const struct pattern_reader *r, size_t at, uint32_t *code)
{
    unsigned bad;
    const size_t size =
        at < r->size ? utf8_decode((const uint8_t *)r->text + at, r->size - at, code, &bad, NULL) : 0;
    const bool special = size == 1 && strchr("[]\\^-&", (int)*code);
    return special || (r->ignore_case && size > 1) || (size == 1 && *code == 0) ? 0 : size;
}

/* Read a class without classes in it; false if it is anything else. */
static bool class_read(struct pattern_reader *r)
{
    r->at++;
    if (r->at < r->size && r->text[r->at] == '^')
        r->at++;
    bool empty = true;
    while (r->at < r->size && r->text[r->at] != ']') {
        uint32_t from = 0;
        uint32_t to = 0;
        const size_t escape = r->text[r->at] == '\\' ? escape_size(r, true) : 0;
        const size_t member = escape > 0 ? 0 : member_size(r, r->at, &from);
        if (escape == 0 && member == 0)
            return false;
        r->at += escape + member;
        empty = false;
        if (r->at + 1 < r->size &&
            /* A range must be of plain characters and rise; or '-' must be the last in the class. */
            r->text[r->at] == '-') {
            const size_t last = member_size(r, r->at + 1, &to);
            if (r->text[r->at + 1] != ']' && (member == 0 || last == 0 || to < from))
                return false;
            r->at += 1 + last;
        }
    }
    r->before = '\0';
    return !empty && r->at++ < r->size;
}

/* Read the bounds of "{2}" or "{2,3}"; false if it is anything else. */
static bool counts_read(struct pattern_reader *r)
{
    unsigned count[2] = {0, 0};
    int which = 0;
    unsigned digits = 0;
    for (r->at++; r->at < r->size && r->text[r->at] != '}'; r->at++) {
        const char c = r->text[r->at];
        if (c == ',' && which == 0 && digits > 0) {
            which = 1;
            digits = 0;
        } else if (c >= '0' && c <= '9' && digits < COUNT_DIGITS) {
            count[which] = 10 * count[which] + (unsigned)(c - '0');
            digits++;
        } else {
            return false;
        }
    }
    if (digits == 0 || r->at == r->size || (which == 1 && count[1] < count[0]))
        return false;
    r->at++;
    return r->at == r->size || !strchr("?+*{", r->text[r->at]);
}

/* Read the quantifier at the current position, if there is one; false if the engines may read it
 * differently. */
static bool quantifier_read(struct pattern_reader *r)
{
    if (r->at == r->size || !strchr("?*+{", r->text[r->at]))
        return true;
    if (r->text[r->at] == '{')
        return counts_read(r);
    r->at++;
    if (r->at < r->size && (r->text[r->at] == '?' || r->text[r->at] == '+'))
        r->at++;
    return r->at == r->size || !strchr("?*+{", r->text[r->at]);
}

/* Read a literal character outside classes; false if it is none. */
static bool literal_read(struct pattern_reader *r)
{
    const unsigned char c = (unsigned char)r->text[r->at];
    if (c == 0 || strchr("\\^$.[]|()?*+{}", c) || (r->ignore_case && c >= 0x80))
        return false;
    if (r->ignore_case && folds_together(r->before, (char)c))
        return false;
    r->before = (char)c;
    r->at++;
    while (r->at < r->size && ((unsigned char)r->text[r->at] & 0xc0) == 0x80)
        r->at++;
    return true;
}

/* Returns the size of a group's opening, or 0 if the engines may read it differently. */
static size_t group_size(const struct pattern_reader *r)
{
    const char *text = r->text + r->at;
    const size_t left = r->size - r->at;
    if (left >= 4 && memcmp(text, "(?i:", 4) == 0)
        return 4;
    if (left >= 3 && text[1] == '?' && (text[2] == ':' || text[2] == '=' || text[2] == '!'))
        return 3;
    return left >= 2 && text[1] != '?' && text[1] != '*' ? 1 : 0;
}

/* Read an escape, a class or a literal, and its quantifier. */
static bool atom_read(struct pattern_reader *r)
{
    if (r->text[r->at] == '\\') {
        const size_t size = escape_size(r, false);
        r->at += size;
        r->before = '\0';
        return size > 0 && quantifier_read(r);
    }
    return (r->text[r->at] == '[' ? class_read(r) : literal_read(r)) && quantifier_read(r);
}

bool dialect_is_common(const char *pattern, size_t size)
{
    struct pattern_reader r = {.text = pattern, .size = size};
    struct {
        bool ignore_case, looks;
    } outer[GROUPS_DEEP];
    unsigned depth = 0;
    while (r.at < size) {
        const char c = pattern[r.at];
        if (c == '|') {
            r.at++;
            r.before = '\0';
        } else if (c == '(') {
            const size_t opening = group_size(&r);
            if (opening == 0 || depth == GROUPS_DEEP)
                return false;
            outer[depth].ignore_case = r.ignore_case;
            outer[depth++].looks = opening == 3 && pattern[r.at + 2] != ':';
            r.ignore_case = r.ignore_case || opening == 4;
            r.at += opening;
        } else if (c == ')') {
            if (depth == 0)
                return false;
            r.ignore_case = outer[--depth].ignore_case;
            r.at++;
            const size_t behind = r.at;
            if (!quantifier_read(&r) || (outer[depth].looks && r.at != behind))
                return false;
        } else if (!atom_read(&r)) {
            return false;
        }
    }
    return depth == 0 && size > 0;
}

static int write_category(const char *escape, size_t size, bool in_class, bool newer, struct buf *out,
                          struct err *err)
{
    char name[4] = "";
    for (size_t i = 3; i + 1 < size; i++)
        name[i - 3] = (char)(escape[i] | 0x20);
    const struct unicode_property *p = newer ? unicode_property_find(name) : NULL;
    const struct code_set none = {0};
    if (in_class || (!newer && escape[1] == 'p'))
        return buf_append(out, escape, size, err) < 0 ? -1 : dialect_ranges(p ? &p->added : &none, out, err);
    if (buf_printf(out, err, "[%s\\p%.*s", escape[1] == 'P' ? "^" : "", (int)size - 2, escape + 2) < 0 ||
        dialect_ranges(p ? &p->added : &none, out, err) < 0) {
        return -1;
    }
    return buf_text(out, "]", err);
}

int dialect_pcre2(const char *pattern, size_t size, bool newer, struct buf *out, struct err *err)
{
    bool in_class = false;
    for (size_t at = 0; at < size;) {
        const char *text = pattern + at;
        size_t taken = *text == '\\' ? 2 : 1;
        int status;
        const size_t category = *text == '\\' ? category_size(text, size - at) : 0;
        if (category > 0) {
            taken = category;
            status = write_category(text, category, in_class, newer, out, err);
        } else if (*text == '\\' && (text[1] == 's' || text[1] == 'S')) {
            status = in_class ? buf_text(out, white_space, err)
                              : buf_printf(out, err, "[%s%s]", text[1] == 'S' ? "^" : "", white_space);
        } else {
            in_class = *text == '[' ? true : *text == ']' ? false : in_class;
            status = buf_append(out, text, taken, err);
        }
        if (status < 0)
            return -1;
        at += taken;
    }
    return 0;
}
