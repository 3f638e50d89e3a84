/* Methods and filters of texts. */
#include "model/templates/jinja_text.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

#include "model/text/utf8.h"

int jinja_text_of(struct jinja_arena *arena, const struct jv *value, struct jv *out, struct err *err)
{
    if (value->kind == JV_TEXT) {
        *out = *value;
        return 0;
    }
    struct buf text = {.limit = JINJA_TEXT_MAX};
    int status = jv_print(value, &text, err);
    if (status == 0) {
        status = jv_copy(arena, buf_str(&text), text.size, out, err);
    }
    buf_fini(&text);
    return status;
}

int jinja_text_arg(const struct jv *arg, const struct jv **out, struct err *err)
{
    *out = arg->kind == JV_TEXT ? arg : NULL;
    if (arg->kind != JV_TEXT && arg->kind != JV_UNDEFINED && arg->kind != JV_NONE) {
        return err_set(err, ERR_INVALID, "%s where a text must be", jv_kind_name(arg));
    }
    return 0;
}

int64_t jinja_number_arg(const struct jv *arg, int64_t otherwise)
{
    int64_t number;
    return jv_number(arg, &number) ? number : otherwise;
}

static int strip_of(struct jinja_arena *arena, const struct jv *self, const struct jv *set, bool begin,
                    bool end, struct jv *out, struct err *err)
{
    const struct jv *characters;
    struct jv text;
    if (jinja_text_arg(set, &characters, err) < 0 || jinja_text_of(arena, self, &text, err) < 0) {
        return -1;
    }
    *out = jv_strip(text, characters, begin, end);
    return 0;
}

int jinja_do_strip(const struct jinja_call *c)
{
    return strip_of(c->arena, c->self, &c->args[0], true, true, c->out, c->err);
}

int jinja_do_lstrip(const struct jinja_call *c)
{
    return strip_of(c->arena, c->self, &c->args[0], true, false, c->out, c->err);
}

int jinja_do_rstrip(const struct jinja_call *c)
{
    return strip_of(c->arena, c->self, &c->args[0], false, true, c->out, c->err);
}

enum letters { UPPER, LOWER, CAPITAL, TITLE_METHOD, TITLE_FILTER };

/* Whether a word begins behind 'before' (0: at the beginning). */
static bool begins_word(enum letters how, uint32_t before)
{
    if (how == TITLE_FILTER) {
        return before == 0 || (before < 0x80 && strchr("-({[<", (int)before) != NULL) ||
               utf8_is_blank(before);
    }
    const utf8proc_category_t c = utf8proc_category((utf8proc_int32_t)before);
    return c < UTF8PROC_CATEGORY_LU || c > UTF8PROC_CATEGORY_LT;
}

/* Letters whose other case is several letters or depends on what stands around (Unicode's SpecialCasing.txt):
 * sharp s, final sigma, dotted I, ligatures and accented Greek among them. */
static bool case_is_special(uint32_t code, bool up)
{
    static const uint32_t upper[][2] = {{0xdf, 0xdf},     {0x149, 0x149},   {0x1f0, 0x1f0},
                                        {0x390, 0x390},   {0x3b0, 0x3b0},   {0x587, 0x587},
                                        {0x1e96, 0x1e9a}, {0x1f50, 0x1fff}, {0xfb00, 0xfb17}};
    bool special = !up && (code == 0x130 || code == 0x3a3);
    for (size_t i = 0; i < sizeof(upper) / sizeof(upper[0]) && up; i++) {
        special = special || (code >= upper[i][0] && code <= upper[i][1]);
    }
    return special;
}

static int letters_of(struct jinja_arena *arena, const struct jv *self, enum letters how, struct jv *out,
                      struct err *err)
{
    struct jv text;
    if (jinja_text_of(arena, self, &text, err) < 0) {
        return -1;
    }
    char *changed = jinja_alloc(arena, 3 * text.size + 1, err); /* no letter's other case is so long */
    if (changed == NULL) {
        return -1;
    }
    size_t size = 0;
    uint32_t before = 0;
    for (size_t at = 0; at < text.size;) {
        uint32_t code = 0xfffd;
        unsigned bad = 1;
        const unsigned length =
            utf8_decode((const uint8_t *)text.text + at, text.size - at, &code, &bad, NULL);
        const bool up =
            how == UPPER || (how == CAPITAL && at == 0) || (how >= TITLE_METHOD && begins_word(how, before));
        if (case_is_special(code, up)) {
            return err_set(err, ERR_UNSUPPORTED,
                           "the other case of the letter U+%04X, which is not one letter", (unsigned)code);
        }
        const utf8proc_int32_t other =
            up ? utf8proc_toupper((utf8proc_int32_t)code) : utf8proc_tolower((utf8proc_int32_t)code);
        size += utf8_encode((uint32_t)other, (uint8_t *)changed + size);
        before = code;
        at += length > 0 ? length : bad;
    }
    *out = jv_borrow(changed, size);
    return 0;
}

int jinja_do_upper(const struct jinja_call *c)
{
    return letters_of(c->arena, c->self, UPPER, c->out, c->err);
}

int jinja_do_lower(const struct jinja_call *c)
{
    return letters_of(c->arena, c->self, LOWER, c->out, c->err);
}

int jinja_do_capitalize(const struct jinja_call *c)
{
    return letters_of(c->arena, c->self, CAPITAL, c->out, c->err);
}

int jinja_do_title_method(const struct jinja_call *c)
{
    return letters_of(c->arena, c->self, TITLE_METHOD, c->out, c->err);
}

int jinja_do_title_filter(const struct jinja_call *c)
{
    return letters_of(c->arena, c->self, TITLE_FILTER, c->out, c->err);
}

int jinja_do_replace(const struct jinja_call *c)
{
    const struct jv *from;
    const struct jv *to;
    struct jv text;
    if (jinja_text_arg(&c->args[0], &from, c->err) < 0 || jinja_text_arg(&c->args[1], &to, c->err) < 0 ||
        jinja_text_of(c->arena, c->self, &text, c->err) < 0) {
        return -1;
    }
    if (from == NULL || to == NULL || from->size == 0) {
        return err_set(c->err, ERR_INVALID, "replace needs a text to look for and one to put there");
    }
    int64_t left = jinja_number_arg(&c->args[2], -1);
    struct buf made = {.limit = JINJA_TEXT_MAX};
    size_t at = 0;
    int status = 0;
    while (status == 0) {
        const char *found = left != 0 && at < text.size
                                ? memmem(text.text + at, text.size - at, from->text, from->size)
                                : NULL;
        const size_t end = found != NULL ? (size_t)(found - text.text) : text.size;
        status = buf_append(&made, text.text + at, end - at, c->err);
        if (found == NULL) {
            break;
        }
        status = status < 0 ? -1 : buf_append(&made, to->text, to->size, c->err);
        at = end + from->size;
        left--;
    }
    status = status < 0 ? -1 : jv_copy(c->arena, buf_str(&made), made.size, c->out, c->err);
    buf_fini(&made);
    return status;
}

/* Where the next separator stands in text[at..), and its size; a run of blanks without 'by'. */
static size_t separator_find(const struct jv *text, size_t at, const struct jv *by, size_t *size)
{
    if (by != NULL) {
        const char *found =
            at < text->size ? memmem(text->text + at, text->size - at, by->text, by->size) : NULL;
        *size = by->size;
        return found != NULL ? (size_t)(found - text->text) : text->size;
    }
    for (size_t i = at; i < text->size; i++) {
        const struct jv rest = jv_borrow(text->text + i, text->size - i);
        const struct jv bare = jv_strip(rest, NULL, true, false);
        if (bare.size < rest.size) {
            *size = rest.size - bare.size;
            return i;
        }
    }
    *size = 0;
    return text->size;
}

int jinja_do_split(const struct jinja_call *c)
{
    const struct jv *by;
    if (jinja_text_arg(&c->args[0], &by, c->err) < 0) {
        return -1;
    }
    if (by != NULL && by->size == 0) {
        return err_set(c->err, ERR_INVALID, "split by a text of no characters");
    }
    struct jv text = by != NULL ? *c->self : jv_strip(*c->self, NULL, true, false);
    int64_t left = jinja_number_arg(&c->args[1], -1);
    size_t parts = 1;
    size_t size = 0;
    for (size_t at = separator_find(&text, 0, by, &size); at < text.size && parts < SIZE_MAX;
         at = separator_find(&text, at + size, by, &size)) {
        parts++;
    }
    if (jv_list_new(c->arena, parts, c->out, c->err) < 0) {
        return -1;
    }
    size_t at = 0;
    while (by != NULL || at < text.size) {
        const size_t end = left != 0 ? separator_find(&text, at, by, &size) : text.size;
        c->out->list->items[c->out->list->count++] = jv_borrow(text.text + at, end - at);
        if (end == text.size) {
            break;
        }
        at = end + size;
        left--;
    }
    if (by == NULL && left == 0 && c->out->list->count > 0) { /* the rest has no blanks at its end */
        struct jv *last = &c->out->list->items[c->out->list->count - 1];
        *last = jv_strip(*last, NULL, false, true);
    }
    return 0;
}

int jinja_do_splitlines(const struct jinja_call *c)
{
    size_t lines = 1;
    for (size_t i = 0; i < c->self->size; i++) {
        lines += c->self->text[i] == '\n' || c->self->text[i] == '\r';
    }
    if (jv_list_new(c->arena, lines, c->out, c->err) < 0) {
        return -1;
    }
    for (size_t at = 0; at < c->self->size;) {
        size_t end = at;
        while (end < c->self->size && c->self->text[end] != '\n' && c->self->text[end] != '\r') {
            end++;
        }
        c->out->list->items[c->out->list->count++] = jv_borrow(c->self->text + at, end - at);
        at = end + 1 +
             (end + 1 < c->self->size && c->self->text[end] == '\r' && c->self->text[end + 1] == '\n');
    }
    return 0;
}

static bool stands_at(const struct jv *text, const struct jv *part, bool end)
{
    return part->kind == JV_TEXT && part->size <= text->size &&
           (part->size == 0 ||
            memcmp(text->text + (end ? text->size - part->size : 0), part->text, part->size) == 0);
}

/* One text, or any of several. */
static int stands_at_any(const struct jv *text, const struct jv *part, bool end, struct jv *out,
                         struct err *err)
{
    bool any = stands_at(text, part, end);
    if (part->kind != JV_TEXT && part->kind != JV_LIST) {
        return err_set(err, ERR_INVALID, "%s where a text must be", jv_kind_name(part));
    }
    for (size_t i = 0; part->kind == JV_LIST && i < part->list->count; i++) {
        any = any || stands_at(text, &part->list->items[i], end);
    }
    *out = jv_bool(any);
    return 0;
}

int jinja_do_startswith(const struct jinja_call *c)
{
    return stands_at_any(c->self, &c->args[0], false, c->out, c->err);
}

int jinja_do_endswith(const struct jinja_call *c)
{
    return stands_at_any(c->self, &c->args[0], true, c->out, c->err);
}

int jinja_do_removeprefix(const struct jinja_call *c)
{
    const size_t cut = stands_at(c->self, &c->args[0], false) ? c->args[0].size : 0;
    *c->out = jv_borrow(c->self->text + cut, c->self->size - cut);
    return 0;
}

int jinja_do_removesuffix(const struct jinja_call *c)
{
    *c->out = jv_borrow(c->self->text,
                        c->self->size - (stands_at(c->self, &c->args[0], true) ? c->args[0].size : 0));
    return 0;
}

int jinja_do_find(const struct jinja_call *c)
{
    const struct jv *part;
    if (jinja_text_arg(&c->args[0], &part, c->err) < 0 || part == NULL) {
        return part == NULL && c->err->code == ERR_NONE ? err_set(c->err, ERR_INVALID, "find needs a text")
                                                        : -1;
    }
    const char *found = memmem(c->self->text, c->self->size, part->text, part->size);
    const struct jv before = jv_borrow(c->self->text, found != NULL ? (size_t)(found - c->self->text) : 0);
    *c->out = jv_int(found != NULL ? (int64_t)jv_characters(&before) : -1);
    return 0;
}
