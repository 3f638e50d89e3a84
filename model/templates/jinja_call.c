#include "model/templates/jinja_call.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/templates/jinja_lists.h"
#include "model/templates/jinja_text.h"

/* ---- maps ---- */

static int do_items(const struct jinja_call *c)
{
    if (c->self->kind == JV_UNDEFINED) {
        return jv_list_new(c->arena, 0, c->out, c->err);
    }
    if (c->self->kind != JV_MAP) {
        return err_set(c->err, ERR_INVALID, "%s has no items", jv_kind_name(c->self));
    }
    if (jv_list_new(c->arena, c->self->map->count, c->out, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < c->self->map->count; i++) {
        struct jv pair;
        if (jv_list_new(c->arena, 2, &pair, c->err) < 0) {
            return -1;
        }
        pair.list->items[0] = c->self->map->keys[i];
        pair.list->items[1] = c->self->map->values[i];
        pair.list->count = 2;
        pair.list->tuple = true;
        c->out->list->items[c->out->list->count++] = pair;
    }
    return 0;
}

static int list_of(struct jinja_arena *arena, const struct jv *items, size_t count, struct jv *out,
                   struct err *err)
{
    if (jv_list_new(arena, count, out, err) < 0) {
        return -1;
    }
    if (count > 0) {
        memcpy(out->list->items, items, count * sizeof(*items));
    }
    out->list->count = count;
    return 0;
}

static int do_keys(const struct jinja_call *c)
{
    return list_of(c->arena, c->self->map->keys, c->self->map->count, c->out, c->err);
}

static int do_values(const struct jinja_call *c)
{
    return list_of(c->arena, c->self->map->values, c->self->map->count, c->out, c->err);
}

static int do_get(const struct jinja_call *c)
{
    const struct jv *found = jv_map_get(c->self->map, &c->args[0]);
    const struct jv none = {.kind = JV_NONE};
    *c->out = found != NULL ? *found : c->args[1].kind != JV_UNDEFINED ? c->args[1] : none;
    return 0;
}

/* ---- filters of anything ---- */

static int do_length(const struct jinja_call *c)
{
    struct jv_list list;
    if (c->self->kind == JV_TEXT) {
        *c->out = jv_int((int64_t)jv_characters(c->self));
        return 0;
    }
    if (jv_items(c->arena, c->self, &list, c->err) < 0) {
        return -1;
    }
    *c->out = jv_int((int64_t)list.count);
    return 0;
}

static int do_list(const struct jinja_call *c)
{
    struct jv_list list;
    return jv_items(c->arena, c->self, &list, c->err) < 0
               ? -1
               : list_of(c->arena, list.items, list.count, c->out, c->err);
}

static int do_first(const struct jinja_call *c)
{
    struct jv_list list;
    if (jv_items(c->arena, c->self, &list, c->err) < 0) {
        return -1;
    }
    *c->out = list.count > 0 ? list.items[0] : jv_undefined("first of nothing", 16);
    return 0;
}

static int do_last(const struct jinja_call *c)
{
    struct jv_list list;
    if (jv_items(c->arena, c->self, &list, c->err) < 0) {
        return -1;
    }
    *c->out = list.count > 0 ? list.items[list.count - 1] : jv_undefined("last of nothing", 15);
    return 0;
}

static int do_reverse(const struct jinja_call *c)
{
    struct jv_list list;
    if (jv_items(c->arena, c->self, &list, c->err) < 0 ||
        jv_list_new(c->arena, list.count, c->out, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < list.count; i++) {
        c->out->list->items[c->out->list->count++] = list.items[list.count - 1 - i];
    }
    return 0;
}

static int do_default(const struct jinja_call *c)
{
    const bool instead = c->self->kind == JV_UNDEFINED || (jv_true(&c->args[1]) && !jv_true(c->self));
    const bool given = c->extra->count > 0 || c->args[0].kind != JV_UNDEFINED;
    *c->out = !instead ? *c->self : given ? c->args[0] : jv_borrow("", 0);
    return 0;
}

static int do_string(const struct jinja_call *c)
{
    return jinja_text_of(c->arena, c->self, c->out, c->err);
}

static int do_int(const struct jinja_call *c)
{
    char digits[64];
    const struct jv bare = c->self->kind == JV_TEXT ? jv_strip(*c->self, NULL, true, true) : *c->self;
    *c->out = c->args[0].kind != JV_UNDEFINED ? c->args[0] : jv_int(0);
    int64_t number;
    double real = 0;
    if (jv_number(c->self, &number)) {
        *c->out = jv_int(number);
        return 0;
    }
    if (c->self->kind == JV_UNDEFINED) {
        return err_set(c->err, ERR_INVALID, "undefined: \"%.*s\"",
                       (int)(c->self->size < 60 ? c->self->size : 60), c->self->text);
    }
    bool good = c->self->kind == JV_FLOAT;
    if (c->self->kind == JV_TEXT && bare.size > 0 && bare.size < sizeof(digits)) {
        char *end = digits;
        memcpy(digits, bare.text, bare.size);
        digits[bare.size] = '\0';
        errno = 0;
        const long long whole = strtoll(digits, &end, 10);
        if (*end == '\0' && errno == 0) {
            *c->out = jv_int(whole);
            return 0;
        }
        real = strtod(digits, &end);
        good = *end == '\0';
    } else if (good) {
        real = c->self->real;
    }
    if (good && real > -9e18 && real < 9e18) {
        *c->out = jv_int((int64_t)real);
    }
    return 0;
}

static int do_tojson(const struct jinja_call *c)
{
    struct buf text = {.limit = JINJA_TEXT_MAX};
    const int64_t indent = jinja_number_arg(&c->args[1], -1);
    if ((c->args[2].kind != JV_UNDEFINED && c->args[2].kind != JV_NONE) || jv_true(&c->args[3])) {
        return err_set(c->err, ERR_UNSUPPORTED, "tojson with separators or sort_keys");
    }
    int status = jv_json(c->self, indent >= 0 && indent <= 16 ? (int)indent : -1, &text, c->err);
    for (size_t i = 0; i < text.size && status == 0 && jv_true(&c->args[0]); i++) {
        if (text.data[i] >= 0x80) {
            status = err_set(c->err, ERR_UNSUPPORTED, "tojson with ensure_ascii of a text beyond ASCII");
        }
    }
    if (status == 0) {
        status = jv_copy(c->arena, buf_str(&text), text.size, c->out, c->err);
    }
    buf_fini(&text);
    return status;
}

static int do_join(const struct jinja_call *c)
{
    struct jv_list list;
    const struct jv *by;
    if (jinja_text_arg(&c->args[0], &by, c->err) < 0 || jv_items(c->arena, c->self, &list, c->err) < 0) {
        return -1;
    }
    struct buf text = {.limit = JINJA_TEXT_MAX};
    int status = 0;
    for (size_t i = 0; i < list.count && status == 0; i++) {
        const struct jv item =
            c->args[1].kind == JV_TEXT ? jinja_member(&list.items[i], &c->args[1]) : list.items[i];
        status = i > 0 && by != NULL ? buf_append(&text, by->text, by->size, c->err) : 0;
        status = status < 0 ? -1 : jv_print(&item, &text, c->err);
    }
    status = status < 0 ? -1 : jv_copy(c->arena, buf_str(&text), text.size, c->out, c->err);
    buf_fini(&text);
    return status;
}

/* "x".join(list) */
static int do_join_method(const struct jinja_call *c)
{
    const struct jv by[2] = {*c->self, jv_undefined("", 0)};
    struct jinja_call turned = *c;
    turned.self = &c->args[0];
    turned.args = by;
    return do_join(&turned);
}

/* ---- filters over lists by a test or a filter ---- */

/* The arguments behind the first 'skip'. */
static struct jinja_args args_behind(const struct jinja_args *args, size_t skip)
{
    struct jinja_args rest = {.count = args->count > skip ? args->count - skip : 0};
    for (size_t i = 0; i < rest.count; i++) {
        rest.items[i] = args->items[skip + i];
    }
    return rest;
}

/* Those of a list (by an attribute of theirs, if so) of which a test says 'wanted'. */
static int choose(struct jinja_arena *arena, const struct jv *self, const struct jinja_args *args,
                  bool by_attribute, bool wanted, struct jv *out, struct err *err)
{
    struct jv_list list;
    const size_t skip = by_attribute ? 1 : 0;
    const struct jinja_builtin *test = args->count > skip ? jinja_test_find(&args->items[skip]) : NULL;
    const struct jinja_args rest = args_behind(args, skip + 1);
    if (args->count < skip || (args->count > skip && test == NULL)) {
        return err_set(err, ERR_UNSUPPORTED, "a choice by a test that is not known");
    }
    if (jv_items(arena, self, &list, err) < 0 || jv_list_new(arena, list.count, out, err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < list.count; i++) {
        const struct jv value = by_attribute ? jinja_member(&list.items[i], &args->items[0]) : list.items[i];
        struct jv said = jv_bool(jv_true(&value));
        if (test != NULL && jinja_builtin_call(test, arena, &value, &rest, &said, err) < 0) {
            return -1;
        }
        if (jv_true(&said) == wanted) {
            out->list->items[out->list->count++] = list.items[i];
        }
    }
    return 0;
}

static int do_select(const struct jinja_call *c)
{
    return choose(c->arena, c->self, c->extra, false, true, c->out, c->err);
}

static int do_reject(const struct jinja_call *c)
{
    return choose(c->arena, c->self, c->extra, false, false, c->out, c->err);
}

static int do_selectattr(const struct jinja_call *c)
{
    return choose(c->arena, c->self, c->extra, true, true, c->out, c->err);
}

static int do_rejectattr(const struct jinja_call *c)
{
    return choose(c->arena, c->self, c->extra, true, false, c->out, c->err);
}

static int do_map(const struct jinja_call *c)
{
    struct jv_list list;
    const bool attribute = c->extra->named_count >= 1 && jv_is_text(&c->extra->names[0], "attribute");
    const struct jv *otherwise =
        attribute && c->extra->named_count == 2 && jv_is_text(&c->extra->names[1], "default")
            ? &c->extra->named[1]
            : NULL;
    if (attribute && c->extra->named_count > 1 && otherwise == NULL) {
        return err_set(c->err, ERR_UNSUPPORTED, "map by an attribute with other arguments than default");
    }
    const struct jinja_builtin *filter =
        !attribute && c->extra->count > 0 ? jinja_filter_find(&c->extra->items[0]) : NULL;
    const struct jinja_args rest = args_behind(c->extra, 1);
    if (!attribute && filter == NULL) {
        return err_set(c->err, ERR_UNSUPPORTED, "map by a filter that is not known");
    }
    if (jv_items(c->arena, c->self, &list, c->err) < 0 ||
        jv_list_new(c->arena, list.count, c->out, c->err) < 0) {
        return -1;
    }
    for (size_t i = 0; i < list.count; i++, c->out->list->count++) {
        struct jv *made = &c->out->list->items[i];
        if (attribute) {
            *made = jinja_member(&list.items[i], &c->extra->named[0]);
            *made = made->kind == JV_UNDEFINED && otherwise != NULL ? *otherwise : *made;
        } else if (jinja_builtin_call(filter, c->arena, &list.items[i], &rest, made, c->err) < 0) {
            return -1;
        }
    }
    return 0;
}

/* ---- tests ---- */

#define TEST(name, expression)                                                                               \
    static int name(const struct jinja_call *c)                                                              \
    {                                                                                                        \
        *c->out = jv_bool(expression);                                                                       \
        return 0;                                                                                            \
    }

TEST(is_defined, c->self->kind != JV_UNDEFINED)
TEST(is_undefined, c->self->kind == JV_UNDEFINED)
TEST(is_none, c->self->kind == JV_NONE)
TEST(is_string, c->self->kind == JV_TEXT)
TEST(is_mapping, c->self->kind == JV_MAP)
TEST(is_iterable, c->self->kind == JV_TEXT || c->self->kind == JV_LIST || c->self->kind == JV_MAP ||
                      c->self->kind == JV_UNDEFINED)
TEST(is_sequence, c->self->kind == JV_TEXT || c->self->kind == JV_LIST || c->self->kind == JV_MAP ||
                      c->self->kind == JV_UNDEFINED)
TEST(is_true, c->self->kind == JV_BOOL && c->self->truth)
TEST(is_false, c->self->kind == JV_BOOL && !c->self->truth)
TEST(is_boolean, c->self->kind == JV_BOOL)
TEST(is_number, c->self->kind == JV_INT || c->self->kind == JV_FLOAT || c->self->kind == JV_BOOL)
TEST(is_integer, c->self->kind == JV_INT)
TEST(is_float, c->self->kind == JV_FLOAT)
TEST(is_callable, c->self->kind == JV_MACRO || c->self->kind == JV_FUNCTION)
TEST(is_equal, jv_equal(c->self, &c->args[0]))
TEST(is_unequal, !jv_equal(c->self, &c->args[0]))

/* value % 2 == remainder, of a number */
static int halved(const struct jinja_call *c, int remainder)
{
    int64_t number;
    if (c->self->kind == JV_FLOAT) {
        const double half = c->self->real / 2;
        *c->out = jv_bool(c->self->real - 2 * floor(half) == remainder);
        return 0;
    }
    if (!jv_number(c->self, &number)) {
        return err_set(c->err, ERR_INVALID, "%s is neither odd nor even", jv_kind_name(c->self));
    }
    *c->out = jv_bool((number % 2 != 0) == remainder);
    return 0;
}

static int is_odd(const struct jinja_call *c)
{
    return halved(c, 1);
}

static int is_even(const struct jinja_call *c)
{
    return halved(c, 0);
}

static int is_in(const struct jinja_call *c)
{
    bool in = false;
    if (jinja_contains(&c->args[0], c->self, &in, c->err) < 0) {
        return -1;
    }
    *c->out = jv_bool(in);
    return 0;
}

int jinja_contains(const struct jv *all, const struct jv *item, bool *in, struct err *err)
{
    *in = false;
    switch (all->kind) {
    case JV_UNDEFINED:
        return 0;
    case JV_TEXT:
        if (item->kind != JV_TEXT) {
            return err_set(err, ERR_INVALID, "%s is looked for in a text", jv_kind_name(item));
        }
        *in = item->size == 0 ||
              (all->size > 0 && memmem(all->text, all->size, item->text, item->size) != NULL);
        return 0;
    case JV_LIST:
        for (size_t i = 0; i < all->list->count && !*in; i++) {
            *in = jv_equal(&all->list->items[i], item);
        }
        return 0;
    case JV_MAP:
        if (item->kind == JV_MAP || (item->kind == JV_LIST && !item->list->tuple)) {
            return err_set(err, ERR_INVALID, "%s is no key", jv_kind_name(item));
        }
        *in = jv_map_get(all->map, item) != NULL;
        return 0;
    default:
        return err_set(err, ERR_INVALID, "nothing can be looked for in %s", jv_kind_name(all));
    }
}

/* ---- the tables ---- */

static const struct jinja_builtin filters[] = {
    {.name = "trim", .call = jinja_do_strip, .params = {"chars"}},
    {.name = "length", .call = do_length},
    {.name = "count", .call = do_length},
    {.name = "tojson", .call = do_tojson, .params = {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {.name = "join", .call = do_join, .params = {"d", "attribute"}},
    {.name = "upper", .call = jinja_do_upper},
    {.name = "lower", .call = jinja_do_lower},
    {.name = "capitalize", .call = jinja_do_capitalize},
    {.name = "title", .call = jinja_do_title_filter},
    {.name = "first", .call = do_first},
    {.name = "last", .call = do_last},
    {.name = "reverse", .call = do_reverse},
    {.name = "default", .call = do_default, .params = {"default_value", "boolean"}},
    {.name = "d", .call = do_default, .params = {"default_value", "boolean"}},
    {.name = "list", .call = do_list},
    {.name = "items", .call = do_items},
    {.name = "select", .call = do_select, .any_args = true},
    {.name = "reject", .call = do_reject, .any_args = true},
    {.name = "selectattr", .call = do_selectattr, .any_args = true},
    {.name = "rejectattr", .call = do_rejectattr, .any_args = true},
    {.name = "map", .call = do_map, .any_args = true},
    {.name = "replace", .call = jinja_do_replace, .params = {"old", "new", "count"}},
    {.name = "string", .call = do_string},
    {.name = "int", .call = do_int, .params = {"default"}},
    {.name = "safe", .call = do_string},
    {.name = "sort", .call = jinja_do_sort, .params = {"reverse", "case_sensitive", "attribute"}},
    {.name = "dictsort", .call = jinja_do_dictsort, .params = {"case_sensitive", "by", "reverse"}},
    {.name = "unique", .call = jinja_do_unique, .params = {"case_sensitive", "attribute"}},
    {.name = "min", .call = jinja_do_min, .params = {"case_sensitive", "attribute"}},
    {.name = "max", .call = jinja_do_max, .params = {"case_sensitive", "attribute"}},
    {.name = "sum", .call = jinja_do_sum, .params = {"attribute", "start"}},
    {.name = "batch", .call = jinja_do_batch, .params = {"linecount", "fill_with"}},
    {.name = "slice", .call = jinja_do_slice, .params = {"slices", "fill_with"}},
    {.name = "groupby", .call = jinja_do_groupby, .params = {"attribute", "default", "case_sensitive"}},
    {.name = "float", .call = jinja_do_float, .params = {"default"}},
    {.name = "abs", .call = jinja_do_abs},
    {.name = "round", .call = jinja_do_round, .params = {"precision", "method"}},
    {.name = "attr", .call = jinja_do_attr, .params = {"name"}},
    {.name = "wordcount", .call = jinja_do_wordcount},
    {.name = "indent", .call = jinja_do_indent, .params = {"width", "first", "blank"}},
    {.name = "center", .call = jinja_do_center, .params = {"width"}},
    {.name = "escape", .call = jinja_do_escape},
    {.name = "e", .call = jinja_do_escape},
};

static const struct jinja_builtin tests[] = {
    {.name = "defined", .call = is_defined},
    {.name = "undefined", .call = is_undefined},
    {.name = "none", .call = is_none},
    {.name = "string", .call = is_string},
    {.name = "mapping", .call = is_mapping},
    {.name = "iterable", .call = is_iterable},
    {.name = "sequence", .call = is_sequence},
    {.name = "true", .call = is_true},
    {.name = "false", .call = is_false},
    {.name = "boolean", .call = is_boolean},
    {.name = "number", .call = is_number},
    {.name = "integer", .call = is_integer},
    {.name = "float", .call = is_float},
    {.name = "callable", .call = is_callable},
    {.name = "odd", .call = is_odd},
    {.name = "even", .call = is_even},
    {.name = "in", .call = is_in, .params = {"seq"}},
    {.name = "eq", .call = is_equal, .params = {"other"}},
    {.name = "equalto", .call = is_equal, .params = {"other"}},
    {.name = "==", .call = is_equal, .params = {"other"}},
    {.name = "ne", .call = is_unequal, .params = {"other"}},
    {.name = "!=", .call = is_unequal, .params = {"other"}},
    {.name = "lt", .call = jinja_is_less, .params = {"other"}},
    {.name = "lessthan", .call = jinja_is_less, .params = {"other"}},
    {.name = "<", .call = jinja_is_less, .params = {"other"}},
    {.name = "le", .call = jinja_is_less_equal, .params = {"other"}},
    {.name = "<=", .call = jinja_is_less_equal, .params = {"other"}},
    {.name = "gt", .call = jinja_is_greater, .params = {"other"}},
    {.name = "greaterthan", .call = jinja_is_greater, .params = {"other"}},
    {.name = ">", .call = jinja_is_greater, .params = {"other"}},
    {.name = "ge", .call = jinja_is_greater_equal, .params = {"other"}},
    {.name = ">=", .call = jinja_is_greater_equal, .params = {"other"}},
    {.name = "lower", .call = jinja_is_lower},
    {.name = "upper", .call = jinja_is_upper},
    {.name = "divisibleby", .call = jinja_is_divisible, .params = {"num"}},
};

static const struct jinja_builtin methods[] = {
    {.name = "strip", .call = jinja_do_strip, .params = {"chars"}, .of = JV_TEXT},
    {.name = "lstrip", .call = jinja_do_lstrip, .params = {"chars"}, .of = JV_TEXT},
    {.name = "rstrip", .call = jinja_do_rstrip, .params = {"chars"}, .of = JV_TEXT},
    {.name = "split", .call = jinja_do_split, .params = {"sep", "maxsplit"}, .of = JV_TEXT},
    {.name = "splitlines", .call = jinja_do_splitlines, .of = JV_TEXT},
    {.name = "startswith", .call = jinja_do_startswith, .params = {"prefix"}, .of = JV_TEXT},
    {.name = "endswith", .call = jinja_do_endswith, .params = {"suffix"}, .of = JV_TEXT},
    {.name = "removeprefix", .call = jinja_do_removeprefix, .params = {"prefix"}, .of = JV_TEXT},
    {.name = "removesuffix", .call = jinja_do_removesuffix, .params = {"suffix"}, .of = JV_TEXT},
    {.name = "upper", .call = jinja_do_upper, .of = JV_TEXT},
    {.name = "lower", .call = jinja_do_lower, .of = JV_TEXT},
    {.name = "title", .call = jinja_do_title_method, .of = JV_TEXT},
    {.name = "capitalize", .call = jinja_do_capitalize, .of = JV_TEXT},
    {.name = "replace", .call = jinja_do_replace, .params = {"old", "new", "count"}, .of = JV_TEXT},
    {.name = "join", .call = do_join_method, .params = {"iterable"}, .of = JV_TEXT},
    {.name = "find", .call = jinja_do_find, .params = {"sub"}, .of = JV_TEXT},
    {.name = "items", .call = do_items, .of = JV_MAP},
    {.name = "keys", .call = do_keys, .of = JV_MAP},
    {.name = "values", .call = do_values, .of = JV_MAP},
    {.name = "get", .call = do_get, .params = {"key", "default"}, .of = JV_MAP},
};

static const struct jinja_builtin *row_find(const struct jinja_builtin *rows, size_t count,
                                            const struct jv *name, enum jv_kind of)
{
    for (size_t i = 0; i < count; i++) {
        if (jv_is_text(name, rows[i].name) && (of == JV_UNDEFINED || rows[i].of == of)) {
            return &rows[i];
        }
    }
    return NULL;
}

const struct jinja_builtin *jinja_filter_find(const struct jv *name)
{
    return row_find(filters, sizeof(filters) / sizeof(filters[0]), name, JV_UNDEFINED);
}

const struct jinja_builtin *jinja_test_find(const struct jv *name)
{
    return row_find(tests, sizeof(tests) / sizeof(tests[0]), name, JV_UNDEFINED);
}

const struct jinja_builtin *jinja_method_find(const struct jv *name, enum jv_kind of)
{
    return row_find(methods, sizeof(methods) / sizeof(methods[0]), name, of);
}

/* Arguments by place and by name into the order of the row's parameters. */
static int args_match(const struct jinja_builtin *row, const struct jinja_args *args, struct jv *matched,
                      struct err *err)
{
    for (size_t i = 0; i < JINJA_PARAMS_MAX; i++) {
        matched[i] = jv_undefined("", 0);
    }
    for (size_t i = 0; i < args->count; i++) {
        if (i == JINJA_PARAMS_MAX || row->params[i] == NULL) {
            return err_set(err, ERR_UNSUPPORTED, "%s with %zu arguments", row->name, args->count);
        }
        matched[i] = args->items[i];
    }
    for (size_t n = 0; n < args->named_count; n++) {
        size_t i = 0;
        while (i < JINJA_PARAMS_MAX && row->params[i] != NULL &&
               !jv_is_text(&args->names[n], row->params[i])) {
            i++;
        }
        if (i == JINJA_PARAMS_MAX || row->params[i] == NULL) {
            return err_set(err, ERR_UNSUPPORTED, "%s with an argument \"%.*s\"", row->name,
                           (int)(args->names[n].size < 40 ? args->names[n].size : 40), args->names[n].text);
        }
        matched[i] = args->named[n];
    }
    return 0;
}

int jinja_builtin_call(const struct jinja_builtin *row, struct jinja_arena *arena, const struct jv *self,
                       const struct jinja_args *args, struct jv *out, struct err *err)
{
    struct jv matched[JINJA_PARAMS_MAX] = {0};
    const struct jinja_call c = {
        .arena = arena, .self = self, .args = matched, .extra = args, .out = out, .err = err};
    if (jinja_work(arena, 1 + jv_weight(self) + (args->count > 0 ? jv_weight(&args->items[0]) : 0), err) <
        0) {
        return -1;
    }
    if (row->any_args) {
        return row->call(&c);
    }
    return args_match(row, args, matched, err) < 0 ? -1 : row->call(&c);
}
