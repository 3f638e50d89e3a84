#include "model/templates/jinja_builtin.h"

#include <string.h>

#include "model/templates/jinja_case.h"
#include "model/templates/jinja_filter.h"
#include "model/templates/jinja_lists.h"
#include "model/templates/jinja_method.h"
#include "model/templates/jinja_test.h"

/* ---- select, reject, map: filters that call a test or a filter for each item ---- */

/* Returns the positional arguments after the first 'skip', and all named ones. */
static struct jinja_args args_behind(const struct jinja_args *args, size_t skip)
{
    struct jinja_args rest = *args;
    rest.items += args->count > skip ? skip : args->count;
    rest.count -= args->count > skip ? skip : args->count;
    return rest;
}

static int unknown(const struct jinja_call *c, const char *what, const struct jv *name)
{
    const bool text = name->kind == JV_TEXT;
    return err_set(c->err, ERR_UNSUPPORTED, "%s by a %s that is not known: \"%.*s\"", c->name, what,
                   text ? (int)(name->size < 60 ? name->size : 60) : 0, text ? name->text : "");
}

/* Selects the items for which a test returns 'wanted'. The test receives the item, or an attribute of it. */
static int jinja_builtin_choose(const struct jinja_call *c, bool by_attribute, bool wanted)
{
    const struct jinja_args *args = c->extra;
    const struct jv nothing = {.kind = JV_NONE};
    struct jv_list list = {0};
    const size_t skip = by_attribute ? 1 : 0;
    const bool tested = args->count > skip;
    const struct jinja_builtin *test = tested ? jinja_test_row(&args->items[skip]) : NULL;
    const struct jinja_args rest = args_behind(args, skip + 1);
    size_t count = 0;
    if (jv_true(c->self) && jv_items(c->arena, c->self, &list, c->err) < 0)
        return -1;
    if (list.count > 0 && (args->count < skip || (tested && !test))) {
        return args->count < skip ? err_set(c->err, ERR_INVALID, "%s needs an attribute", c->name)
                                  : unknown(c, "test", &args->items[skip]);
    }
    struct jv *kept = jinja_alloc(c->arena, (list.count + 1) * sizeof(*kept), c->err);
    for (size_t i = 0; i < list.count && kept; i++) {
        struct jv value, said;
        if (jinja_getpath(c->arena, &list.items[i], by_attribute ? &args->items[0] : &nothing, NULL, &value,
                          c->err) < 0 ||
            (test && jinja_builtin_call(test, c->arena, &value, &rest, &said, c->err) < 0)) {
            return -1;
        }
        if ((test ? jv_true(&said) : jv_true(&value)) == wanted)
            kept[count++] = list.items[i];
    }
    return !kept ? -1 : jinja_iterator(c->arena, kept, count, c->name, c->out, c->err);
}

static int do_select(const struct jinja_call *c)
{
    return jinja_builtin_choose(c, false, true);
}

static int do_reject(const struct jinja_call *c)
{
    return jinja_builtin_choose(c, false, false);
}

static int do_selectattr(const struct jinja_call *c)
{
    return jinja_builtin_choose(c, true, true);
}

static int do_rejectattr(const struct jinja_call *c)
{
    return jinja_builtin_choose(c, true, false);
}

/* Returns the argument of that name, or NULL. */
static const struct jv *jinja_builtin_named(const struct jinja_args *args, const char *name)
{
    for (size_t i = 0; i < args->named_count; i++)
        if (jv_is_text(&args->names[i], name))
            return &args->named[i];
    return NULL;
}

static int do_map(const struct jinja_call *c)
{
    struct jv_list list = {0};
    const struct jinja_args *args = c->extra;
    const struct jv *attribute = args->count == 0 ? jinja_builtin_named(args, "attribute") : NULL;
    const struct jv *otherwise = attribute ? jinja_builtin_named(args, "default") : NULL;
    const struct jinja_builtin *filter = args->count > 0 ? jinja_filter_row(&args->items[0]) : NULL;
    const struct jinja_args rest = args_behind(args, 1);
    if (jv_true(c->self) && jv_items(c->arena, c->self, &list, c->err) < 0)
        return -1;
    if (list.count > 0 && attribute && args->named_count > 1 + (otherwise != NULL))
        return err_set(c->err, ERR_INVALID, "map by an attribute with other arguments than default");
    if (list.count > 0 && !attribute && !filter) {
        return args->count > 0 ? unknown(c, "filter", &args->items[0])
                               : err_set(c->err, ERR_INVALID, "map needs a filter");
    }
    struct jv *made = jinja_alloc(c->arena, (list.count + 1) * sizeof(*made), c->err);
    for (size_t i = 0; i < list.count && made; i++) {
        if ((attribute ? jinja_getpath(c->arena, &list.items[i], attribute, otherwise, &made[i], c->err)
                       : jinja_builtin_call(filter, c->arena, &list.items[i], &rest, &made[i], c->err)) < 0) {
            return -1;
        }
    }
    return !made ? -1 : jinja_iterator(c->arena, made, list.count, c->name, c->out, c->err);
}

/* ---- the tables ---- */

static const struct jinja_builtin filters[] = {
    {.name = "abs", .call = jinja_do_abs},
    {.name = "attr", .call = jinja_do_attr, .params = {"name"}, .required = 1},
    {.name = "batch", .call = jinja_do_batch, .params = {"linecount", "fill_with"}, .required = 1},
    {.name = "capitalize", .call = jinja_do_capitalize},
    {.name = "center", .call = jinja_do_center_filter, .params = {"width"}},
    {.name = "count", .call = jinja_do_length},
    {.name = "d", .call = jinja_do_default, .params = {"default_value", "boolean"}},
    {.name = "default", .call = jinja_do_default, .params = {"default_value", "boolean"}},
    {.name = "dictsort", .call = jinja_do_dictsort, .params = {"case_sensitive", "by", "reverse"}},
    {.name = "e", .call = jinja_do_escape},
    {.name = "escape", .call = jinja_do_escape},
    {.name = "filesizeformat", .call = jinja_do_filesizeformat, .params = {"binary"}},
    {.name = "first", .call = jinja_do_first},
    {.name = "float", .call = jinja_do_float, .params = {"default"}},
    {.name = "forceescape", .call = jinja_do_forceescape},
    {.name = "format", .call = jinja_do_format, .any_args = true},
    {.name = "groupby",
     .call = jinja_do_groupby,
     .params = {"attribute", "default", "case_sensitive"},
     .required = 1},
    {.name = "indent", .call = jinja_do_indent, .params = {"width", "first", "blank"}},
    {.name = "int", .call = jinja_do_int, .params = {"default", "base"}},
    {.name = "items", .call = jinja_do_items},
    {.name = "join", .call = jinja_do_join, .params = {"d", "attribute"}},
    {.name = "last", .call = jinja_do_last},
    {.name = "length", .call = jinja_do_length},
    {.name = "list", .call = jinja_do_list},
    {.name = "lower", .call = jinja_do_lower},
    {.name = "map", .call = do_map, .any_args = true},
    {.name = "max", .call = jinja_do_max, .params = {"case_sensitive", "attribute"}},
    {.name = "min", .call = jinja_do_min, .params = {"case_sensitive", "attribute"}},
    {.name = "pprint", .call = jinja_do_pprint},
    {.name = "random", .call = jinja_not_done, .any_args = true},
    {.name = "reject", .call = do_reject, .any_args = true},
    {.name = "rejectattr", .call = do_rejectattr, .any_args = true},
    {.name = "replace", .call = jinja_do_replace_filter, .params = {"old", "new", "count"}, .required = 2},
    {.name = "reverse", .call = jinja_do_reverse},
    {.name = "round", .call = jinja_do_round, .params = {"precision", "method"}},
    {.name = "safe", .call = jinja_do_safe},
    {.name = "select", .call = do_select, .any_args = true},
    {.name = "selectattr", .call = do_selectattr, .any_args = true},
    {.name = "slice", .call = jinja_do_slice, .params = {"slices", "fill_with"}, .required = 1},
    {.name = "sort", .call = jinja_do_sort, .params = {"reverse", "case_sensitive", "attribute"}},
    {.name = "string", .call = jinja_do_string},
    {.name = "striptags", .call = jinja_do_striptags},
    {.name = "sum", .call = jinja_do_sum, .params = {"attribute", "start"}},
    {.name = "title", .call = jinja_do_title_filter},
    {.name = "tojson",
     .call = jinja_do_tojson,
     .params = {"ensure_ascii", "indent", "separators", "sort_keys"}},
    {.name = "trim", .call = jinja_do_trim, .params = {"chars"}},
    {.name = "truncate", .call = jinja_do_truncate, .params = {"length", "killwords", "end", "leeway"}},
    {.name = "unique", .call = jinja_do_unique, .params = {"case_sensitive", "attribute"}},
    {.name = "upper", .call = jinja_do_upper},
    {.name = "urlencode", .call = jinja_do_urlencode},
    {.name = "urlize", .call = jinja_not_done, .any_args = true},
    {.name = "wordcount", .call = jinja_do_wordcount},
    {.name = "wordwrap",
     .call = jinja_do_wordwrap,
     .params = {"width", "break_long_words", "wrapstring", "break_on_hyphens"}},
    {.name = "xmlattr", .call = jinja_do_xmlattr, .params = {"autospace"}},
};

const struct jinja_builtin *jinja_filter_row(const struct jv *name)
{
    for (size_t i = 0; i < sizeof(filters) / sizeof(filters[0]); i++)
        if (jv_is_text(name, filters[i].name))
            return &filters[i];
    return NULL;
}

/* Implements the test `filter`: returns true if there is a filter of that name. */
static int is_filter(const struct jinja_call *c)
{
    *c->out = jv_bool(jinja_filter_row(c->self) != NULL);
    return jv_hashable(c->self) ? 0 : err_set(c->err, ERR_INVALID, "filter of %s", jv_kind_name(c->self));
}

static int is_test(const struct jinja_call *c)
{
    *c->out = jv_bool(jinja_test_find(c->self) != NULL);
    return jv_hashable(c->self) ? 0 : err_set(c->err, ERR_INVALID, "test of %s", jv_kind_name(c->self));
}

const struct jinja_builtin *jinja_test_row(const struct jv *name)
{
    static const struct jinja_builtin of_tables[2] = {{.name = "filter", .call = is_filter},
                                                      {.name = "test", .call = is_test}};
    return jv_is_text(name, "filter") ? &of_tables[0]
           : jv_is_text(name, "test") ? &of_tables[1]
                                      : jinja_test_find(name);
}
