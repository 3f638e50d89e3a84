#include "model/templates/jinja_text.h"

#include <stdlib.h>
#include <string.h>

#include "model/templates/jinja_print.h"
#include "model/text/utf8.h"

enum { WIDTH_MAX = 100000 };

int jinja_escaped(struct jinja_arena *arena, const struct jv *value, struct jv *out, struct err *err)
{
    static const struct {
        char letter;
        const char *instead;
    } rows[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    struct jv text;
    struct buf made = {.limit = JINJA_TEXT_MAX};
    int status = jv_text_of(arena, value, &text, err);
    if (status == 0 && text.safe) {
        *out = text;
        return 0;
    }
    for (size_t i = 0; status == 0 && i < text.size; i++) {
        size_t row = 0;
        while (row < 5 && rows[row].letter != text.text[i])
            row++;
        status = row < 5 ? buf_text(&made, rows[row].instead, err) : buf_append(&made, &text.text[i], 1, err);
    }
    status = jv_take(arena, &made, status, out, err);
    out->safe = status == 0;
    return status;
}

/* ---- strip, pad ---- */

static int strip_of(const struct jinja_call *c, bool begin, bool end)
{
    const struct jv *characters;
    if (jinja_text_arg(c, 0, &characters) < 0)
        return -1;
    *c->out = jv_strip(*c->self, characters, begin, end);
    return 0;
}

int jinja_do_strip(const struct jinja_call *c)
{
    return strip_of(c, true, true);
}

int jinja_do_lstrip(const struct jinja_call *c)
{
    return strip_of(c, true, false);
}

int jinja_do_rstrip(const struct jinja_call *c)
{
    return strip_of(c, false, true);
}

int jinja_padded(struct jinja_arena *arena, const struct jv *text, int64_t width, char fill, int side,
                 struct jv *out, struct err *err)
{
    const int64_t count = (int64_t)jv_characters(text);
    if (width > WIDTH_MAX)
        return err_set(err, ERR_TOO_BIG, "a width of %lld, above %d", (long long)width, WIDTH_MAX);
    const int64_t room = width > count ? width - count : 0;
    /* For centred texts an odd blank stands on the side where CPython puts it. */
    const int64_t left = side < 0 ? 0 : side > 0 ? room : room / 2 + (room & width & 1);
    char *made = jinja_alloc(arena, text->size + (size_t)room + 1, err);
    if (!made)
        return -1;
    memset(made, fill, text->size + (size_t)room);
    if (text->size > 0)
        memcpy(made + left, text->text, text->size);
    *out = jv_borrow(made, text->size + (size_t)room);
    return 0;
}

static int justified(const struct jinja_call *c, int side)
{
    const struct jv *fill;
    int64_t width;
    if (jinja_number_arg(c, 0, 0, &width) < 0 || jinja_text_arg(c, 1, &fill) < 0)
        return -1;
    if (fill && jv_characters(fill) != 1)
        return err_set(c->err, ERR_INVALID, "%s with a fill that is not one character", c->name);
    if (fill && fill->size > 1)
        return err_set(c->err, ERR_UNSUPPORTED, "%s with a fill beyond ASCII", c->name);
    return jinja_padded(c->arena, c->self, width, fill ? fill->text[0] : ' ', side, c->out, c->err);
}

int jinja_do_center(const struct jinja_call *c)
{
    return justified(c, 0);
}

int jinja_do_ljust(const struct jinja_call *c)
{
    return justified(c, -1);
}

int jinja_do_rjust(const struct jinja_call *c)
{
    return justified(c, 1);
}

int jinja_do_zfill(const struct jinja_call *c)
{
    int64_t width;
    if (jinja_number_arg(c, 0, 0, &width) < 0 ||
        jinja_padded(c->arena, c->self, width, '0', 1, c->out, c->err) < 0) {
        return -1;
    }
    const size_t zeros = c->out->size - c->self->size;
    if (zeros > 0 && c->self->size > 0 && strchr("+-", c->self->text[0]) && c->self->text[0] != '\0') {
        char *made = (char *)(uintptr_t)c->out->text;
        made[zeros] = '0';
        made[0] = c->self->text[0];
    }
    return 0;
}

int jinja_do_expandtabs(const struct jinja_call *c)
{
    struct buf made = {.limit = JINJA_TEXT_MAX};
    int64_t size, column = 0;
    int status = jinja_number_arg(c, 0, 8, &size);
    if (status == 0 && size > WIDTH_MAX)
        status = err_set(c->err, ERR_TOO_BIG, "%s by more than %d", c->name, WIDTH_MAX);
    for (size_t at = 0, next; at < c->self->size && status == 0; at = next) {
        uint32_t code;
        next = jv_next(c->self, at, &code);
        if (code == '\t') {
            const int blanks = size > 0 ? (int)(size - column % size) : 0;
            status = buf_printf(&made, c->err, "%*s", blanks, "");
            column += blanks;
        } else {
            status = buf_append(&made, c->self->text + at, next - at, c->err);
            column = code == '\n' || code == '\r' ? 0 : column + 1;
        }
    }
    return jv_take(c->arena, &made, status, c->out, c->err);
}

/* ---- replace ---- */

int jinja_do_replace(const struct jinja_call *c)
{
    const struct jv *from, *to;
    int64_t left;
    if (jinja_text_arg(c, 0, &from) < 0 || jinja_text_arg(c, 1, &to) < 0 ||
        jinja_number_arg(c, 2, -1, &left) < 0) {
        return -1;
    }
    if (!from || !to)
        return err_set(c->err, ERR_INVALID, "replace needs a string to look for and one to put there");
    struct buf made = {.limit = JINJA_TEXT_MAX};
    const struct jv *text = c->self;
    int status = 0;
    for (size_t at = 0; status == 0;) {
        const char *found =
            left == 0 ? NULL
            : from->size > 0
                ? memmem(text->text + at, text->size - at, from->text, from->size)
                : text->text + at; /* an empty 'old' matches before every character and at the end */
        uint32_t code;
        const size_t end = found ? (size_t)(found - text->text) : text->size;
        status = buf_append(&made, text->text + at, end - at, c->err);
        if (!found)
            break;
        status = status < 0 ? -1 : buf_append(&made, to->text, to->size, c->err);
        left -= left > 0;
        at = end + from->size;
        if (from->size == 0) {
            if (at == text->size)
                break;
            at = jv_next(text, at, &code);
            status = status < 0 ? -1 : buf_append(&made, text->text + end, at - end, c->err);
        }
    }
    return jv_take(c->arena, &made, status, c->out, c->err);
}

/* ---- find ---- */

/* Returns the offset of the first, or last, occurrence of 'part' in text[from..to), or SIZE_MAX. */
static size_t find_in(const struct jv *text, const struct jv *part, size_t from, size_t to, bool last)
{
    if (part->size > to - from)
        return SIZE_MAX;
    for (size_t n = 0; n <= to - from - part->size; n++) {
        const size_t at = last ? to - part->size - n : from + n;
        if (part->size == 0 || memcmp(text->text + at, part->text, part->size) == 0)
            return at;
    }
    return SIZE_MAX;
}

/* Converts the arguments 'start' and 'end' to byte offsets; returns false if start is beyond the end. */
static int range_args(const struct jinja_call *c, size_t index, size_t *from, size_t *to, bool *there)
{
    const int64_t count = (int64_t)jv_characters(c->self);
    int64_t begin, end;
    if (jinja_number_arg(c, index, 0, &begin) < 0 || jinja_number_arg(c, index + 1, count, &end) < 0)
        return -1;
    begin = begin < -count ? 0 : begin < 0 ? begin + count : begin;
    end = end < -count ? 0 : end < 0 ? end + count : end > count ? count : end;
    *there = begin <= end;
    *from = *there ? jv_character_at(c->self, (size_t)begin) : 0;
    *to = *there ? jv_character_at(c->self, (size_t)end) : 0;
    return 0;
}

static int find_of(const struct jinja_call *c, bool last, bool must)
{
    const struct jv *part;
    size_t from, to;
    bool there;
    if (jinja_text_arg(c, 0, &part) < 0 || range_args(c, 1, &from, &to, &there) < 0)
        return -1;
    if (!part)
        return err_set(c->err, ERR_INVALID, "%s needs a string", c->name);
    const size_t at = there ? find_in(c->self, part, from, to, last) : SIZE_MAX;
    if (at == SIZE_MAX && must)
        return err_set(c->err, ERR_INVALID, "%s: the string is not found", c->name);
    const struct jv before = jv_borrow(c->self->text, at == SIZE_MAX ? 0 : at);
    *c->out = jv_int(at == SIZE_MAX ? -1 : (int64_t)jv_characters(&before));
    return 0;
}

int jinja_do_find(const struct jinja_call *c)
{
    return find_of(c, false, false);
}

int jinja_do_rfind(const struct jinja_call *c)
{
    return find_of(c, true, false);
}

int jinja_do_index(const struct jinja_call *c)
{
    return find_of(c, false, true);
}

int jinja_do_rindex(const struct jinja_call *c)
{
    return find_of(c, true, true);
}

int jinja_do_count(const struct jinja_call *c)
{
    const struct jv *part;
    size_t from, to;
    bool there;
    if (jinja_text_arg(c, 0, &part) < 0 || range_args(c, 1, &from, &to, &there) < 0)
        return -1;
    if (!part)
        return err_set(c->err, ERR_INVALID, "count needs a string");
    int64_t count = 0;
    const struct jv within = jv_borrow(c->self->text + from, to - from);
    if (part->size == 0)
        count = there ? (int64_t)jv_characters(&within) + 1 : 0;
    else if (there)
        for (size_t at = from; (at = find_in(c->self, part, at, to, false)) != SIZE_MAX; at += part->size)
            count++;
    *c->out = jv_int(count);
    return 0;
}

static bool stands_at(const struct jv *text, const struct jv *part, bool end)
{
    return part->size <= text->size &&
           (part->size == 0 ||
            memcmp(text->text + (end ? text->size - part->size : 0), part->text, part->size) == 0);
}

/* Implements the methods startswith and endswith, whose argument is a text or a tuple of texts. */
static int stands_at_any(const struct jinja_call *c, bool end)
{
    const struct jv *part = &c->args[0];
    size_t from, to;
    bool there, any = false;
    if (range_args(c, 1, &from, &to, &there) < 0)
        return -1;
    const struct jv text = jv_borrow(c->self->text + from, to - from);
    const size_t count = jv_is_list(part, JF_TUPLE) ? part->list->count : 1;
    for (size_t i = 0; i < count; i++) {
        const struct jv *one = jv_is_list(part, JF_TUPLE) ? &part->list->items[i] : part;
        if (one->kind != JV_TEXT) {
            return err_set(c->err, ERR_INVALID, "%s with %s where a string must be", c->name,
                           jv_kind_name(one));
        }
        any = any || (there && stands_at(&text, one, end));
    }
    *c->out = jv_bool(any);
    return 0;
}

int jinja_do_startswith(const struct jinja_call *c)
{
    return stands_at_any(c, false);
}

int jinja_do_endswith(const struct jinja_call *c)
{
    return stands_at_any(c, true);
}

static int jinja_text_removed(const struct jinja_call *c, bool end)
{
    const struct jv *part;
    if (jinja_text_arg(c, 0, &part) < 0 || !part)
        return !part ? err_set(c->err, ERR_INVALID, "%s needs a string", c->name) : -1;
    const size_t cut = stands_at(c->self, part, end) ? part->size : 0;
    *c->out = jv_borrow(c->self->text + (end ? 0 : cut), c->self->size - cut);
    return 0;
}

int jinja_do_removeprefix(const struct jinja_call *c)
{
    return jinja_text_removed(c, false);
}

int jinja_do_removesuffix(const struct jinja_call *c)
{
    return jinja_text_removed(c, true);
}

/* ---- split ---- */

/* Finds the first (the last if 'last') separator in text[from..to): 'by', or a run of blanks if 'by' is NULL.
 * Returns false if there is none. */
static bool separator_find(const struct jv *text, const struct jv *by, bool last, size_t from, size_t to,
                           size_t *begin, size_t *end)
{
    uint32_t code;
    if (by) {
        *begin = find_in(text, by, from, to, last);
        *end = *begin == SIZE_MAX ? 0 : *begin + by->size;
        return *begin != SIZE_MAX;
    }
    bool found = false;
    for (size_t at = last ? to : from; last ? at > from : at < to;) {
        const size_t other = last ? jv_before(text, at, &code) : jv_next(text, at, &code);
        const bool blank = utf8_is_blank(code);
        if (!blank && found)
            break;
        if (blank) {
            const size_t low = last ? other : at, high = last ? at : other;
            *begin = !found || last ? low : *begin;
            *end = !found || !last ? high : *end;
            found = true;
        }
        at = other;
    }
    return found;
}

static int jinja_text_part_add(const struct jinja_call *c, struct jv *list, size_t begin, size_t end)
{
    return jv_list_add(c->arena, list->list, jv_borrow(c->self->text + begin, end - begin), c->err);
}

static int split_of(const struct jinja_call *c, bool last)
{
    const struct jv *by;
    int64_t left;
    if (jinja_text_arg(c, 0, &by) < 0 || jinja_number_arg(c, 1, -1, &left) < 0)
        return -1;
    if (by && by->size == 0)
        return err_set(c->err, ERR_INVALID, "%s by an empty string", c->name);
    const struct jv *text = c->self;
    struct jv list;
    size_t begin = 0, end = 0;
    const struct jv bare = by ? *text : jv_strip(*text, NULL, !last || left < 0, last || left < 0);
    size_t from = text->size > 0 ? (size_t)(bare.text - text->text) : 0, to = from + bare.size;
    if (jv_list_new(c->arena, 0, &list, c->err) < 0)
        return -1;
    while (left != 0 && separator_find(text, by, last, from, to, &begin, &end)) {
        if (!by && !last && begin == from) {
            from = end;
            continue;
        }
        if (!by && last && end == to) {
            to = begin;
            continue;
        }
        if (!by && (last ? begin == from : end == to)) { /* only blanks remain */
            from = last ? end : from;
            to = last ? to : begin;
            break;
        }
        if (jinja_text_part_add(c, &list, last ? end : from, last ? to : begin) < 0)
            return -1;
        from = last ? from : end;
        to = last ? begin : to;
        left -= left > 0;
    }
    if (!by) { /* the remaining text keeps only the blanks at its far end */
        const struct jv rest = jv_strip(jv_borrow(text->text + from, to - from), NULL, !last, last);
        from = last ? from : to - rest.size;
        to = from + rest.size;
    }
    if ((by || to > from) && jinja_text_part_add(c, &list, from, to) < 0)
        return -1;
    for (size_t i = 0; last && i < list.list->count / 2; i++) {
        const struct jv kept = list.list->items[i];
        list.list->items[i] = list.list->items[list.list->count - 1 - i];
        list.list->items[list.list->count - 1 - i] = kept;
    }
    *c->out = list;
    return 0;
}

int jinja_do_split(const struct jinja_call *c)
{
    return split_of(c, false);
}

int jinja_do_rsplit(const struct jinja_call *c)
{
    return split_of(c, true);
}

static int partition_of(const struct jinja_call *c, bool last)
{
    const struct jv *by;
    if (jinja_text_arg(c, 0, &by) < 0 || !by || by->size == 0)
        return c->err->code != ERR_NONE ? -1 : err_set(c->err, ERR_INVALID, "%s needs a string", c->name);
    const size_t at = find_in(c->self, by, 0, c->self->size, last);
    const struct jv none = jv_borrow("", 0);
    const struct jv parts[3] = {
        at == SIZE_MAX ? (last ? none : *c->self) : jv_borrow(c->self->text, at), at == SIZE_MAX ? none : *by,
        at == SIZE_MAX ? (last ? *c->self : none)
                       : jv_borrow(c->self->text + at + by->size, c->self->size - at - by->size)};
    return jv_list_copy(c->arena, JF_TUPLE, parts, 3, c->out, c->err);
}

int jinja_do_partition(const struct jinja_call *c)
{
    return partition_of(c, false);
}

int jinja_do_rpartition(const struct jinja_call *c)
{
    return partition_of(c, true);
}

static bool ends_line(uint32_t code)
{
    return (code >= '\n' && code <= '\r') || (code >= 0x1c && code <= 0x1e) || code == 0x85 ||
           code == 0x2028 || code == 0x2029;
}

int jinja_lines(struct jinja_arena *arena, const struct jv *text, bool ends, struct jv *out, struct err *err)
{
    size_t lines = 1;
    uint32_t code;
    for (size_t at = 0; at < text->size;) {
        at = jv_next(text, at, &code);
        lines += ends_line(code);
    }
    if (jv_list_new(arena, lines, out, err) < 0)
        return -1;
    for (size_t at = 0, begin = 0; at < text->size; begin = at) {
        size_t end = at;
        for (code = 0; at < text->size && !ends_line(code);) {
            end = at;
            at = jv_next(text, at, &code);
        }
        if (!ends_line(code))
            end = at;
        at += code == '\r' && at < text->size && text->text[at] == '\n';
        out->list->items[out->list->count++] = jv_borrow(text->text + begin, (ends ? at : end) - begin);
    }
    return 0;
}

int jinja_do_splitlines(const struct jinja_call *c)
{
    return jinja_lines(c->arena, c->self, jv_true(&c->args[0]), c->out, c->err);
}

/* Implements the method "x".join(iterable of strings). */
int jinja_do_join_method(const struct jinja_call *c)
{
    struct jv_list list;
    struct buf text = {.limit = JINJA_TEXT_MAX};
    int status = jv_items(c->arena, &c->args[0], &list, c->err);
    for (size_t i = 0; status == 0 && i < list.count; i++) {
        struct jv item = list.items[i];
        if (item.kind != JV_TEXT)
            status = err_set(c->err, ERR_INVALID, "join of %s", jv_kind_name(&item));
        else if (c->self->safe)
            status = jinja_escaped(c->arena, &item, &item, c->err);
        if (status == 0) {
            status = i > 0 && buf_append(&text, c->self->text, c->self->size, c->err) < 0
                         ? -1
                         : buf_append(&text, item.text, item.size, c->err);
        }
    }
    return jv_take(c->arena, &text, status, c->out, c->err);
}
