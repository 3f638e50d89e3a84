#include "model/templates/jinja_method.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/templates/jinja_case.h"
#include "model/templates/jinja_format.h"
#include "model/templates/jinja_node.h"
#include "model/templates/jinja_print.h"
#include "model/templates/jinja_text.h"

/* The kinds of value that have a method, as bits. */
enum {
    OF_TEXT = 1,
    OF_MAP = 2,
    OF_LIST = 4,
    OF_TUPLE = 8,
    OF_RANGE = 16,
    OF_INT = 32,
    OF_FLOAT = 64,
    OF_LOOP = 128,
    OF_CYCLER = 256,
    OF_VIEW = 512,
    OF_ITERATOR = 1024
};

static unsigned jinja_method_kind_of(const struct jv *value)
{
    static const unsigned forms[] = {
        [JF_LIST] = OF_LIST,   [JF_TUPLE] = OF_TUPLE, [JF_RANGE] = OF_RANGE,      [JF_KEYS] = OF_VIEW,
        [JF_VALUES] = OF_VIEW, [JF_PAIRS] = OF_VIEW,  [JF_ITERATOR] = OF_ITERATOR};
    switch (value->kind) {
    case JV_TEXT:
        return OF_TEXT;
    case JV_MAP:
        return OF_MAP;
    case JV_LIST:
        return forms[value->list->form];
    case JV_INT:
    case JV_BOOL:
        return OF_INT;
    case JV_FLOAT:
        return OF_FLOAT;
    case JV_LOOP:
        return OF_LOOP;
    case JV_CYCLER:
        return OF_CYCLER;
    default:
        return 0;
    }
}

/* ---- methods of mappings, lists, numbers ---- */

static int jinja_method_view_of(const struct jinja_call *c, enum jv_form form)
{
    const struct jv_map *map = c->self->map;
    struct jv view;
    if (jv_list_of(c->arena, form, form == JF_KEYS ? map->keys : map->values, map->count, &view, c->err) < 0)
        return -1;
    if (form == JF_PAIRS) {
        struct jv made;
        if (jv_list_new(c->arena, map->count, &made, c->err) < 0)
            return -1;
        for (size_t i = 0; i < map->count; i++, made.list->count++)
            if (jv_pair(c->arena, map->keys[i], map->values[i], &made.list->items[i], c->err) < 0)
                return -1;
        made.list->form = form;
        view = made;
    }
    *c->out = view;
    return 0;
}

static int do_items(const struct jinja_call *c)
{
    return jinja_method_view_of(c, JF_PAIRS);
}

static int do_keys(const struct jinja_call *c)
{
    return jinja_method_view_of(c, JF_KEYS);
}

static int do_values(const struct jinja_call *c)
{
    return jinja_method_view_of(c, JF_VALUES);
}

static int do_get(const struct jinja_call *c)
{
    if (!jv_hashable(&c->args[0]))
        return err_set(c->err, ERR_INVALID, "get of %s, which cannot be a key", jv_kind_name(&c->args[0]));
    const struct jv *found = jv_map_get(c->self->map, &c->args[0]);
    const struct jv none = {.kind = JV_NONE};
    *c->out = found != NULL ? *found : c->args[1].kind != JV_ABSENT ? c->args[1] : none;
    return 0;
}

static int do_copy(const struct jinja_call *c)
{
    *c->out = *c->self; /* a copy may share the value, since a template cannot change it */
    c->out->message = 0;
    return c->self->kind == JV_LIST
               ? jv_list_copy(c->arena, JF_LIST, c->self->list->items, c->self->list->count, c->out, c->err)
               : 0;
}

static int do_list_count(const struct jinja_call *c)
{
    int64_t count = 0;
    for (size_t i = 0; i < c->self->list->count; i++)
        count += jv_equal(&c->self->list->items[i], &c->args[0]);
    *c->out = jv_int(count);
    return 0;
}

static int do_list_index(const struct jinja_call *c)
{
    const int64_t count = (int64_t)c->self->list->count;
    int64_t from, to;
    if (jinja_number_arg(c, 1, 0, &from) < 0 || jinja_number_arg(c, 2, count, &to) < 0)
        return -1;
    from = from < -count ? 0 : from < 0 ? from + count : from;
    to = to < 0 ? to + count : to > count ? count : to;
    for (int64_t i = from; i < to; i++) {
        if (jv_equal(&c->self->list->items[i], &c->args[0])) {
            *c->out = jv_int(i);
            return 0;
        }
    }
    return err_set(c->err, ERR_INVALID, "index: the value is not in the list");
}

static int do_is_integer(const struct jinja_call *c)
{
    *c->out = jv_bool(isfinite(c->self->real) && floor(c->self->real) == c->self->real);
    return 0;
}

static int do_conjugate(const struct jinja_call *c)
{
    int64_t number;
    *c->out = jv_number(c->self, &number) ? jv_int(number) : *c->self;
    return 0;
}

static int do_bit_length(const struct jinja_call *c)
{
    int64_t number = 0, bits = 0;
    jv_number(c->self, &number);
    for (uint64_t value = number < 0 ? 0 - (uint64_t)number : (uint64_t)number; value > 0; value >>= 1)
        bits++;
    *c->out = jv_int(bits);
    return 0;
}

/* ---- loop.cycle, loop.changed, cycler ---- */

static int do_cycle(const struct jinja_call *c)
{
    if (c->extra->count == 0 || c->extra->named_count > 0)
        return err_set(c->err, ERR_INVALID, "cycle needs values");
    *c->out = c->extra->items[c->self->loop->at % c->extra->count];
    return 0;
}

static int do_changed(const struct jinja_call *c)
{
    struct jv all;
    if (c->extra->named_count > 0)
        return err_set(c->err, ERR_INVALID, "changed takes no names");
    if (jv_list_copy(c->arena, JF_TUPLE, c->extra->items, c->extra->count, &all, c->err) < 0)
        return -1;
    struct jv *last = &c->self->loop->changed;
    *c->out = jv_bool(last->kind == JV_ABSENT || !jv_equal(last, &all));
    *last = all;
    return 0;
}

static int do_next(const struct jinja_call *c)
{
    struct jv_counter *counter = c->self->counter;
    *c->out = counter->items.items[counter->at];
    counter->at = (counter->at + 1) % counter->items.count;
    return 0;
}

static int do_reset(const struct jinja_call *c)
{
    c->self->counter->at = 0;
    c->out->kind = JV_NONE;
    return 0;
}

/* ---- the table ---- */

#define TEXT_METHOD(name, ...) {name, __VA_ARGS__, .of = OF_TEXT}
/* The sandbox hides methods that change a list or a mapping. */
#define HIDDEN(name, kinds) {name, NULL, .of = kinds}
#define NOT_DONE(name, kinds) {name, jinja_not_done, .any_args = true, .of = kinds}

static const struct jinja_builtin methods[] = {
    TEXT_METHOD("strip", jinja_do_strip, .params = {""}, .escapes = true),
    TEXT_METHOD("lstrip", jinja_do_lstrip, .params = {""}, .escapes = true),
    TEXT_METHOD("rstrip", jinja_do_rstrip, .params = {""}, .escapes = true),
    TEXT_METHOD("split", jinja_do_split, .params = {"sep", "maxsplit"}),
    TEXT_METHOD("rsplit", jinja_do_rsplit, .params = {"sep", "maxsplit"}),
    TEXT_METHOD("splitlines", jinja_do_splitlines, .params = {"keepends"}),
    TEXT_METHOD("partition", jinja_do_partition, .params = {""}, .required = 1),
    TEXT_METHOD("rpartition", jinja_do_rpartition, .params = {""}, .required = 1),
    TEXT_METHOD("startswith", jinja_do_startswith, .params = {"", "", ""}, .required = 1),
    TEXT_METHOD("endswith", jinja_do_endswith, .params = {"", "", ""}, .required = 1),
    TEXT_METHOD("removeprefix", jinja_do_removeprefix, .params = {""}, .required = 1, .escapes = true),
    TEXT_METHOD("removesuffix", jinja_do_removesuffix, .params = {""}, .required = 1, .escapes = true),
    TEXT_METHOD("upper", jinja_do_upper, .escapes = true),
    TEXT_METHOD("lower", jinja_do_lower, .escapes = true),
    TEXT_METHOD("title", jinja_do_title_method, .escapes = true),
    TEXT_METHOD("capitalize", jinja_do_capitalize, .escapes = true),
    TEXT_METHOD("swapcase", jinja_do_swapcase, .escapes = true),
    TEXT_METHOD("casefold", jinja_do_casefold, .escapes = true),
    TEXT_METHOD("replace", jinja_do_replace, .params = {"", "", ""}, .required = 2, .escapes = true),
    TEXT_METHOD("join", jinja_do_join_method, .params = {""}, .required = 1, .escapes = true),
    TEXT_METHOD("find", jinja_do_find, .params = {"", "", ""}, .required = 1),
    TEXT_METHOD("rfind", jinja_do_rfind, .params = {"", "", ""}, .required = 1),
    TEXT_METHOD("index", jinja_do_index, .params = {"", "", ""}, .required = 1),
    TEXT_METHOD("rindex", jinja_do_rindex, .params = {"", "", ""}, .required = 1),
    TEXT_METHOD("count", jinja_do_count, .params = {"", "", ""}, .required = 1),
    TEXT_METHOD("center", jinja_do_center, .params = {"", ""}, .required = 1, .escapes = true),
    TEXT_METHOD("ljust", jinja_do_ljust, .params = {"", ""}, .required = 1, .escapes = true),
    TEXT_METHOD("rjust", jinja_do_rjust, .params = {"", ""}, .required = 1, .escapes = true),
    TEXT_METHOD("zfill", jinja_do_zfill, .params = {""}, .required = 1, .escapes = true),
    TEXT_METHOD("expandtabs", jinja_do_expandtabs, .params = {"tabsize"}, .escapes = true),
    TEXT_METHOD("format", jinja_do_format_method, .any_args = true),
    TEXT_METHOD("isalpha", jinja_is_alpha),
    TEXT_METHOD("isdigit", jinja_is_digit),
    TEXT_METHOD("isdecimal", jinja_is_decimal),
    TEXT_METHOD("isnumeric", jinja_is_numeric),
    TEXT_METHOD("isalnum", jinja_is_alnum),
    TEXT_METHOD("isspace", jinja_is_space),
    TEXT_METHOD("isascii", jinja_is_ascii),
    TEXT_METHOD("isprintable", jinja_is_printable_text),
    TEXT_METHOD("isidentifier", jinja_is_identifier),
    TEXT_METHOD("islower", jinja_is_lower),
    TEXT_METHOD("isupper", jinja_is_upper),
    TEXT_METHOD("istitle", jinja_is_title),
    NOT_DONE("encode", OF_TEXT),
    NOT_DONE("translate", OF_TEXT),
    NOT_DONE("maketrans", OF_TEXT),
    NOT_DONE("format_map", OF_TEXT),
    {.name = "items", .call = do_items, .of = OF_MAP},
    {.name = "keys", .call = do_keys, .of = OF_MAP},
    {.name = "values", .call = do_values, .of = OF_MAP},
    {.name = "get", .call = do_get, .params = {"", ""}, .required = 1, .of = OF_MAP},
    NOT_DONE("fromkeys", OF_MAP),
    {.name = "copy", .call = do_copy, .of = OF_MAP | OF_LIST},
    {.name = "count",
     .call = do_list_count,
     .params = {""},
     .required = 1,
     .of = OF_LIST | OF_TUPLE | OF_RANGE},
    {.name = "index",
     .call = do_list_index,
     .params = {"", "", ""},
     .required = 1,
     .of = OF_LIST | OF_TUPLE | OF_RANGE},
    HIDDEN("clear", OF_MAP | OF_LIST),
    HIDDEN("pop", OF_MAP | OF_LIST),
    HIDDEN("popitem", OF_MAP),
    HIDDEN("setdefault", OF_MAP),
    HIDDEN("update", OF_MAP),
    HIDDEN("append", OF_LIST),
    HIDDEN("extend", OF_LIST),
    HIDDEN("insert", OF_LIST),
    HIDDEN("remove", OF_LIST),
    HIDDEN("reverse", OF_LIST),
    HIDDEN("sort", OF_LIST),
    {.name = "conjugate", .call = do_conjugate, .of = OF_INT | OF_FLOAT},
    {.name = "bit_length", .call = do_bit_length, .of = OF_INT},
    {.name = "is_integer", .call = do_is_integer, .of = OF_FLOAT},
    NOT_DONE("bit_count", OF_INT),
    NOT_DONE("to_bytes", OF_INT),
    NOT_DONE("from_bytes", OF_INT),
    NOT_DONE("as_integer_ratio", OF_INT | OF_FLOAT),
    NOT_DONE("hex", OF_FLOAT),
    NOT_DONE("fromhex", OF_FLOAT),
    {.name = "cycle", .call = do_cycle, .any_args = true, .of = OF_LOOP},
    {.name = "changed", .call = do_changed, .any_args = true, .of = OF_LOOP},
    {.name = "next", .call = do_next, .of = OF_CYCLER},
    {.name = "reset", .call = do_reset, .of = OF_CYCLER},
    NOT_DONE("isdisjoint", OF_VIEW),
    NOT_DONE("mapping", OF_VIEW),
    NOT_DONE("send", OF_ITERATOR),
    NOT_DONE("close", OF_ITERATOR),
    NOT_DONE("throw", OF_ITERATOR),
};

int jinja_method_call(struct jinja_arena *arena, const struct jv_method *method,
                      const struct jinja_args *args, struct jv *out, struct err *err)
{
    struct jinja_args escaped = *args;
    const bool safe = method->self.kind == JV_TEXT && method->self.safe;
    if (safe && method->row->escapes && args->count > 0) {
        escaped.items = jinja_alloc(arena, args->count * sizeof(struct jv), err);
        for (size_t i = 0; i < args->count; i++) {
            if (!escaped.items)
                return -1;
            escaped.items[i] = args->items[i];
            if (args->items[i].kind == JV_TEXT &&
                jinja_escaped(arena, &args->items[i], &escaped.items[i], err) < 0) {
                return -1;
            }
        }
    }
    if (jinja_builtin_call(method->row, arena, &method->self, &escaped, out, err) < 0)
        return -1;
    const bool parts = out->kind == JV_LIST; /* the texts that split and similar methods return */
    for (size_t i = 0; safe && parts && i < out->list->count; i++)
        out->list->items[i].safe = true;
    if (out->kind == JV_TEXT && (method->self.kind == JV_TEXT))
        out->safe = safe;
    return 0;
}

/* ---- attributes that are values ---- */

static int loop_attribute(struct jv_loop *loop, const struct jv *name, struct jv *out)
{
    const size_t count = loop->items.count, at = loop->at;
    const struct {
        const char *name;
        struct jv value;
        size_t peeked;
    } rows[] = {
        {"index", jv_int((int64_t)at + 1), 0},
        {"index0", jv_int((int64_t)at), 0},
        {"first", jv_bool(at == 0), 0},
        {"last", jv_bool(at + 1 == count), 1},
        {"length", jv_int((int64_t)count), SIZE_MAX},
        {"revindex", jv_int((int64_t)(count - at)), SIZE_MAX},
        {"revindex0", jv_int((int64_t)(count - at) - 1), SIZE_MAX},
        {"depth", jv_int((int64_t)loop->depth + 1), 0},
        {"depth0", jv_int((int64_t)loop->depth), 0},
        {"previtem", at > 0 ? loop->items.items[at - 1] : jv_undefined("previtem", 8), 0},
        {"nextitem", at + 1 < count ? loop->items.items[at + 1] : jv_undefined("nextitem", 8), 1},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (jv_is_text(name, rows[i].name)) {
            *out = rows[i].value;
            loop->peeked = rows[i].peeked > loop->peeked ? rows[i].peeked : loop->peeked;
            return 1;
        }
    }
    return 0;
}

static int number_attribute(const struct jv *of, const struct jv *name, struct jv *out)
{
    int64_t number = 0;
    const bool whole = jv_number(of, &number);
    const struct jv value = whole ? jv_int(number) : *of;
    if (jv_is_text(name, "real") || (whole && jv_is_text(name, "numerator"))) {
        *out = value;
        return 1;
    }
    if (jv_is_text(name, "imag") || (whole && jv_is_text(name, "denominator"))) {
        *out = whole ? jv_int(jv_is_text(name, "denominator")) : jv_float(0);
        return 1;
    }
    return 0;
}

static int list_attribute(const struct jv_list *list, const struct jv *name, struct jv *out)
{
    static const char *const bounds[3] = {"start", "stop", "step"};
    for (size_t i = 0; list->form == JF_RANGE && i < 3; i++) {
        if (jv_is_text(name, bounds[i])) {
            *out = jv_int(list->range[i]);
            return 1;
        }
    }
    const bool group = list->made_by && list->form == JF_TUPLE; /* an item of groupby's result */
    if (group && (jv_is_text(name, "grouper") || jv_is_text(name, "list"))) {
        *out = list->items[jv_is_text(name, "list")];
        return 1;
    }
    return 0;
}

/* Reads a macro's attributes: name, arguments, and whether it accepts caller, kwargs and varargs. */
static int macro_attribute(struct jinja_arena *arena, const struct jinja_node *macro, const struct jv *name,
                           struct jv *out, struct err *err)
{
    static const char *const takes[] = {"caller", "catch_kwargs", "catch_varargs"};
    for (unsigned i = 0; i < 3; i++) {
        if (jv_is_text(name, takes[i])) {
            *out = jv_bool((macro->uses >> i & 1) != 0);
            return 1;
        }
    }
    if (jv_is_text(name, "name")) {
        *out = macro->negated ? (struct jv){.kind = JV_NONE} : macro->value;
        return 1;
    }
    if (!jv_is_text(name, "arguments"))
        return 0;
    if (jv_list_new(arena, macro->count, out, err) < 0)
        return -1;
    out->list->form = JF_TUPLE;
    for (size_t i = 0; i < macro->count; i++)
        out->list->items[out->list->count++] = macro->list[i]->value;
    return 1;
}

/* Reads an attribute of the value's kind. Returns 1, 0 if there is none, or -1. */
static int attribute_find(struct jinja_arena *arena, const struct jv *of, const struct jv *name,
                          struct jv *out, struct err *err)
{
    const unsigned kind = jinja_method_kind_of(of);
    const struct jv *found = NULL;
    if (of->kind == JV_NAMESPACE) {
        found = jv_map_get(of->map, name);
        *out = found != NULL ? *found : *out;
        return found != NULL;
    }
    if (of->kind == JV_MACRO)
        return macro_attribute(arena, of->macro, name, out, err);
    if ((kind == OF_LOOP && loop_attribute(of->loop, name, out)) ||
        ((kind & (OF_INT | OF_FLOAT)) != 0 && number_attribute(of, name, out)) ||
        (of->kind == JV_LIST && list_attribute(of->list, name, out))) {
        return 1;
    }
    if (of->kind == JV_CYCLER && (jv_is_text(name, "current") || jv_is_text(name, "pos"))) {
        *out = jv_is_text(name, "pos") ? jv_int((int64_t)of->counter->at)
                                       : of->counter->items.items[of->counter->at];
        return 1;
    }
    for (size_t i = 0; i < sizeof(methods) / sizeof(methods[0]); i++) {
        if ((methods[i].of & kind) == 0 || !jv_is_text(name, methods[i].name))
            continue;
        if (!methods[i].call) {
            *out = jv_undefined(name->text, name->size);
            return 1;
        }
        struct jv_method *method = jinja_alloc(arena, sizeof(*method), err);
        if (!method)
            return -1;
        *method = (struct jv_method){.row = &methods[i], .self = *of};
        *out = (struct jv){.kind = JV_METHOD, .method = method};
        return 1;
    }
    return 0;
}

/* Reads a member of a mapping by its key, or of a list or text by its index. Returns 1, or 0 if there is
 * none. */
static int member_find(const struct jv *of, const struct jv *key, struct jv *out)
{
    int64_t index;
    const struct jv *found = NULL;
    if (of->kind == JV_MAP) {
        found = jv_hashable(key) ? jv_map_get(of->map, key) : NULL;
    } else if (jv_number(key, &index) &&
               (of->kind == JV_TEXT || (of->kind == JV_LIST && of->list->form <= JF_RANGE))) {
        const int64_t count = of->kind == JV_TEXT ? (int64_t)jv_characters(of) : (int64_t)of->list->count;
        index += index < 0 ? count : 0;
        const bool there = index >= 0 && index < count;
        found = there && of->kind == JV_LIST ? &of->list->items[index] : NULL;
        if (there && of->kind == JV_TEXT) {
            const size_t begin = jv_character_at(of, (size_t)index);
            uint32_t code;
            *out = jv_borrow(of->text + begin, jv_next(of, begin, &code) - begin);
            out->safe = of->safe;
            return 1;
        }
    }
    *out = found != NULL ? *found : *out;
    return found != NULL;
}

/* Refuses attributes of undefined values and Python's own attributes (names that begin with "__"). */
static int look_check(const struct jv *of, const struct jv *name, struct err *err)
{
    if (name->kind == JV_TEXT && name->size >= 2 && memcmp(name->text, "__", 2) == 0) {
        return err_set(err, ERR_UNSUPPORTED, "a template may not look at \"%.*s\"",
                       (int)(name->size < 60 ? name->size : 60), name->text);
    }
    return of->kind != JV_UNDEFINED ? 0
                                    : err_set(err, ERR_INVALID, "undefined: \"%.*s\"",
                                              (int)(of->size < 60 ? of->size : 60), of->text);
}

int jinja_attribute_alone(struct jinja_arena *arena, const struct jv *of, const struct jv *name,
                          struct jv *out, struct err *err)
{
    *out = jv_undefined(name->text, name->size);
    if (look_check(of, name, err) < 0)
        return -1;
    return attribute_find(arena, of, name, out, err) < 0 || jinja_work(arena, jv_weight(of), err) < 0 ? -1
                                                                                                      : 0;
}

int jinja_getattr(struct jinja_arena *arena, const struct jv *of, const struct jv *name, struct jv *out,
                  struct err *err)
{
    *out = jv_undefined(name->text, name->size);
    if (look_check(of, name, err) < 0)
        return -1;
    const int found = attribute_find(arena, of, name, out, err);
    if (found < 0 || jinja_work(arena, jv_weight(of), err) < 0)
        return -1;
    if (found == 0)
        member_find(of, name, out);
    return 0;
}

int jinja_getitem(struct jinja_arena *arena, const struct jv *of, const struct jv *key, struct jv *out,
                  struct err *err)
{
    const bool named = key->kind == JV_TEXT;
    *out = named ? jv_undefined(key->text, key->size) : jv_undefined("an element", 10);
    if (look_check(of, key, err) < 0)
        return -1;
    if (jinja_work(arena, jv_weight(of), err) < 0)
        return -1;
    return member_find(of, key, out) == 0 && named && attribute_find(arena, of, key, out, err) < 0 ? -1 : 0;
}

int jinja_getpath(struct jinja_arena *arena, const struct jv *value, const struct jv *path,
                  const struct jv *otherwise, struct jv *out, struct err *err)
{
    struct jv at = *value;
    const bool given = otherwise && !jv_is_left_out(otherwise);
    for (size_t from = 0;
         !jv_is_left_out(path) && (path->kind == JV_TEXT ? from <= path->size : from == 0);) {
        struct jv part = *path, next;
        if (path->kind == JV_TEXT) {
            const char *dot = memchr(path->text + from, '.', path->size - from);
            part = jv_borrow(path->text + from, (dot ? (size_t)(dot - path->text) : path->size) - from);
            bool digits = part.size > 0 && part.size < 9;
            for (size_t i = 0; i < part.size; i++)
                digits = digits && part.text[i] >= '0' && part.text[i] <= '9';
            from += part.size + 1;
            part = digits ? jv_int(strtol(part.text, NULL, 10)) : part;
        } else {
            from = 1;
        }
        if (jinja_getitem(arena, &at, &part, &next, err) < 0)
            return -1;
        at = next.kind == JV_UNDEFINED && given ? *otherwise : next;
    }
    *out = at;
    return 0;
}
