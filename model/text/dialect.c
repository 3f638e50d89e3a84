/* Rewrites patterns for libonig (dialect.h). A pattern is read once, from left to right, and what is not
 * rewritten is copied. */
#include "model/text/dialect.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 64, GROUPS_DEEP = 128 }; /* GROUPS_DEEP: greatest depth of nested groups */

/* The options that hold in the group that is being read. */
struct pattern_scope {
    bool extended, ignore_case;
};

struct pattern_walk {
    const char *text;
    size_t size, at;
    struct buf *out;
    struct pattern_scope scope, outer[GROUPS_DEEP];
    unsigned depth;   /* number of open groups */
    unsigned classes; /* number of open character classes */
};

int dialect_ranges(const struct code_set *set, struct buf *out, struct err *err)
{
    for (unsigned i = 0; i < set->count; i++) {
        const struct code_range *range = &set->ranges[i];
        if (buf_printf(out, err, range->first == range->last ? "\\x{%x}" : "\\x{%x}-\\x{%x}", range->first,
                       range->last) < 0) {
            return -1;
        }
    }
    return 0;
}

static bool here(const struct pattern_walk *w, const char *text)
{
    const size_t size = strlen(text);
    return w->size - w->at >= size && memcmp(w->text + w->at, text, size) == 0;
}

static int dialect_copy(struct pattern_walk *w, size_t count, struct err *err)
{
    const size_t left = w->size - w->at;
    const size_t taken = count < left ? count : left;
    if (buf_append(w->out, w->text + w->at, taken, err) < 0)
        return -1;
    w->at += taken;
    return 0;
}

static int dialect_refuse(const char *what, struct err *err)
{
    return err_set(err, ERR_UNSUPPORTED, "%s in a regular expression is not supported", what);
}

/* Fold a property's name as Oniguruma does before it compares names: lower case, without spaces, '_' and '-'.
 * Returns false if the name is too long. */
static bool name_fold(const char *text, size_t size, char name[NAME_BYTES])
{
    size_t count = 0;
    for (size_t i = 0; i < size; i++) {
        const char c = text[i];
        if (c == ' ' || c == '_' || c == '-')
            continue;
        if (count + 1 == NAME_BYTES)
            return false;
        name[count++] = (char)(c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c);
    }
    name[count] = '\0';
    return true;
}

/* Write a class of the characters that have the property; 'more' (may be "") holds further members, and
 * 'negative' makes it the class of all other characters. */
static int write_property(struct pattern_walk *w, const char *name, const char *more, bool negative,
                          struct err *err)
{
    const struct unicode_property *p = unicode_property_find(name);
    if (buf_printf(w->out, err, "[%s\\p{%s}%s", negative ? "^" : "", name, more) < 0)
        return -1;
    if (p && dialect_ranges(&p->added, w->out, err) < 0)
        return -1;
    if (p && p->removed.count > 0 &&
        (buf_text(w->out, "&&[^", err) < 0 || dialect_ranges(&p->removed, w->out, err) < 0 ||
         buf_text(w->out, "]", err) < 0)) {
        return -1;
    }
    if (buf_text(w->out, "]", err) < 0)
        return -1;
    /* Behind a property '-' is a literal. Behind the class that now stands for the property it might begin a
     * range, so it is escaped. */
    if (w->classes > 0 && w->at < w->size && w->text[w->at] == '-' && !here(w, "-]")) {
        w->at++;
        return buf_text(w->out, "\\-", err);
    }
    return 0;
}

/* Returns true for a property whose members differ between versions of Unicode when case is ignored. */
static bool depends_on_case(const char *name)
{
    static const char *const names[] = {"lu",
                                        "ll",
                                        "lt",
                                        "lc",
                                        "upper",
                                        "lower",
                                        "uppercaseletter",
                                        "lowercaseletter",
                                        "titlecaseletter",
                                        "casedletter",
                                        "uppercase",
                                        "lowercase",
                                        "cased"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

/* Outside classes Oniguruma's \w also has these Latin-1 characters: superscript digits and fractions. */
static const char word_more[] = "\\x{b2}\\x{b3}\\x{b9}\\x{bc}-\\x{be}";

/* Rewrite "\p{Name}", "\P{Name}" or "\p{^Name}". */
static int walk_property(struct pattern_walk *w, struct err *err)
{
    const char *open = w->text + w->at + 3;
    const char *close = memchr(open, '}', w->size - w->at - 3);
    bool negative = w->text[w->at + 1] == 'P';
    char name[NAME_BYTES];
    if (!close)
        return dialect_copy(w, w->size - w->at, err);
    if (*open == '^') {
        negative = !negative;
        open++;
    }
    if (!name_fold(open, (size_t)(close - open), name))
        return dialect_refuse("a property of so long a name", err);
    if (w->scope.ignore_case && w->classes > 0 && depends_on_case(name))
        return dialect_refuse("a class of upper or lower case letters without regard to case", err);
    w->at = (size_t)(close - w->text) + 1;
    return write_property(w, name, w->classes == 0 && strcmp(name, "word") == 0 ? word_more : "", negative,
                          err);
}

/* Rewrite \b or \B outside a class: \b is a border between a word's character and another character. */
static int write_boundary(struct pattern_walk *w, bool negative, struct err *err)
{
    static const char *const parts[2][5] = {{"(?:(?<=", ")(?!", ")|(?<!", ")(?=", "))"},
                                            {"(?:(?<=", ")(?=", ")|(?<!", ")(?!", "))"}};
    w->at += 2;
    for (int i = 0; i < 5; i++) {
        if (buf_text(w->out, parts[negative][i], err) < 0 ||
            (i < 4 && write_property(w, "word", word_more, false, err) < 0)) {
            return -1;
        }
    }
    return 0;
}

static int walk_escape(struct pattern_walk *w, struct err *err)
{
    const char next = w->at + 1 < w->size ? w->text[w->at + 1] : '\0';
    const bool inside = w->classes > 0;
    switch (next) {
    case 'p':
    case 'P':
        return w->at + 2 < w->size && w->text[w->at + 2] == '{' ? walk_property(w, err)
                                                                : dialect_copy(w, 2, err);
    case 'w':
    case 'W':
        w->at += 2;
        return write_property(w, "word", inside ? "" : word_more, next == 'W', err);
    case 'd':
    case 'D':
        w->at += 2;
        return write_property(w, "digit", "", next == 'D', err);
    case 'b':
    case 'B':
        return inside ? dialect_copy(w, 2, err) : write_boundary(w, next == 'B', err);
    case 'X':
    case 'y':
    case 'Y':
        return inside ? dialect_copy(w, 2, err) : dialect_refuse("\\X, \\y or \\Y", err);
    default:
        return dialect_copy(w, 2, err);
    }
}

/* Rewrite "[:name:]" inside a class; *done is false where there is none. */
static int walk_bracket(struct pattern_walk *w, bool *done, struct err *err)
{
    static const char *const names[] = {"alnum", "alpha", "lower", "upper", "graph",
                                        "print", "digit", "word",  "punct"};
    const bool negative = here(w, "[:^");
    *done = false;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char bracket[16];
        snprintf(bracket, sizeof(bracket), "[:%s%s:]", negative ? "^" : "", names[i]);
        if (!here(w, bracket))
            continue;
        *done = true;
        if (w->scope.ignore_case && depends_on_case(names[i]))
            return dialect_refuse("a class of upper or lower case letters without regard to case", err);
        w->at += strlen(bracket);
        if (strcmp(names[i], "punct") != 0)
            return write_property(w, names[i], "", negative, err);
        /* [:punct:] contains the symbols, and \p{Punct} does not. */
        const struct unicode_property *symbols = unicode_property_find("s");
        struct buf more = {.limit = 1 << 16};
        int status = buf_text(&more, "\\p{s}", err);
        if (status == 0 && symbols)
            status = dialect_ranges(&symbols->added, &more, err);
        status = status < 0 ? -1 : write_property(w, "p", buf_str(&more), negative, err);
        buf_fini(&more);
        return status;
    }
    return 0;
}

static bool is_bracket(const struct pattern_walk *w)
{
    static const char *const names[] = {"[:blank:]",   "[:cntrl:]",  "[:space:]",  "[:xdigit:]",
                                        "[:ascii:]",   "[:^blank:]", "[:^cntrl:]", "[:^space:]",
                                        "[:^xdigit:]", "[:^ascii:]"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (here(w, names[i]))
            return true;
    return false;
}

/* Copy what opens a class: "[", "^", and a "]" that stands first and so is a member. */
static int walk_open(struct pattern_walk *w, struct err *err)
{
    bool done = false;
    if (w->classes > 0 && walk_bracket(w, &done, err) < 0)
        return -1;
    if (done)
        return 0;
    if (w->classes > 0 && is_bracket(w)) {
        const char *close = memchr(w->text + w->at, ']', w->size - w->at);
        return dialect_copy(w, (size_t)(close - w->text) + 1 - w->at, err);
    }
    w->classes++;
    if (dialect_copy(w, 1, err) < 0 || (here(w, "^") && dialect_copy(w, 1, err) < 0))
        return -1;
    return here(w, "]") ? dialect_copy(w, 1, err) : 0;
}

static int walk_in_class(struct pattern_walk *w, struct err *err)
{
    switch (w->text[w->at]) {
    case '\\':
        return walk_escape(w, err);
    case '[':
        return walk_open(w, err);
    case ']':
        w->classes--;
        return dialect_copy(w, 1, err);
    default:
        return dialect_copy(w, 1, err);
    }
}

/* Read the letters of options behind "(?". They hold to the end of the group that they open or stand in. */
static int walk_options(struct pattern_walk *w, struct pattern_scope *scope, bool *is_group, struct err *err)
{
    bool on = true;
    for (; w->at < w->size && strchr("imx-", w->text[w->at]) && w->text[w->at] != '\0';) {
        const char c = w->text[w->at];
        on = c == '-' ? false : on;
        scope->extended = c == 'x' ? on : scope->extended;
        scope->ignore_case = c == 'i' ? on : scope->ignore_case;
        if (dialect_copy(w, 1, err) < 0)
            return -1;
    }
    const char end = w->at < w->size ? w->text[w->at] : '\0';
    if (end != ':' && end != ')')
        return dialect_refuse("an option of a group other than i, m and x", err);
    *is_group = end == ':';
    return dialect_copy(w, 1, err);
}

static int walk_comment(struct pattern_walk *w, const char end, struct err *err)
{
    while (w->at < w->size && w->text[w->at] != end)
        if (dialect_copy(w, w->text[w->at] == '\\' && end == ')' ? 2 : 1, err) < 0)
            return -1;
    return dialect_copy(w, 1, err);
}

static int walk_group(struct pattern_walk *w, struct err *err)
{
    struct pattern_scope scope = w->scope;
    bool is_group = true;
    if (here(w, "(?#"))
        return walk_comment(w, ')', err);
    if (here(w, "(*") || here(w, "(?{") || here(w, "(?C") || here(w, "(?y") || here(w, "(?L") ||
        here(w, "(?I")) {
        return dialect_refuse("a callout or a rarer group", err);
    }
    const char kind = here(w, "(?") && w->at + 2 < w->size ? w->text[w->at + 2] : '\0';
    if (kind != '\0' && !strchr(":=!<>'~(|", kind)) {
        if (dialect_copy(w, 2, err) < 0 || walk_options(w, &scope, &is_group, err) < 0)
            return -1;
    } else if (dialect_copy(w, kind == '\0' ? 1 : 3, err) < 0) {
        return -1;
    }
    if (!is_group) {
        w->scope = scope;
        return 0;
    }
    if (w->depth == GROUPS_DEEP) {
        return err_set(err, ERR_TOO_BIG, "a regular expression of more than %d groups in one another",
                       GROUPS_DEEP);
    }
    w->outer[w->depth++] = w->scope;
    w->scope = scope;
    return 0;
}

int dialect_oniguruma(const char *pattern, size_t size, struct buf *out, struct err *err)
{
    struct pattern_walk w = {.text = pattern, .size = size, .out = out};
    while (w.at < size) {
        const char c = pattern[w.at];
        int status;
        if (w.classes > 0) {
            status = walk_in_class(&w, err);
        } else if (c == '\\') {
            status = walk_escape(&w, err);
        } else if (c == '[') {
            status = walk_open(&w, err);
        } else if (c == '(') {
            status = walk_group(&w, err);
        } else if (c == '#' && w.scope.extended) {
            status = walk_comment(&w, '\n', err);
        } else {
            if (c == ')' && w.depth > 0)
                w.scope = w.outer[--w.depth];
            status = dialect_copy(&w, 1, err);
        }
        if (status < 0)
            return -1;
    }
    return 0;
}
