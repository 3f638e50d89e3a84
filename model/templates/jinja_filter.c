#include "model/templates/jinja_filter.h"

#include <string.h>

#include "model/templates/jinja_case.h"
#include "model/templates/jinja_format.h"
#include "model/templates/jinja_lists.h"
#include "model/templates/jinja_method.h"
#include "model/templates/jinja_print.h"
#include "model/templates/jinja_text.h"
#include "model/text/utf8.h"

enum { PPRINT_WIDTH = 80, INDENT_MAX = 10000 };

int jinja_do_default(const struct jinja_call *c)
{
    const bool instead = c->self->kind == JV_UNDEFINED || (jv_true(&c->args[1]) && !jv_true(c->self));
    *c->out = !instead ? *c->self : c->args[0].kind != JV_ABSENT ? c->args[0] : jv_borrow("", 0);
    return 0;
}

/* Implements the filter attr(name): reads an attribute, and no member. */
int jinja_do_attr(const struct jinja_call *c)
{
    return c->args[0].kind != JV_TEXT ? err_set(c->err, ERR_INVALID, "attr needs a name")
                                      : jinja_attribute_alone(c->arena, c->self, &c->args[0], c->out, c->err);
}

/* ---- JSON and Python's notation ---- */

static int separators_of(const struct jinja_call *c, struct jv_json_style *style)
{
    struct jv_list two;
    if (jv_is_left_out(&c->args[2]))
        return 0;
    if (jv_items(c->arena, &c->args[2], &two, c->err) < 0)
        return -1;
    if (two.count != 2 || two.items[0].kind != JV_TEXT || two.items[1].kind != JV_TEXT)
        return err_set(c->err, ERR_INVALID, "tojson with separators that are not two strings");
    style->item = two.items[0];
    style->member = two.items[1];
    return 0;
}

/* Implements the filter tojson(ensure_ascii, indent, separators, sort_keys) as transformers defines it. */
int jinja_do_tojson(const struct jinja_call *c)
{
    const struct jv *indent = &c->args[1];
    struct buf text = {.limit = JINJA_TEXT_MAX};
    struct jv blank = jv_borrow(" ", 1);
    struct jv_json_style style = {.ascii = jv_true(&c->args[0]),
                                  .sorted = jv_true(&c->args[3]),
                                  .lines = !jv_is_left_out(indent),
                                  .item = jv_borrow(", ", jv_is_left_out(indent) ? 2 : 1),
                                  .member = jv_borrow(": ", 2)};
    int64_t width = 0;
    if (separators_of(c, &style) < 0)
        return -1;
    if (indent->kind == JV_TEXT) {
        style.indent = *indent;
    } else if (style.lines) {
        if (jinja_number_arg(c, 1, 0, &width) < 0 || width > INDENT_MAX ||
            jinja_padded(c->arena, &(struct jv){.kind = JV_TEXT, .text = ""}, width, ' ', 0, &blank, c->err) <
                0) {
            return c->err->code != ERR_NONE
                       ? -1
                       : err_set(c->err, ERR_TOO_BIG, "tojson with an indent beyond %d", INDENT_MAX);
        }
        style.indent = blank;
    }
    return jv_take(c->arena, &text, jv_json(c->self, &style, &text, c->err), c->out, c->err);
}

/* Implements the filter pprint; only values whose text fits on a line of 80 characters are supported. */
int jinja_do_pprint(const struct jinja_call *c)
{
    struct buf text = {.limit = JINJA_TEXT_MAX};
    int status = jv_repr_sorted(c->self, &text, c->err);
    const struct jv line = jv_borrow(buf_str(&text), text.size);
    if (status == 0 && jv_characters(&line) > PPRINT_WIDTH)
        status = err_set(c->err, ERR_UNSUPPORTED, "pprint of more than %d characters", PPRINT_WIDTH);
    return jv_take(c->arena, &text, status, c->out, c->err);
}

/* ---- HTML ---- */

int jinja_do_string(const struct jinja_call *c)
{
    return jv_text_of(c->arena, c->self, c->out, c->err);
}

int jinja_do_safe(const struct jinja_call *c)
{
    const int status = jv_text_of(c->arena, c->self, c->out, c->err);
    c->out->safe = status == 0;
    return status;
}

int jinja_do_escape(const struct jinja_call *c)
{
    return jinja_escaped(c->arena, c->self, c->out, c->err);
}

int jinja_do_forceescape(const struct jinja_call *c)
{
    struct jv text;
    if (jv_text_of(c->arena, c->self, &text, c->err) < 0)
        return -1;
    text.safe = false;
    return jinja_escaped(c->arena, &text, c->out, c->err);
}

/* Removes 'begin', 'end' and the text between them. */
static int cut_between(struct buf *text, const char *begin, const char *end)
{
    const size_t size = strlen(begin);
    for (;;) {
        char *from = text->size >= size ? memmem(text->data, text->size, begin, size) : NULL;
        const size_t left = !from ? 0 : text->size - (size_t)((uint8_t *)from - text->data);
        char *to = !from ? NULL : memmem(from, left, end, strlen(end));
        if (!to)
            return 0;
        to += strlen(end);
        memmove(from, to, text->size - (size_t)((uint8_t *)to - text->data));
        text->size -= (size_t)(to - from);
    }
}

int jinja_do_striptags(const struct jinja_call *c)
{
    struct jv text, words;
    struct buf made = {.limit = JINJA_TEXT_MAX};
    if (jv_text_of(c->arena, c->self, &text, c->err) < 0)
        return -1;
    int status = buf_append(&made, text.text, text.size, c->err);
    if (status == 0 && (cut_between(&made, "<!--", "-->") < 0 || cut_between(&made, "<", ">") < 0))
        status = -1;
    if (status == 0 && made.size > 0 && memchr(made.data, '&', made.size))
        status = err_set(c->err, ERR_UNSUPPORTED, "striptags of a string with an entity of HTML");
    if (jv_take(c->arena, &made, status, &text, c->err) < 0)
        return -1;
    const struct jv nothing[JINJA_PARAMS_MAX] = {0};
    const struct jv blank = jv_borrow(" ", 1);
    const struct jinja_call split = {
        .arena = c->arena, .name = c->name, .self = &text, .args = nothing, .out = &words, .err = c->err};
    const struct jinja_call join = {
        .arena = c->arena, .name = c->name, .self = &blank, .args = &words, .out = c->out, .err = c->err};
    return jinja_do_split(&split) < 0 ? -1 : jinja_do_join_method(&join);
}

/* Implements the filter xmlattr(autospace). */
int jinja_do_xmlattr(const struct jinja_call *c)
{
    struct buf text = {.limit = JINJA_TEXT_MAX};
    int status =
        c->self->kind == JV_MAP ? 0 : err_set(c->err, ERR_INVALID, "xmlattr of %s", jv_kind_name(c->self));
    for (size_t i = 0; status == 0 && i < c->self->map->count; i++) {
        const struct jv *key = &c->self->map->keys[i], *value = &c->self->map->values[i];
        struct jv name, escaped;
        if (value->kind == JV_NONE || value->kind == JV_UNDEFINED)
            continue;
        bool bad = key->kind != JV_TEXT;
        for (size_t at = 0; !bad && at < key->size;) {
            uint32_t code;
            at = jv_next(key, at, &code);
            bad = utf8_is_blank(code) || code == '/' || code == '>' || code == '=';
        }
        if (bad) {
            status = err_set(c->err, ERR_INVALID, "xmlattr with a name that cannot be one");
        } else if (jinja_escaped(c->arena, key, &name, c->err) < 0 ||
                   jinja_escaped(c->arena, value, &escaped, c->err) < 0 ||
                   (text.size > 0 && buf_text(&text, " ", c->err) < 0) ||
                   buf_append(&text, name.text, name.size, c->err) < 0 ||
                   buf_text(&text, "=\"", c->err) < 0 ||
                   buf_append(&text, escaped.text, escaped.size, c->err) < 0) {
            status = -1;
        } else {
            status = buf_text(&text, "\"", c->err);
        }
    }
    const bool space = c->args[0].kind == JV_ABSENT || jv_true(&c->args[0]);
    struct buf spaced = {.limit = JINJA_TEXT_MAX};
    if (status == 0 && text.size > 0 && space)
        status = buf_text(&spaced, " ", c->err);
    status = status < 0 ? -1 : buf_append(&spaced, buf_str(&text), text.size, c->err);
    buf_fini(&text);
    return jv_take(c->arena, &spaced, status, c->out, c->err);
}

/* Appends a value quoted for a URL. In a query a space becomes '+' and a slash is quoted, too. */
static int jinja_filter_put_quoted(const struct jinja_call *c, const struct jv *value, bool query,
                                   struct buf *out)
{
    struct jv text;
    int status = jv_text_of(c->arena, value, &text, c->err);
    for (size_t i = 0; status == 0 && i < text.size; i++) {
        const char letter = text.text[i];
        const bool plain = (letter >= '0' && letter <= '9') || (letter >= 'a' && letter <= 'z') ||
                           (letter >= 'A' && letter <= 'Z') || (letter != '\0' && strchr("_.-~", letter)) ||
                           (letter == '/' && !query);
        status = plain                    ? buf_append(out, &letter, 1, c->err)
                 : letter == ' ' && query ? buf_text(out, "+", c->err)
                                          : buf_printf(out, c->err, "%%%02X", (unsigned char)letter);
    }
    return status;
}

int jinja_do_urlencode(const struct jinja_call *c)
{
    struct buf text = {.limit = JINJA_TEXT_MAX};
    struct jv_list list;
    const bool pairs = c->self->kind == JV_MAP || c->self->kind == JV_LIST || c->self->kind == JV_UNDEFINED;
    if (!pairs)
        return jv_take(c->arena, &text, jinja_filter_put_quoted(c, c->self, false, &text), c->out, c->err);
    struct jv made = *c->self;
    const struct jinja_call items = {
        .arena = c->arena, .name = c->name, .self = c->self, .out = &made, .err = c->err};
    int status =
        c->self->kind == JV_MAP && jinja_do_items(&items) < 0 ? -1 : jv_items(c->arena, &made, &list, c->err);
    for (size_t i = 0; status == 0 && i < list.count; i++) {
        struct jv_list pair;
        status = jv_items(c->arena, &list.items[i], &pair, c->err);
        if (status == 0 && pair.count != 2)
            status = err_set(c->err, ERR_INVALID, "urlencode of what are no pairs");
        if (status == 0 && ((i > 0 && buf_text(&text, "&", c->err) < 0) ||
                            jinja_filter_put_quoted(c, &pair.items[0], true, &text) < 0 ||
                            buf_text(&text, "=", c->err) < 0)) {
            status = -1;
        }
        status = status < 0 ? -1 : jinja_filter_put_quoted(c, &pair.items[1], true, &text);
    }
    return jv_take(c->arena, &text, status, c->out, c->err);
}

/* ---- texts ---- */

int jinja_do_trim(const struct jinja_call *c)
{
    struct jv text;
    const struct jv *characters;
    if (jinja_text_arg(c, 0, &characters) < 0 || jv_text_of(c->arena, c->self, &text, c->err) < 0)
        return -1;
    struct jv escaped;
    if (text.safe && characters) {
        if (jinja_escaped(c->arena, characters, &escaped, c->err) < 0)
            return -1;
        characters = &escaped;
    }
    *c->out = jv_strip(text, characters, true, true);
    c->out->safe = text.safe;
    return 0;
}

/* Implements the filter replace(old, new, count); the values are converted to texts first. */
int jinja_do_replace_filter(const struct jinja_call *c)
{
    struct jv texts[3] = {{0}, {0}, c->args[2]};
    struct jv self;
    if (jv_text_of(c->arena, c->self, &self, c->err) < 0 ||
        jv_text_of(c->arena, &c->args[0], &texts[0], c->err) < 0 ||
        jv_text_of(c->arena, &c->args[1], &texts[1], c->err) < 0) {
        return -1;
    }
    struct jinja_call turned = *c;
    turned.self = &self;
    turned.args = texts;
    return jinja_do_replace(&turned);
}

/* Implements the filter format(…): computes text % arguments. */
int jinja_do_format(const struct jinja_call *c)
{
    struct jv text, values;
    const bool names = c->extra->named_count > 0;
    if (names && c->extra->count > 0)
        return err_set(c->err, ERR_INVALID, "format with names and places");
    if (jv_text_of(c->arena, c->self, &text, c->err) < 0 ||
        (names ? jv_map_new(c->arena, &values, c->err)
               : jv_list_copy(c->arena, JF_TUPLE, c->extra->items, c->extra->count, &values, c->err)) < 0) {
        return -1;
    }
    for (size_t i = 0; i < c->extra->named_count; i++)
        if (jv_map_put(c->arena, values.map, c->extra->names[i], c->extra->named[i], c->err) < 0)
            return -1;
    return jinja_percent(c->arena, &text, &values, c->out, c->err) < 0 ? (err_wrap(c->err, "format"), -1) : 0;
}

/* Implements the filter center(width). */
int jinja_do_center_filter(const struct jinja_call *c)
{
    struct jv text;
    int64_t width;
    if (jinja_number_arg(c, 0, 80, &width) < 0 || jv_text_of(c->arena, c->self, &text, c->err) < 0 ||
        jinja_padded(c->arena, &text, width, ' ', 0, c->out, c->err) < 0) {
        return -1;
    }
    c->out->safe = text.safe;
    return 0;
}

/* Implements the filter indent(width, first, blank). */
int jinja_do_indent(const struct jinja_call *c)
{
    struct jv pad = c->args[0], lines;
    int64_t width = 4;
    const struct jv nothing = jv_borrow("", 0);
    if (pad.kind != JV_TEXT && (jinja_number_arg(c, 0, 4, &width) < 0 ||
                                jinja_padded(c->arena, &nothing, width, ' ', 0, &pad, c->err) < 0)) {
        return -1;
    }
    if (c->self->kind != JV_TEXT)
        return err_set(c->err, ERR_INVALID, "indent of %s", jv_kind_name(c->self));
    if (jinja_lines(c->arena, c->self, false, &lines, c->err) < 0)
        return -1;
    const struct jv_list *list = lines.list;
    const bool first = jv_true(&c->args[1]), blank = jv_true(&c->args[2]);
    const char last = c->self->size > 0 ? c->self->text[c->self->size - 1] : '\n';
    /* jinja2 adds a line end before it splits the lines, so that one at the end makes an empty line. */
    const size_t count = list->count + (last == '\n' || last == '\r' || list->count == 0);
    struct buf out = {.limit = JINJA_TEXT_MAX};
    int status = 0;
    for (size_t i = 0; i < count && status == 0; i++) {
        const struct jv line = i < list->count ? list->items[i] : nothing;
        if (i > 0)
            status = buf_text(&out, "\n", c->err);
        if (status == 0 && (i == 0 ? first : blank || line.size > 0))
            status = buf_append(&out, pad.text, pad.size, c->err);
        status = status < 0 ? -1 : buf_append(&out, line.text, line.size, c->err);
    }
    status = jv_take(c->arena, &out, status, c->out, c->err);
    c->out->safe = status == 0 && c->self->safe;
    return status;
}

/* Implements the filter truncate(length, killwords, end, leeway). */
int jinja_do_truncate(const struct jinja_call *c)
{
    int64_t length, leeway;
    const struct jv *given;
    struct jv end = jv_borrow("...", 3);
    if (jinja_number_arg(c, 0, 255, &length) < 0 || jinja_number_arg(c, 3, 5, &leeway) < 0 ||
        jinja_text_arg(c, 2, &given) < 0) {
        return -1;
    }
    end = given ? *given : end;
    const int64_t ends = (int64_t)jv_characters(&end);
    struct jv_list list;
    if (length < ends || leeway < 0 || jv_is_list(c->self, JF_ITERATOR))
        return err_set(c->err, ERR_INVALID, "truncate to %lld, or of a generator", (long long)length);
    if (c->self->kind != JV_TEXT) { /* a short value is returned unchanged */
        if (jv_items(c->arena, c->self, &list, c->err) < 0)
            return -1;
        *c->out = *c->self;
        return (int64_t)list.count - leeway <= length
                   ? 0
                   : err_set(c->err, ERR_INVALID, "truncate of %s", jv_kind_name(c->self));
    }
    *c->out = *c->self;
    if ((int64_t)jv_characters(c->self) - leeway <= length)
        return 0;
    struct jv kept = jv_borrow(c->self->text, jv_character_at(c->self, (size_t)(length - ends)));
    const char *blank = !jv_true(&c->args[1]) && kept.size > 0 ? memrchr(kept.text, ' ', kept.size) : NULL;
    kept.size = blank ? (size_t)(blank - kept.text) : kept.size;
    if (c->self->safe && jinja_escaped(c->arena, &end, &end, c->err) < 0)
        return -1;
    struct buf text = {.limit = JINJA_TEXT_MAX};
    int status = buf_append(&text, kept.text, kept.size, c->err);
    status = status < 0 ? -1 : buf_append(&text, end.text, end.size, c->err);
    status = jv_take(c->arena, &text, status, c->out, c->err);
    c->out->safe = status == 0 && c->self->safe;
    return status;
}

static bool is_ascii_blank(char c)
{
    return c != '\0' && strchr(" \t\n\v\f\r", c);
}

/* The state of wrapping one text. */
struct wrap {
    int64_t width;
    bool break_words, break_hyphens;
    struct jv between;
    size_t lines; /* lines written so far */
};

/* Appends a line; 'trim' removes the blanks at its end. */
static int put_wrapped(const struct jinja_call *c, struct wrap *w, struct jv line, bool trim, struct buf *out)
{
    while (trim && line.size > 0 && is_ascii_blank(line.text[line.size - 1]))
        line.size--;
    if (line.size == 0)
        return 0;
    return w->lines++ > 0 && buf_append(out, w->between.text, w->between.size, c->err) < 0
               ? -1
               : buf_append(out, line.text, line.size, c->err);
}

/* Wraps one line of text as Python's textwrap does: words and the blanks between them are joined up to the
 * width. */
static int wrap_line(const struct jinja_call *c, struct wrap *w, const struct jv *text, struct buf *out)
{
    size_t begin = 0, end = 0; /* offsets of the output line that is being filled */
    for (size_t at = 0; at < text->size;) {
        size_t next = at;
        bool trim = true;
        const bool blank = is_ascii_blank(text->text[at]);
        while (next < text->size && is_ascii_blank(text->text[next]) == blank)
            next++;
        const struct jv word = jv_borrow(text->text + at, next - at),
                        grown = jv_borrow(text->text + begin, next - begin);
        if (!blank && w->break_hyphens && memchr(word.text, '-', word.size))
            return err_set(c->err, ERR_UNSUPPORTED, "wordwrap of a long line with a hyphen");
        if ((int64_t)jv_characters(&grown) <= w->width) {
            end = at = next;
            continue;
        }
        if ((int64_t)jv_characters(&word) > w->width && w->break_words) {
            const struct jv had = jv_borrow(text->text + begin, end - begin);
            const int64_t room = w->width - (int64_t)jv_characters(&had);
            end = at + jv_character_at(&word, room > 0 ? (size_t)room : 0);
            trim = room > 0; /* without room textwrap appends an empty piece of the word and trims that
                                instead of the blanks */
        } else if (end == begin) {
            end = next;
        }
        if (put_wrapped(c, w, jv_borrow(text->text + begin, end - begin), trim, out) < 0)
            return -1;
        at = end;
        for (size_t stop = at; w->lines > 0 && stop < text->size && is_ascii_blank(text->text[stop]);
             at = ++stop) {
        }
        begin = end = at;
    }
    return put_wrapped(c, w, jv_borrow(text->text + begin, end - begin), true, out);
}

/* Implements the filter wordwrap(width, break_long_words, wrapstring, break_on_hyphens). */
int jinja_do_wordwrap(const struct jinja_call *c)
{
    struct jv lines;
    const struct jv *between;
    struct wrap w = {.break_words = c->args[1].kind == JV_ABSENT || jv_true(&c->args[1]),
                     .break_hyphens = c->args[3].kind == JV_ABSENT || jv_true(&c->args[3]),
                     .between = jv_borrow("\n", 1)};
    if (c->self->kind != JV_TEXT || c->self->safe)
        return err_set(c->err, ERR_INVALID, "wordwrap of %s", jv_kind_name(c->self));
    if (jinja_number_arg(c, 0, 79, &w.width) < 0 || jinja_text_arg(c, 2, &between) < 0 ||
        jinja_lines(c->arena, c->self, false, &lines, c->err) < 0) {
        return -1;
    }
    if (w.width < 1)
        return err_set(c->err, ERR_UNSUPPORTED, "wordwrap to a width of %lld", (long long)w.width);
    w.between = between ? *between : w.between;
    struct buf out = {.limit = JINJA_TEXT_MAX};
    int status = 0;
    for (size_t i = 0; i < lines.list->count && status == 0; i++) {
        w.lines = 0;
        status = i > 0 ? buf_append(&out, w.between.text, w.between.size, c->err) : 0;
        if (status == 0 && (int64_t)jv_characters(&lines.list->items[i]) <= w.width)
            status = put_wrapped(c, &w, lines.list->items[i], true, &out);
        else
            status = status < 0 ? -1 : wrap_line(c, &w, &lines.list->items[i], &out);
    }
    return jv_take(c->arena, &out, status, c->out, c->err);
}

int jinja_do_wordcount(const struct jinja_call *c)
{
    struct jv text;
    int64_t count = 0;
    bool inside = false;
    if (jv_text_of(c->arena, c->self, &text, c->err) < 0)
        return -1;
    for (size_t at = 0; at < text.size;) {
        uint32_t code;
        at = jv_next(&text, at, &code);
        const bool word = jinja_is_word(code);
        count += word && !inside;
        inside = word;
    }
    *c->out = jv_int(count);
    return 0;
}
