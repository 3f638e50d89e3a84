#include "model/templates/jinja_args.h"

#include <string.h>

static int args_match(const struct jinja_builtin *row, const struct jinja_args *args, struct jv *matched,
                      struct err *err)
{
    size_t params = 0;
    while (params < JINJA_PARAMS_MAX && row->params[params])
        params++;
    if (args->count > params)
        return err_set(err, ERR_INVALID, "%s with %zu arguments", row->name, args->count);
    for (size_t i = 0; i < args->count; i++)
        matched[i] = args->items[i];
    for (size_t n = 0; n < args->named_count; n++) {
        size_t i = 0;
        while (i < params && !(row->params[i][0] != '\0' && jv_is_text(&args->names[n], row->params[i])))
            i++;
        if (i == params || i < args->count) {
            return err_set(err, ERR_INVALID, "%s with %s argument \"%.*s\"", row->name,
                           i == params ? "an" : "twice the",
                           (int)(args->names[n].size < 40 ? args->names[n].size : 40), args->names[n].text);
        }
        matched[i] = args->named[n];
    }
    for (size_t i = 0; i < row->required; i++)
        if (matched[i].kind == JV_ABSENT)
            return err_set(err, ERR_INVALID, "%s needs %u arguments", row->name, row->required);
    return 0;
}

int jinja_builtin_call(const struct jinja_builtin *row, struct jinja_arena *arena, const struct jv *self,
                       const struct jinja_args *args, struct jv *out, struct err *err)
{
    struct jv matched[JINJA_PARAMS_MAX] = {0};
    const struct jinja_call c = {.arena = arena,
                                 .name = row->name,
                                 .self = self,
                                 .args = matched,
                                 .extra = args,
                                 .out = out,
                                 .err = err};
    if (jinja_work(arena, 1 + jv_weight(self) + (args->count > 0 ? jv_weight(&args->items[0]) : 0), err) < 0)
        return -1;
    return !row->any_args && args_match(row, args, matched, err) < 0 ? -1 : row->call(&c);
}

int jinja_not_done(const struct jinja_call *c)
{
    return err_set(c->err, ERR_UNSUPPORTED, "%s is not known here", c->name);
}

int jinja_text_arg(const struct jinja_call *c, size_t index, const struct jv **out)
{
    const struct jv *arg = &c->args[index];
    *out = arg->kind == JV_TEXT ? arg : NULL;
    return arg->kind == JV_TEXT || jv_is_left_out(arg)
               ? 0
               : err_set(c->err, ERR_INVALID, "%s with %s where a string must be", c->name,
                         jv_kind_name(arg));
}

int jinja_number_arg(const struct jinja_call *c, size_t index, int64_t otherwise, int64_t *out)
{
    *out = otherwise;
    return jv_is_left_out(&c->args[index]) || jv_number(&c->args[index], out)
               ? 0
               : err_set(c->err, ERR_INVALID, "%s with %s where an integer must be", c->name,
                         jv_kind_name(&c->args[index]));
}
