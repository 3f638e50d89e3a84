/* Reads the tokens of a tag, and skips the white space that tags remove from the text around them. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "model/templates/jinja.h"
#include "model/templates/jinja_parser.h"
#include "model/text/utf8.h"

enum { LIST_MAX = 65536 };

int jinja_fail(struct jinja_parser *p, enum err_code code, const char *what, const struct jv *name)
{
    const int size = !name ? 0 : (int)(name->size < 60 ? name->size : 60);
    return err_set(p->err, code, "line %u: %s%s%.*s%s", p->token.line > 0 ? p->token.line : p->line, what,
                   name ? " \"" : "", size, name ? name->text : "", name ? "\"" : "");
}

struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_kind kind)
{
    struct jinja_node *node = jinja_alloc(p->arena, sizeof(*node), p->err);
    if (node) {
        node->kind = kind;
        node->line = p->token.line > 0 ? p->token.line : p->line;
    }
    return node;
}

int jinja_nodes_add(struct jinja_parser *p, struct jinja_nodes *nodes, struct jinja_node *node)
{
    if (nodes->count == LIST_MAX)
        return jinja_fail(p, ERR_TOO_BIG, "a list of too many parts", NULL);
    if (nodes->count == nodes->capacity) {
        const size_t capacity = nodes->capacity == 0 ? 8 : 2 * nodes->capacity;
        struct jinja_node **items = jinja_alloc(p->arena, capacity * sizeof(struct jinja_node *), p->err);
        if (!items)
            return -1;
        if (nodes->count > 0)
            memcpy(items, nodes->items, nodes->count * sizeof(struct jinja_node *));
        nodes->items = items;
        nodes->capacity = capacity;
    }
    nodes->items[nodes->count++] = node;
    return 0;
}

int jinja_deeper(struct jinja_parser *p)
{
    return ++p->depth > JINJA_DEPTH_MAX ? jinja_fail(p, ERR_TOO_BIG, "nested too deep", NULL) : 0;
}

static bool is_blank_at(const struct jinja_parser *p, size_t at, size_t *next)
{
    uint32_t code;
    *next = utf8_next(p->text, p->size, at, &code);
    return utf8_is_blank(code);
}

static void blanks_skip(struct jinja_parser *p)
{
    size_t next;
    while (p->at < p->size && is_blank_at(p, p->at, &next)) {
        p->line += p->text[p->at] == '\n';
        p->at = next;
    }
}

static bool looking_at(const struct jinja_parser *p, const char *text)
{
    const size_t size = strlen(text);
    return p->size - p->at >= size && memcmp(p->text + p->at, text, size) == 0;
}

void jinja_end_trim(struct jinja_parser *p, char sign, bool block)
{
    if (sign == '-') {
        blanks_skip(p);
    } else if (block && sign != '+' && p->at < p->size && p->text[p->at] == '\n') {
        p->at++;
        p->line++;
    }
}

/* Returns true and makes T_END the current token if the tag ends here. */
static bool tag_ends(struct jinja_parser *p)
{
    const char sign =
        p->at < p->size && (p->text[p->at] == '-' || p->text[p->at] == '+') ? p->text[p->at] : '\0';
    const size_t behind = p->at + (sign != '\0');
    if (p->open > 0 || p->size - behind < 2 || p->text[behind + 1] != '}' ||
        (p->text[behind] != '%' && p->text[behind] != '}')) {
        return false;
    }
    const bool block = p->text[behind] == '%';
    p->token.kind = T_END;
    p->token.value = jv_borrow(p->text + behind, 2);
    p->at = behind + 2;
    jinja_end_trim(p, sign, block && !p->keep_line);
    return true;
}

static int jinja_token_hex_of(struct jinja_parser *p, size_t digits, uint32_t *code)
{
    *code = 0;
    for (size_t i = 0; i < digits; i++, p->at++) {
        const char c = p->at < p->size ? p->text[p->at] : '\0';
        const char *hex = "0123456789abcdefABCDEF";
        const char *found = c != '\0' ? strchr(hex, c) : NULL;
        if (!found)
            return jinja_fail(p, ERR_INVALID, "an escape that is none", NULL);
        const uint32_t digit = (uint32_t)(found - hex);
        *code = *code << 4 | (digit < 16 ? digit : digit - 6);
    }
    return *code < 0x110000 && (*code < 0xd800 || *code > 0xdfff)
               ? 0
               : jinja_fail(p, ERR_INVALID, "an escape \\u or \\x that is no character", NULL);
}

/* Reads an escape behind its backslash and writes it to out[0..4). Returns the number of bytes, or -1. */
static int escape_read(struct jinja_parser *p, uint8_t out[4])
{
    static const char names[] = "abfnrtv\\'\"\n";
    static const char values[] = "\a\b\f\n\r\t\v\\'\"";
    uint32_t code;
    const char c = p->text[p->at++];
    const char *found = c != '\0' ? strchr(names, c) : NULL;
    if (c == '\n')
        return 0; /* a backslash before a line end removes both */
    if (c >= '0' && c <= '7') {
        code = (uint32_t)(c - '0');
        for (int i = 0; i < 2 && p->text[p->at] >= '0' && p->text[p->at] <= '7'; i++)
            code = code * 8 + (uint32_t)(p->text[p->at++] - '0');
        return (int)utf8_encode(code, out);
    }
    if (c == 'N')
        return jinja_fail(p, ERR_UNSUPPORTED, "the escape \\N in a string", NULL);
    if (found) {
        out[0] = (uint8_t)values[found - names];
        return 1;
    }
    if (c == 'x' || c == 'u' || c == 'U')
        return jinja_token_hex_of(p,
                                  c == 'x'   ? 2
                                  : c == 'u' ? 4
                                             : 8,
                                  &code) < 0
                   ? -1
                   : (int)utf8_encode(code, out);
    out[0] = '\\';
    out[1] = (uint8_t)c;
    return 2;
}

static int string_read(struct jinja_parser *p)
{
    const char quote = p->text[p->at++];
    const size_t begin = p->at;
    size_t end = begin;
    while (end < p->size && p->text[end] != quote)
        end += p->text[end] == '\\' ? 2 : 1;
    if (end >= p->size)
        return jinja_fail(p, ERR_INVALID, "a text that does not end", NULL);
    uint8_t *made = jinja_alloc(p->arena, 4 * (end - begin) + 4, p->err);
    size_t size = 0;
    while (made && p->at < end) {
        if (p->text[p->at] == '\\') {
            p->at++;
            const int more = escape_read(p, made + size);
            if (more < 0)
                return -1;
            size += (size_t)more;
            continue;
        }
        p->line += p->text[p->at] == '\n';
        made[size++] = (uint8_t)p->text[p->at++];
    }
    p->at = end + 1;
    p->token.kind = T_STRING;
    p->token.value = jv_borrow((const char *)made, size);
    if (made && utf8_check((const char *)made, size) != size)
        return jinja_fail(p, ERR_INVALID, "a text that is not UTF-8", NULL);
    return made ? 0 : -1;
}

static bool jinja_token_is_letter(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || (unsigned char)c >= 0x80;
}

static bool jinja_token_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Reads a number with a base prefix (0x1f, 0o17, 0b11), with underscores between digits. Returns 1, 0 if the
 * number has no prefix, or -1. */
static int based_read(struct jinja_parser *p)
{
    const char letter = p->at + 1 < p->size ? (char)(p->text[p->at + 1] | 0x20) : '\0';
    const int base = letter == 'x' ? 16 : letter == 'o' ? 8 : letter == 'b' ? 2 : 0;
    const char *digits = "0123456789abcdef";
    uint64_t value = 0;
    size_t at = p->at + 2, count = 0;
    if (p->text[p->at] != '0' || base == 0)
        return 0;
    for (; at < p->size; at++, count++) {
        at += p->text[at] == '_' && at + 1 < p->size;
        const char c = p->text[at];
        const char *found =
            c != '\0' ? memchr(digits, c >= 'A' && c <= 'F' ? c | 0x20 : c, (size_t)base) : NULL;
        if (!found) {
            at -= p->text[at - 1] == '_';
            break;
        }
        if (value > (uint64_t)INT64_MAX / (unsigned)base)
            return jinja_fail(p, ERR_TOO_BIG, "an integer beyond 64 bits", NULL);
        value = value * (unsigned)base + (uint64_t)(found - digits);
    }
    if (count == 0 || value > INT64_MAX)
        return count == 0 ? 0 : jinja_fail(p, ERR_TOO_BIG, "an integer beyond 64 bits", NULL);
    p->at = at;
    p->token.kind = T_NUMBER;
    p->token.value = jv_int((int64_t)value);
    return 1;
}

static int jinja_token_number_read(struct jinja_parser *p)
{
    const int based = based_read(p);
    if (based != 0)
        return based < 0 ? -1 : 0;
    char digits[64];
    size_t count = 0;
    bool real = false;
    const bool member = p->at > 0 && p->text[p->at - 1] == '.'; /* in list.0.1 each number is an index */
    for (; p->at < p->size && count + 1 < sizeof(digits); p->at++) {
        const char c = p->text[p->at];
        const bool point = c == '.' && p->at + 1 < p->size && strchr("0123456789", p->text[p->at + 1]) &&
                           p->text[p->at + 1] != '\0';
        const bool between =
            c == '_' && count > 0 && p->at + 1 < p->size && jinja_token_is_digit(p->text[p->at + 1]);
        if (!jinja_token_is_digit(c) && !between && !(point && !real && !member))
            break;
        if (count == 1 && digits[0] == '0' && !real && jinja_token_is_digit(c) && c != '0')
            return jinja_fail(p, ERR_INVALID, "a number that begins with 0", NULL);
        real = real || point;
        if (c != '_')
            digits[count++] = c;
    }
    const size_t sign = p->at + 1 < p->size && (p->text[p->at + 1] == '-' || p->text[p->at + 1] == '+');
    if (p->at + 1 + sign < p->size && (p->text[p->at] == 'e' || p->text[p->at] == 'E') &&
        jinja_token_is_digit(p->text[p->at + 1 + sign])) {
        real = true;
        for (size_t i = 0; count + 1 < sizeof(digits) && p->at < p->size &&
                           (i <= sign || jinja_token_is_digit(p->text[p->at]));
             i++, p->at++) {
            digits[count++] = p->text[p->at];
        }
    }
    digits[count] = '\0';
    errno = 0;
    p->token.kind = T_NUMBER;
    p->token.value = real ? jv_float(strtod(digits, NULL)) : jv_int(strtoll(digits, NULL, 10));
    return errno == ERANGE && !real ? jinja_fail(p, ERR_TOO_BIG, "an integer beyond 64 bits", NULL) : 0;
}

int jinja_advance(struct jinja_parser *p)
{
    static const char *const operators[] = {"==", "!=", "<=", ">=", "//", "**", "+", "-", "*",
                                            "/",  "%",  "~",  "<",  ">",  "=",  "(", ")", "[",
                                            "]",  "{",  "}",  ",",  ":",  ".",  "|", ";"};
    blanks_skip(p);
    p->token.line = p->line;
    if (p->at == p->size)
        return jinja_fail(p, ERR_INVALID, "the template ends within a tag", NULL);
    if (tag_ends(p))
        return 0;
    const char c = p->text[p->at];
    if (c == '\'' || c == '"')
        return string_read(p);
    if (jinja_token_is_digit(c))
        return jinja_token_number_read(p);
    const size_t begin = p->at;
    if (jinja_token_is_letter(c)) {
        while (p->at < p->size &&
               (jinja_token_is_letter(p->text[p->at]) || jinja_token_is_digit(p->text[p->at])))
            p->at++;
        p->token.kind = T_NAME;
        p->token.value = jv_borrow(p->text + begin, p->at - begin);
        return 0;
    }
    for (size_t i = 0; i < sizeof(operators) / sizeof(operators[0]); i++) {
        if (looking_at(p, operators[i])) {
            p->at += strlen(operators[i]);
            p->open += strchr("([{", c) != NULL;
            p->open -= strchr(")]}", c) && p->open > 0;
            p->token.kind = T_OPERATOR;
            p->token.value = jv_borrow(p->text + begin, p->at - begin);
            return 0;
        }
    }
    const struct jv one = jv_borrow(p->text + begin, 1);
    return jinja_fail(p, ERR_INVALID, "a character that means nothing in a tag:", &one);
}

bool jinja_is_name(const struct jinja_parser *p, const char *name)
{
    return p->token.kind == T_NAME && jv_is_text(&p->token.value, name);
}

bool jinja_is_operator(const struct jinja_parser *p, const char *text)
{
    return p->token.kind == T_OPERATOR && jv_is_text(&p->token.value, text);
}

int jinja_expected(struct jinja_parser *p, const char *what)
{
    if (p->token.kind == T_NUMBER)
        return err_set(p->err, ERR_INVALID, "line %u: a number where %s must be", p->token.line, what);
    return err_set(p->err, ERR_INVALID, "line %u: \"%.*s\" where %s must be", p->token.line,
                   (int)(p->token.value.size < 60 ? p->token.value.size : 60), p->token.value.text, what);
}

int jinja_take_operator(struct jinja_parser *p, const char *text)
{
    return jinja_is_operator(p, text) ? jinja_advance(p) : jinja_expected(p, text);
}
