#include "model/templates/jinja_function.h"

#include <string.h>
#include <time.h>

#include "model/templates/jinja_operator.h"
#include "model/templates/jinja_print.h"

enum { DAY_BYTES_MAX = 256 };

/* Implements the function range(stop), range(start, stop) or range(start, stop, step). */
static int do_range(const struct jinja_call *c)
{
    int64_t bounds[3] = {0, 0, 1};
    const size_t count = c->extra->count;
    if (count == 0 || count > 3 || c->extra->named_count > 0)
        return err_set(c->err, ERR_INVALID, "range takes one to three numbers");
    for (size_t i = 0; i < count; i++)
        if (!jv_number(&c->extra->items[i], &bounds[count == 1 ? 1 : i]))
            return err_set(c->err, ERR_INVALID, "range of %s", jv_kind_name(&c->extra->items[i]));
    return bounds[2] == 0 ? err_set(c->err, ERR_INVALID, "range with a step of 0")
                          : jinja_range_of(c->arena, bounds[0], bounds[1], bounds[2], c->out, c->err);
}

/* Fills a mapping from another mapping or from pairs. */
static int map_fill(const struct jinja_call *c, const struct jv *from, struct jv_map *map)
{
    struct jv_list list;
    if (from->kind == JV_MAP) {
        for (size_t i = 0; i < from->map->count; i++)
            if (jv_map_put(c->arena, map, from->map->keys[i], from->map->values[i], c->err) < 0)
                return -1;
        return 0;
    }
    if (jv_items(c->arena, from, &list, c->err) < 0)
        return -1;
    for (size_t i = 0; i < list.count; i++) {
        struct jv_list pair;
        if (jv_items(c->arena, &list.items[i], &pair, c->err) < 0)
            return -1;
        if (pair.count != 2)
            return err_set(c->err, ERR_INVALID, "%s of what are no pairs", c->name);
        if (jv_map_put(c->arena, map, pair.items[0], pair.items[1], c->err) < 0)
            return -1;
    }
    return 0;
}

static int do_dict(const struct jinja_call *c)
{
    if (c->extra->count > 1)
        return err_set(c->err, ERR_INVALID, "%s of more than one mapping", c->name);
    if (jv_map_new(c->arena, c->out, c->err) < 0 ||
        (c->extra->count == 1 && map_fill(c, &c->extra->items[0], c->out->map) < 0)) {
        return -1;
    }
    for (size_t i = 0; i < c->extra->named_count; i++)
        if (jv_map_put(c->arena, c->out->map, c->extra->names[i], c->extra->named[i], c->err) < 0)
            return -1;
    return 0;
}

static int do_namespace(const struct jinja_call *c)
{
    if (do_dict(c) < 0)
        return -1;
    c->out->kind = JV_NAMESPACE;
    for (size_t i = 0; i < c->out->map->count; i++) {
        const struct jv *name = &c->out->map->keys[i];
        if (name->kind == JV_TEXT && name->size > 0 && name->text[0] == '_')
            return err_set(c->err, ERR_INVALID, "namespace with a name that begins with _");
    }
    return 0;
}

static int counter_new(const struct jinja_call *c, enum jv_kind kind, const struct jv *items, size_t count)
{
    struct jv copy;
    struct jv_counter *counter = jinja_alloc(c->arena, sizeof(*counter), c->err);
    if (!counter || jv_list_copy(c->arena, JF_TUPLE, items, count, &copy, c->err) < 0)
        return -1;
    counter->items = *copy.list;
    *c->out = (struct jv){.kind = kind, .counter = counter};
    return 0;
}

static int do_cycler(const struct jinja_call *c)
{
    return c->extra->count == 0 || c->extra->named_count > 0
               ? err_set(c->err, ERR_INVALID, "cycler needs values")
               : counter_new(c, JV_CYCLER, c->extra->items, c->extra->count);
}

static int do_joiner(const struct jinja_call *c)
{
    const struct jv comma = jv_borrow(", ", 2);
    return counter_new(c, JV_JOINER, c->args[0].kind != JV_ABSENT ? &c->args[0] : &comma, 1);
}

/* Calls a joiner, which returns an empty text the first time and its separator afterwards. */
static int do_join_next(const struct jinja_call *c)
{
    struct jv_counter *counter = c->self->counter;
    *c->out = counter->at > 0 ? counter->items.items[0] : jv_borrow("", 0);
    counter->at = 1;
    return 0;
}

/* Implements the function raise_exception(message): fails with the template's own message. */
static int do_raise(const struct jinja_call *c)
{
    struct jv text;
    return jv_text_of(c->arena, &c->args[0], &text, c->err) < 0
               ? -1
               : err_set(c->err, ERR_INVALID, "the template refuses the conversation: %.*s",
                         (int)(text.size < 300 ? text.size : 300), text.text);
}

/* Implements the function strftime_now(format); c->self is the time. */
static int do_strftime(const struct jinja_call *c)
{
    char pattern[DAY_BYTES_MAX];
    char text[DAY_BYTES_MAX];
    struct tm broken;
    const time_t now = (time_t)c->self->number;
    const struct jv *format = &c->args[0];
    if (format->kind != JV_TEXT || format->size >= sizeof(pattern) || !gmtime_r(&now, &broken))
        return err_set(c->err, ERR_INVALID, "strftime_now needs a format");
    memcpy(pattern, format->text, format->size);
    pattern[format->size] = '\0';
    const size_t size = strftime(text, sizeof(text), pattern, &broken);
    return size > 0 || format->size == 0
               ? jv_copy(c->arena, text, size, c->out, c->err)
               : err_set(c->err, ERR_TOO_BIG, "strftime_now: a text of more than %d bytes", DAY_BYTES_MAX);
}

static const struct jinja_builtin join_next = {.name = "joiner", .call = do_join_next};
static const struct jinja_builtin functions[] = {
    {.name = "range", .call = do_range, .any_args = true},
    {.name = "dict", .call = do_dict, .any_args = true},
    {.name = "namespace", .call = do_namespace, .any_args = true},
    {.name = "cycler", .call = do_cycler, .any_args = true},
    {.name = "joiner", .call = do_joiner, .params = {"sep"}},
    {.name = "raise_exception", .call = do_raise, .params = {"message"}, .required = 1},
    {.name = "strftime_now", .call = do_strftime, .params = {"format"}, .required = 1},
    {.name = "lipsum", .call = jinja_not_done, .any_args = true},
};

bool jinja_function_find(const struct jv *name, struct jv *out)
{
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        if (jv_is_text(name, functions[i].name)) {
            *out = (struct jv){.kind = JV_FUNCTION, .function = &functions[i]};
            return true;
        }
    }
    return false;
}

int jinja_function_call(struct jinja_arena *arena, const struct jv *function, int64_t now_s,
                        const struct jinja_args *args, struct jv *out, struct err *err)
{
    const struct jv now = jv_int(now_s);
    const bool joiner = function->kind == JV_JOINER;
    return jinja_builtin_call(joiner ? &join_next : function->function, arena, joiner ? function : &now, args,
                              out, err);
}
