/* This file checks what stands before quantifiers: see dialect_targets_check() in dialect.h.
 *
 * The rule is is_invalid_quantifier_target() of Oniguruma 6.9.10 (regparse.c): an anchor cannot be repeated,
 * nor can a group "(?:" of which one alternative consists of an anchor alone.
 */
#include <string.h>

#include "model/text/dialect.h"

enum { GROUPS_DEEP = 128 }; /* greatest depth of nested groups */

/* An open group, or the whole pattern. */
struct group {
    /* the group is "(?:", which counts as an anchor if one of its alternatives is an anchor alone */
    bool plain;
    bool look;     /* the group is a look-ahead or look-behind, which counts as an anchor */
    bool extended; /* option x holds: white space is ignored, and '#' begins a comment */
    bool
        options; /* an option such as "(?i)" stood in the group, which makes the rest of the group one part */
    bool anchor; /* the last part is an anchor */
    bool any_anchor; /* an earlier alternative consists of an anchor alone */
    /* number of parts of the alternative that is being read; 2 stands for two or more */
    unsigned parts;
};

struct target_walk {
    const char *text;
    size_t size, at;
    struct group group[GROUPS_DEEP + 1];
    unsigned depth;
};

static bool is_at(const struct target_walk *w, const char *text)
{
    const size_t size = strlen(text);
    return w->size - w->at >= size && memcmp(w->text + w->at, text, size) == 0;
}

static void dialect_targets_part_add(struct target_walk *w, bool anchor, size_t size)
{
    struct group *g = &w->group[w->depth];
    g->parts += g->parts < 2;
    g->anchor = anchor;
    w->at += size;
}

static void class_skip(struct target_walk *w)
{
    unsigned open = 0;
    do {
        if (w->text[w->at] == '\\') {
            w->at++;
        } else if (w->text[w->at] == '[') {
            open++;
            w->at += w->at + 1 < w->size && w->text[w->at + 1] == '^';
            /* A "]" directly behind "[" or "[^" is a member of the class. */
            w->at += w->at + 1 < w->size && w->text[w->at + 1] == ']';
        } else if (w->text[w->at] == ']') {
            open--;
        }
        w->at++;
    } while (open > 0 && w->at < w->size);
}

static void dialect_targets_comment_skip(struct target_walk *w, char end)
{
    while (w->at < w->size && w->text[w->at] != end)
        w->at += w->text[w->at] == '\\' && end == ')' ? 2 : 1;
    w->at++;
}

/* Returns the size in bytes of the quantifier that begins at the current position, or 0. */
static size_t quantifier_size(const struct target_walk *w)
{
    static const char digits[] = "0123456789";
    const char *text = w->text + w->at;
    const size_t left = w->size - w->at;
    if (strchr("*+?", *text) && *text != '\0')
        return 1;
    size_t at = 1;
    const size_t first = at;
    if (*text != '{')
        return 0;
    while (at < left && text[at] != '\0' && strchr(digits, text[at]))
        at++;
    size_t count = at - first;
    if (at < left && text[at] == ',') {
        const size_t second = ++at;
        while (at < left && text[at] != '\0' && strchr(digits, text[at]))
            at++;
        count += at - second;
    }
    return count > 0 && at < left && text[at] == '}' ? at + 1 : 0;
}

/* Read the options of a group, from "(?" up to ")" or ":"; *opens is true for ":". Returns false if the group
 * has none. */
static bool dialect_targets_options_read(struct target_walk *w, struct group *inner, bool *opens)
{
    bool on = true;
    size_t at = w->at + 2;
    for (; at < w->size && w->text[at] != '\0' && strchr("imx-", w->text[at]); at++) {
        on = w->text[at] == '-' ? false : on;
        inner->extended = w->text[at] == 'x' ? on : inner->extended;
    }
    if (at >= w->size || at == w->at + 2 || (w->text[at] != ':' && w->text[at] != ')'))
        return false;
    *opens = w->text[at] == ':';
    w->at = at + 1;
    return true;
}

static int group_open(struct target_walk *w, struct err *err)
{
    struct group *outer = &w->group[w->depth];
    struct group inner = {.extended = outer->extended};
    bool opens = true;
    if (is_at(w, "(?#")) {
        dialect_targets_comment_skip(w, ')');
        return 0;
    }
    inner.plain = is_at(w, "(?:");
    inner.look = is_at(w, "(?=") || is_at(w, "(?!") || is_at(w, "(?<=") || is_at(w, "(?<!");
    if (!is_at(w, "(?") || !dialect_targets_options_read(w, &inner, &opens))
        w->at += !is_at(w, "(?") ? 1 : is_at(w, "(?<=") || is_at(w, "(?<!") ? 4 : 3;
    if (!opens) {
        dialect_targets_part_add(w, false, 0);
        outer->extended = inner.extended;
        outer->options = true;
        return 0;
    }
    if (w->depth == GROUPS_DEEP) {
        return err_set(err, ERR_TOO_BIG, "a regular expression of more than %d groups in one another",
                       GROUPS_DEEP);
    }
    w->group[++w->depth] = inner;
    return 0;
}

static void alternative_end(struct target_walk *w)
{
    struct group *g = &w->group[w->depth];
    if (!g->options) {
        g->any_anchor |= g->parts == 1 && g->anchor;
        g->parts = 0;
    }
    g->anchor = false;
}

static void group_close(struct target_walk *w)
{
    bool anchor = false;
    alternative_end(w);
    if (w->depth > 0) {
        anchor = w->group[w->depth].look || (w->group[w->depth].plain && w->group[w->depth].any_anchor);
        w->depth--;
    }
    dialect_targets_part_add(w, anchor, 1);
}

static int dialect_targets_step(struct target_walk *w, struct err *err)
{
    const char c = w->text[w->at];
    struct group *g = &w->group[w->depth];
    const size_t quantifier = quantifier_size(w);
    if (quantifier > 0) {
        w->at += quantifier;
        if (g->anchor) {
            return err_set(err, ERR_INVALID,
                           "an anchor (such as ^, $, \\b or a look ahead) with a quantifier behind it is not "
                           "taken by tokenizers");
        }
    } else if (c == '\\') {
        const char next = w->at + 1 < w->size ? w->text[w->at + 1] : '\0';
        dialect_targets_part_add(w, next != '\0' && strchr("AZzbBGKyY", next), 2);
    } else if (c == '[') {
        class_skip(w);
        dialect_targets_part_add(w, false, 0);
    } else if (c == '(') {
        return group_open(w, err);
    } else if (c == ')') {
        group_close(w);
    } else if (c == '|') {
        alternative_end(w);
        w->at++;
    } else if (g->extended && c == '#') {
        dialect_targets_comment_skip(w, '\n');
    } else if (g->extended && (c == ' ' || (c >= '\t' && c <= '\r'))) {
        w->at++;
    } else {
        dialect_targets_part_add(w, c == '^' || c == '$', 1);
    }
    return 0;
}

int dialect_targets_check(const char *pattern, size_t size, struct err *err)
{
    struct target_walk w = {.text = pattern, .size = size};
    while (w.at < size)
        if (dialect_targets_step(&w, err) < 0)
            return -1;
    return 0;
}
