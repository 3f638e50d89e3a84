/* See jinja_lists.h. What an argument does that is not done here is refused by its name. */
#include "model/templates/jinja_lists.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/templates/jinja_text.h"

struct jv jinja_member(const struct jv *value, const struct jv *path)
{
    struct jv at = *value;
    if (path->kind == JV_INT) {
        const int64_t i = path->number;
        const bool there = at.kind == JV_LIST && i >= 0 && (uint64_t)i < at.list->count;
        return there ? at.list->items[i] : jv_undefined("", 0);
    }
    for (size_t from = 0; path->kind == JV_TEXT && from <= path->size;) {
        const char *dot = memchr(path->text + from, '.', path->size - from);
        const size_t size = (dot != NULL ? (size_t)(dot - path->text) : path->size) - from;
        const struct jv name = jv_borrow(path->text + from, size);
        bool digits = size > 0 && size < 9;
        for (size_t i = 0; i < size; i++) {
            digits = digits && name.text[i] >= '0' && name.text[i] <= '9';
        }
        if (digits) {
            const struct jv index = jv_int(strtol(name.text, NULL, 10));
            at = jinja_member(&at, &index);
        } else {
            const struct jv *found =
                at.kind == JV_MAP || at.kind == JV_NAMESPACE ? jv_map_get(at.map, &name) : NULL;
            at = found != NULL ? *found : jv_undefined(name.text, name.size);
        }
        from += size + 1;
    }
    return at;
}

/* ---- order ---- */

struct sorting {
    const struct jv *attribute; /* or undefined */
    bool reverse, case_sensitive, by_value;
    bool failed; /* two that have no order */
};

/* What is compared: a member, and texts without their case. */
static struct jv sort_key(struct jinja_arena *arena, const struct sorting *s, const struct jv *item,
                          struct err *err)
{
    struct jv key = s->attribute->kind == JV_UNDEFINED ? *item : jinja_member(item, s->attribute);
    if (!s->case_sensitive && key.kind == JV_TEXT) {
        const struct jinja_args none = {0};
        struct jv lower = key;
        const struct jinja_call call = {
            .arena = arena, .self = &key, .args = none.items, .extra = &none, .out = &lower, .err = err};
        return jinja_do_lower(&call) < 0 ? key : lower;
    }
    return key;
}

struct keyed {
    struct jv key, item;
    size_t place;
};

static int compare_keyed(const void *a, const void *b, void *arg)
{
    const struct keyed *x = a;
    const struct keyed *y = b;
    struct sorting *s = arg;
    int order = 0;
    if (!jv_order(&x->key, &y->key, &order)) {
        s->failed = true;
    }
    order = s->reverse ? -order : order;
    return order != 0 ? order : (x->place > y->place) - (x->place < y->place);
}

/* The items of 'list' with their keys, in order; new in the arena. */
static struct keyed *keyed_sort(struct jinja_arena *arena, const struct jv_list *list, struct sorting *s,
                                struct err *err)
{
    struct keyed *keyed = jinja_alloc(arena, (list->count + 1) * sizeof(*keyed), err);
    for (size_t i = 0; i < list->count && keyed != NULL; i++) {
        keyed[i] = (struct keyed){
            .key = sort_key(arena, s, &list->items[i], err), .item = list->items[i], .place = i};
        if (keyed[i].key.kind == JV_UNDEFINED) {
            err_set(err, ERR_INVALID, "something undefined has no order");
            return NULL;
        }
    }
    if (keyed == NULL || jinja_work(arena, list->count * 16, err) < 0) {
        return NULL;
    }
    qsort_r(keyed, list->count, sizeof(*keyed), compare_keyed, s);
    if (s->failed) {
        err_set(err, ERR_INVALID, "values of several kinds have no order");
        return NULL;
    }
    return keyed;
}

static int list_out(const struct jinja_call *c, const struct keyed *keyed, size_t count)
{
    if (keyed == NULL || jv_list_new(c->arena, count, c->out, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < count; i++) {
        c->out->list->items[c->out->list->count++] = keyed[i].item;
    }
    return 0;
}

/* sort(reverse, case_sensitive, attribute) */
int jinja_do_sort(const struct jinja_call *c)
{
    struct jv_list list;
    struct sorting s = {
        .reverse = jv_true(&c->args[0]), .case_sensitive = jv_true(&c->args[1]), .attribute = &c->args[2]};
    if (s.attribute->kind == JV_TEXT && memchr(s.attribute->text, ',', s.attribute->size) != NULL) {
        return err_set(c->err, ERR_UNSUPPORTED, "sort by several attributes");
    }
    return jv_items(c->arena, c->self, &list, c->err) < 0
               ? -1
               : list_out(c, keyed_sort(c->arena, &list, &s, c->err), list.count);
}

/* dictsort(case_sensitive, by, reverse): pairs. */
int jinja_do_dictsort(const struct jinja_call *c)
{
    const struct jv first = jv_int(0), second = jv_int(1);
    const bool by_value = jv_is_text(&c->args[1], "value");
    struct sorting s = {.case_sensitive = jv_true(&c->args[0]),
                        .reverse = jv_true(&c->args[2]),
                        .attribute = by_value ? &second : &first};
    if (c->self->kind != JV_MAP ||
        (!by_value && c->args[1].kind != JV_UNDEFINED && !jv_is_text(&c->args[1], "key"))) {
        return err_set(c->err, ERR_INVALID, "dictsort of %s, or by what is neither key nor value",
                       jv_kind_name(c->self));
    }
    struct jv pairs;
    if (jv_list_new(c->arena, c->self->map->count, &pairs, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < c->self->map->count; i++, pairs.list->count++) {
        struct jv *pair = &pairs.list->items[i];
        if (jv_list_new(c->arena, 2, pair, c->err) < 0) {
            return -1;
        }
        pair->list->items[0] = c->self->map->keys[i];
        pair->list->items[1] = c->self->map->values[i];
        pair->list->count = 2;
        pair->list->tuple = true;
    }
    return list_out(c, keyed_sort(c->arena, pairs.list, &s, c->err), pairs.list->count);
}

/* unique(case_sensitive, attribute): the first of each, in their order. */
int jinja_do_unique(const struct jinja_call *c)
{
    struct jv_list list;
    const struct sorting s = {.case_sensitive = jv_true(&c->args[0]), .attribute = &c->args[1]};
    if (jv_items(c->arena, c->self, &list, c->err) < 0 ||
        jv_list_new(c->arena, list.count, c->out, c->err) < 0 ||
        jinja_work(c->arena, list.count * list.count, c->err) < 0) {
        return -1;
    }
    struct jv *keys = jinja_alloc(c->arena, (list.count + 1) * sizeof(*keys), c->err);
    for (size_t i = 0; i < list.count && keys != NULL; i++) {
        const struct jv key = sort_key(c->arena, &s, &list.items[i], c->err);
        bool seen = false;
        for (size_t k = 0; k < c->out->list->count && !seen; k++) {
            seen = jv_equal(&keys[k], &key);
        }
        if (!seen) {
            keys[c->out->list->count] = key;
            c->out->list->items[c->out->list->count++] = list.items[i];
        }
    }
    return keys != NULL ? 0 : -1;
}

/* min and max(case_sensitive, attribute): the first of equal ones. */
static int extreme(const struct jinja_call *c, bool most)
{
    struct jv_list list;
    const struct sorting s = {.case_sensitive = jv_true(&c->args[0]), .attribute = &c->args[1]};
    struct jv best = {0};
    if (jv_items(c->arena, c->self, &list, c->err) < 0) {
        return -1;
    }
    *c->out = jv_undefined("No aggregated item, sequence was empty.", 39);
    for (size_t i = 0; i < list.count; i++) {
        const struct jv key = sort_key(c->arena, &s, &list.items[i], c->err);
        int order = 0;
        if (i > 0 && !jv_order(&key, &best, &order)) {
            return err_set(c->err, ERR_INVALID, "%s and %s have no order", jv_kind_name(&key),
                           jv_kind_name(&best));
        }
        if (i == 0 || (most ? order > 0 : order < 0)) {
            best = key;
            *c->out = list.items[i];
        }
    }
    return 0;
}

int jinja_do_min(const struct jinja_call *c)
{
    return extreme(c, false);
}

int jinja_do_max(const struct jinja_call *c)
{
    return extreme(c, true);
}

/* sum(attribute, start) of numbers. */
int jinja_do_sum(const struct jinja_call *c)
{
    struct jv_list list;
    int64_t whole = 0;
    double real = 0;
    bool is_real = c->args[1].kind == JV_FLOAT;
    if (c->args[1].kind != JV_UNDEFINED && !is_real && !jv_number(&c->args[1], &whole)) {
        return err_set(c->err, ERR_UNSUPPORTED, "sum of what are no numbers");
    }
    real = is_real ? c->args[1].real : 0;
    if (jv_items(c->arena, c->self, &list, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < list.count; i++) {
        const struct jv item =
            c->args[0].kind == JV_UNDEFINED ? list.items[i] : jinja_member(&list.items[i], &c->args[0]);
        int64_t number = 0;
        if (item.kind != JV_FLOAT && !jv_number(&item, &number)) {
            return err_set(c->err, ERR_INVALID, "%s among what is summed", jv_kind_name(&item));
        }
        if (item.kind == JV_FLOAT && !is_real) {
            is_real = true;
            real = (double)whole;
        }
        if (is_real) {
            real += item.kind == JV_FLOAT ? item.real : (double)number;
        } else if (__builtin_add_overflow(whole, number, &whole)) {
            return err_set(c->err, ERR_TOO_BIG, "a number beyond 64 bits");
        }
    }
    *c->out = is_real ? (struct jv){.kind = JV_FLOAT, .real = real} : jv_int(whole);
    return 0;
}

/* ---- groups ---- */

static int group_add(const struct jinja_call *c, const struct jv *items, size_t count, const struct jv *fill,
                     size_t fills)
{
    struct jv *group = &c->out->list->items[c->out->list->count++];
    if (jv_list_new(c->arena, count + fills, group, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < count + fills; i++) {
        group->list->items[group->list->count++] = i < count ? items[i] : *fill;
    }
    return 0;
}

/* batch(linecount, fill_with) */
int jinja_do_batch(const struct jinja_call *c)
{
    struct jv_list list;
    int64_t size;
    if (!jv_number(&c->args[0], &size) || size < 1 || size > 100000) {
        return err_set(c->err, ERR_INVALID, "batch needs a number from 1");
    }
    if (jv_items(c->arena, c->self, &list, c->err) < 0 ||
        jv_list_new(c->arena, list.count / (size_t)size + 1, c->out, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < list.count; i += (size_t)size) {
        const size_t count = list.count - i < (size_t)size ? list.count - i : (size_t)size;
        const bool filled = c->args[1].kind != JV_UNDEFINED && c->args[1].kind != JV_NONE;
        if (group_add(c, list.items + i, count, &c->args[1], filled ? (size_t)size - count : 0) < 0) {
            return -1;
        }
    }
    return 0;
}

/* slice(slices, fill_with): so many lists, the first ones longer by one. */
int jinja_do_slice(const struct jinja_call *c)
{
    struct jv_list list;
    int64_t slices;
    if (!jv_number(&c->args[0], &slices) || slices < 1 || slices > 100000) {
        return err_set(c->err, ERR_INVALID, "slice needs a number from 1");
    }
    if (jv_items(c->arena, c->self, &list, c->err) < 0 ||
        jv_list_new(c->arena, (size_t)slices, c->out, c->err) < 0) {
        return -1;
    }
    const size_t each = list.count / (size_t)slices, longer = list.count % (size_t)slices;
    const bool filled = c->args[1].kind != JV_UNDEFINED && c->args[1].kind != JV_NONE;
    size_t at = 0;
    for (size_t i = 0; i < (size_t)slices; i++) {
        const size_t count = each + (i < longer);
        if (group_add(c, list.items + at, count, &c->args[1], filled && i >= longer ? 1 : 0) < 0) {
            return -1;
        }
        at += count;
    }
    return 0;
}

/* groupby(attribute, default, case_sensitive): (value, list) pairs in the order of the values. */
int jinja_do_groupby(const struct jinja_call *c)
{
    struct jv_list list;
    struct sorting s = {.attribute = &c->args[0], .case_sensitive = jv_true(&c->args[2])};
    if (c->args[1].kind != JV_UNDEFINED) {
        return err_set(c->err, ERR_UNSUPPORTED, "groupby with a default");
    }
    if (jv_items(c->arena, c->self, &list, c->err) < 0) {
        return -1;
    }
    const struct keyed *keyed = keyed_sort(c->arena, &list, &s, c->err);
    struct jv *items = jinja_alloc(c->arena, (list.count + 1) * sizeof(*items), c->err);
    if (keyed == NULL || items == NULL || jv_list_new(c->arena, list.count, c->out, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < list.count;) {
        size_t count = 0;
        for (; i + count < list.count && jv_equal(&keyed[i].key, &keyed[i + count].key); count++) {
            items[count] = keyed[i + count].item;
        }
        const struct jv grouper = jinja_member(&keyed[i].item, s.attribute);
        if (group_add(c, &grouper, 1, &grouper, 1) < 0) {
            return -1;
        }
        struct jv *pair = &c->out->list->items[c->out->list->count - 1];
        pair->list->tuple = true;
        struct jv *members = &pair->list->items[1];
        if (jv_list_new(c->arena, count, members, c->err) < 0) {
            return -1;
        }
        memcpy(members->list->items, items, count * sizeof(*items));
        members->list->count = count;
        i += count;
    }
    return 0;
}

/* ---- numbers ---- */

int jinja_do_float(const struct jinja_call *c)
{
    char digits[64];
    int64_t number;
    const struct jv bare = c->self->kind == JV_TEXT ? jv_strip(*c->self, NULL, true, true) : *c->self;
    const struct jv zero = {.kind = JV_FLOAT, .real = 0};
    *c->out = c->args[0].kind != JV_UNDEFINED ? c->args[0] : zero;
    if (c->self->kind == JV_UNDEFINED) {
        return err_set(c->err, ERR_INVALID, "undefined: \"%.*s\"",
                       (int)(c->self->size < 60 ? c->self->size : 60), c->self->text);
    }
    if (c->self->kind == JV_FLOAT) {
        *c->out = *c->self;
    } else if (jv_number(c->self, &number)) {
        *c->out = (struct jv){.kind = JV_FLOAT, .real = (double)number};
    } else if (c->self->kind == JV_TEXT && bare.size > 0 && bare.size < sizeof(digits)) {
        char *end;
        memcpy(digits, bare.text, bare.size);
        digits[bare.size] = '\0';
        if (strpbrk(digits, "xXpP_") != NULL) {
            return strchr(digits, '_') == NULL
                       ? 0
                       : err_set(c->err, ERR_UNSUPPORTED, "float of a text with an underscore");
        }
        const double real = strtod(digits, &end);
        *c->out = *end == '\0' ? (struct jv){.kind = JV_FLOAT, .real = real} : *c->out;
    }
    return 0;
}

int jinja_do_abs(const struct jinja_call *c)
{
    int64_t number;
    if (c->self->kind == JV_FLOAT) {
        *c->out = (struct jv){.kind = JV_FLOAT, .real = fabs(c->self->real)};
        return 0;
    }
    if (!jv_number(c->self, &number) || number == INT64_MIN) {
        return err_set(c->err, ERR_INVALID, "abs of %s", jv_kind_name(c->self));
    }
    *c->out = jv_int(number < 0 ? -number : number);
    return 0;
}

/* round(precision, method): a whole number stays one with method "common". */
int jinja_do_round(const struct jinja_call *c)
{
    int64_t number, precision = 0;
    const bool common = c->args[1].kind == JV_UNDEFINED || jv_is_text(&c->args[1], "common");
    if ((c->args[0].kind != JV_UNDEFINED && !jv_number(&c->args[0], &precision)) || precision < 0 ||
        precision > 15 || (c->self->kind != JV_FLOAT && !jv_number(c->self, &number))) {
        return err_set(c->err, ERR_UNSUPPORTED, "round of %s, or to no number of places from 0 to 15",
                       jv_kind_name(c->self));
    }
    if (common && c->self->kind != JV_FLOAT) {
        *c->out = jv_int(number);
        return 0;
    }
    const double value = c->self->kind == JV_FLOAT ? c->self->real : (double)number;
    const double scale = pow(10, (double)precision);
    if (common) { /* to the nearest decimal of so many places: as printing it does */
        char digits[400];
        snprintf(digits, sizeof(digits), "%.*f", (int)precision, value);
        *c->out = (struct jv){.kind = JV_FLOAT, .real = strtod(digits, NULL)};
        return 0;
    }
    const bool up = jv_is_text(&c->args[1], "ceil");
    if (!up && !jv_is_text(&c->args[1], "floor")) {
        return err_set(c->err, ERR_INVALID, "round by a method that is not common, ceil or floor");
    }
    *c->out =
        (struct jv){.kind = JV_FLOAT, .real = (up ? ceil(value * scale) : floor(value * scale)) / scale};
    return 0;
}

/* attr(name): attributes of Python's own values are not to be had. */
int jinja_do_attr(const struct jinja_call *c)
{
    if (c->self->kind == JV_MAP && c->args[0].kind == JV_TEXT) {
        *c->out = jv_undefined(c->args[0].text, c->args[0].size);
        return 0;
    }
    return err_set(c->err, ERR_UNSUPPORTED, "attr of %s", jv_kind_name(c->self));
}

/* ---- texts ---- */

static bool is_word(unsigned char c)
{
    return c == '_' || (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

int jinja_do_wordcount(const struct jinja_call *c)
{
    struct jv text;
    int64_t count = 0;
    if (jinja_text_of(c->arena, c->self, &text, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < text.size; i++) {
        if ((unsigned char)text.text[i] >= 0x80) {
            return err_set(c->err, ERR_UNSUPPORTED, "wordcount of a text beyond ASCII");
        }
        count +=
            is_word((unsigned char)text.text[i]) && (i == 0 || !is_word((unsigned char)text.text[i - 1]));
    }
    *c->out = jv_int(count);
    return 0;
}

/* indent(width, first, blank) */
int jinja_do_indent(const struct jinja_call *c)
{
    struct jv text;
    struct jv pad = c->args[0];
    char blanks[256];
    int64_t width = 4;
    if (pad.kind != JV_TEXT) {
        if ((pad.kind != JV_UNDEFINED && !jv_number(&pad, &width)) || width > (int64_t)sizeof(blanks)) {
            return err_set(c->err, ERR_UNSUPPORTED, "indent by what is no number up to %zu", sizeof(blanks));
        }
        width = width < 0 ? 0 : width;
        memset(blanks, ' ', sizeof(blanks));
        pad = jv_borrow(blanks, (size_t)width);
    }
    if (c->self->kind != JV_TEXT) {
        return err_set(c->err, ERR_INVALID, "indent of %s", jv_kind_name(c->self));
    }
    text = *c->self;
    struct buf out = {.limit = JINJA_TEXT_MAX};
    const bool first = jv_true(&c->args[1]), blank = jv_true(&c->args[2]);
    int status = 0;
    for (size_t at = 0; at <= text.size && status == 0;) {
        const char *newline = memchr(text.text + at, '\n', text.size - at);
        const size_t end = newline != NULL ? (size_t)(newline - text.text) : text.size;
        const bool padded = at == 0 ? first : blank || end > at;
        if (padded) {
            status = buf_append(&out, pad.text, pad.size, c->err);
        }
        if (status == 0) {
            status = buf_append(&out, text.text + at, end - at + (newline != NULL), c->err);
        }
        at = end + 1;
    }
    status = status < 0 ? -1 : jv_copy(c->arena, buf_str(&out), out.size, c->out, c->err);
    buf_fini(&out);
    return status;
}

/* center(width) */
int jinja_do_center(const struct jinja_call *c)
{
    struct jv text;
    int64_t width = 80;
    if ((c->args[0].kind != JV_UNDEFINED && !jv_number(&c->args[0], &width)) || width > 100000) {
        return err_set(c->err, ERR_UNSUPPORTED, "center in what is no number up to 100000");
    }
    if (jinja_text_of(c->arena, c->self, &text, c->err) < 0) {
        return -1;
    }
    const int64_t count = (int64_t)jv_characters(&text);
    const int64_t room = width > count ? width - count : 0;
    const int64_t left = room / 2 + (room & width & 1); /* as CPython's str.center */
    char *made = jinja_alloc(c->arena, text.size + (size_t)room + 1, c->err);
    if (made == NULL) {
        return -1;
    }
    memset(made, ' ', text.size + (size_t)room);
    memcpy(made + left, text.text, text.size);
    *c->out = jv_borrow(made, text.size + (size_t)room);
    return 0;
}

int jinja_do_escape(const struct jinja_call *c)
{
    static const struct {
        char letter;
        const char *instead;
    } rows[] = {{'&', "&amp;"}, {'<', "&lt;"}, {'>', "&gt;"}, {'\'', "&#39;"}, {'"', "&#34;"}};
    struct jv text;
    struct buf out = {.limit = JINJA_TEXT_MAX};
    int status = jinja_text_of(c->arena, c->self, &text, c->err);
    for (size_t i = 0; status == 0 && i < text.size; i++) {
        size_t row = 0;
        while (row < 5 && rows[row].letter != text.text[i]) {
            row++;
        }
        status =
            row < 5 ? buf_text(&out, rows[row].instead, c->err) : buf_append(&out, &text.text[i], 1, c->err);
    }
    status = status < 0 ? -1 : jv_copy(c->arena, buf_str(&out), out.size, c->out, c->err);
    buf_fini(&out);
    return status;
}

/* ---- tests ---- */

static int ordered(const struct jinja_call *c, bool less, bool equal)
{
    int order = 0;
    if (!jv_order(c->self, &c->args[0], &order)) {
        return err_set(c->err, ERR_INVALID, "%s and %s have no order", jv_kind_name(c->self),
                       jv_kind_name(&c->args[0]));
    }
    *c->out = jv_bool(order == 0 ? equal : (order < 0) == less);
    return 0;
}

int jinja_is_less(const struct jinja_call *c)
{
    return ordered(c, true, false);
}

int jinja_is_less_equal(const struct jinja_call *c)
{
    return ordered(c, true, true);
}

int jinja_is_greater(const struct jinja_call *c)
{
    return ordered(c, false, false);
}

int jinja_is_greater_equal(const struct jinja_call *c)
{
    return ordered(c, false, true);
}

/* Letters of one case alone, and at least one; beyond ASCII it is refused. */
static int cased(const struct jinja_call *c, char from, char to)
{
    struct jv text;
    bool some = false, other = false;
    if (jinja_text_of(c->arena, c->self, &text, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < text.size; i++) {
        const char letter = text.text[i];
        if ((unsigned char)letter >= 0x80) {
            return err_set(c->err, ERR_UNSUPPORTED, "the case of a text beyond ASCII");
        }
        some = some || (letter >= from && letter <= to);
        other = other || (letter >= (from ^ 0x20) && letter <= (to ^ 0x20));
    }
    *c->out = jv_bool(some && !other);
    return 0;
}

int jinja_is_lower(const struct jinja_call *c)
{
    return cased(c, 'a', 'z');
}

int jinja_is_upper(const struct jinja_call *c)
{
    return cased(c, 'A', 'Z');
}

int jinja_is_divisible(const struct jinja_call *c)
{
    int64_t number, by;
    if (!jv_number(c->self, &number) || !jv_number(&c->args[0], &by) || by == 0) {
        return err_set(c->err, ERR_INVALID, "divisibleby needs two whole numbers, the second not 0");
    }
    *c->out = jv_bool(by == -1 || number % by == 0);
    return 0;
}
