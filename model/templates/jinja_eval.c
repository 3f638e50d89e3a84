/* Evaluates expressions by walking the tree. Values live in the rendering's arena. */
#include <string.h>

#include "model/templates/jinja_builtin.h"
#include "model/templates/jinja_function.h"
#include "model/templates/jinja_method.h"
#include "model/templates/jinja_operator.h"
#include "model/templates/jinja_print.h"
#include "model/templates/jinja_run.h"

enum { CAPTURE_BYTES_MAX = 16 << 20, SPREAD_MAX = 10000 };

int jinja_at_line(struct jinja_run *r, const struct jinja_node *node)
{
    if (!r->placed) {
        err_wrap(r->err, "line %u", node->line);
        r->placed = true;
    }
    return -1;
}

int jinja_run_fail(struct jinja_run *r, const struct jinja_node *node, enum err_code code, const char *what,
                   const struct jv *name)
{
    const int size = !name ? 0 : (int)(name->size < 60 ? name->size : 60);
    err_set(r->err, code, "%s%s%.*s%s", what, name ? " \"" : "", size, name ? name->text : "",
            name ? "\"" : "");
    return jinja_at_line(r, node);
}

/* ---- names ---- */

struct jinja_frame *jinja_frame_new(struct jinja_run *r, struct jinja_frame *parent)
{
    struct jinja_frame *frame = jinja_alloc(&r->arena, sizeof(*frame), r->err);
    if (frame)
        frame->parent = parent;
    return frame;
}

static struct jv name_value(const struct jinja_frame *f, const struct jv *name)
{
    for (; f != NULL; f = f->parent) {
        const struct jv *found = jv_map_get(&f->names, name);
        if (found)
            return *found;
    }
    struct jv value = jv_undefined(name->text, name->size);
    if (jv_is_text(name, "self"))
        value = (struct jv){.kind = JV_TEMPLATE};
    else
        jinja_function_find(name, &value);
    return value;
}

int jinja_name_put(struct jinja_run *r, struct jinja_frame *f, const struct jv *name, struct jv value)
{
    return jv_map_put(&r->arena, &f->names, *name, value, r->err);
}

/* ---- slices ---- */

static int eval_slice(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                      struct jv *out)
{
    struct jv of;
    struct jv parts[3] = {{.kind = JV_NONE}};
    const struct jv *given[3] = {NULL, NULL, NULL};
    if (jinja_eval(r, f, node->a, &of) < 0)
        return -1;
    for (size_t i = 0; i < 3; i++) {
        if (node->list[i]) {
            if (jinja_eval(r, f, node->list[i], &parts[i]) < 0)
                return -1;
            given[i] = parts[i].kind != JV_NONE ? &parts[i] : NULL;
        }
    }
    return jinja_sliced(&r->arena, &of, given, out, r->err) < 0 ? jinja_at_line(r, node) : 0;
}

/* ---- operators ---- */

static int eval_compare(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                        struct jv *out)
{
    struct jv left;
    struct jv right;
    bool is = true;
    if (jinja_eval(r, f, node->a, &left) < 0)
        return -1;
    for (size_t i = 0; i < node->count && is; i++) {
        if (jinja_eval(r, f, node->list[i]->b, &right) < 0)
            return -1;
        if (jinja_compared(&r->arena, node->list[i]->op, &left, &right, &is, r->err) < 0)
            return jinja_at_line(r, node);
        left = right;
    }
    *out = jv_bool(is);
    return 0;
}

static int eval_binary(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                       struct jv *out)
{
    struct jv a;
    struct jv b;
    if (jinja_eval(r, f, node->a, &a) < 0 || jinja_eval(r, f, node->b, &b) < 0)
        return -1;
    const int status = node->op == JO_CONCAT ? jinja_joined(&r->arena, &a, &b, out, r->err)
                                             : jinja_arithmetic(&r->arena, node->op, &a, &b, out, r->err);
    return status < 0 ? jinja_at_line(r, node) : 0;
}

/* ---- calls ---- */

/* Grows the arrays of arguments. */
static int args_room(struct jinja_run *r, struct jinja_args *args, size_t items, size_t names)
{
    args->items = jinja_alloc(&r->arena, (items + 1) * sizeof(struct jv), r->err);
    args->names = jinja_alloc(&r->arena, (names + 1) * sizeof(struct jv), r->err);
    args->named = jinja_alloc(&r->arena, (names + 1) * sizeof(struct jv), r->err);
    return !args->items || !args->names || !args->named ? -1 : 0;
}

/* Appends the arguments that *list or **mapping gives. */
static int args_spread(struct jinja_run *r, const struct jinja_node *node, const struct jv *value,
                       size_t more, struct jinja_args *args)
{
    struct jv_list list = {0};
    struct jinja_args grown = *args;
    const bool names = node->negated;
    if (names ? value->kind != JV_MAP : jv_items(&r->arena, value, &list, r->err) < 0) {
        return r->err->code != ERR_NONE
                   ? jinja_at_line(r, node)
                   : jinja_run_fail(r, node, ERR_INVALID, "** of what is no mapping", NULL);
    }
    const size_t count = names ? value->map->count : list.count;
    if (count > SPREAD_MAX)
        return jinja_run_fail(r, node, ERR_TOO_BIG, "a call with too many arguments", NULL);
    if (args_room(r, &grown, args->count + more + (names ? 0 : count), args->named_count + more + count) < 0)
        return jinja_at_line(r, node);
    memcpy(grown.items, args->items, args->count * sizeof(struct jv));
    memcpy(grown.names, args->names, args->named_count * sizeof(struct jv));
    memcpy(grown.named, args->named, args->named_count * sizeof(struct jv));
    for (size_t i = 0; i < count; i++) {
        if (!names) {
            grown.items[grown.count++] = list.items[i];
            continue;
        }
        const struct jv *key = &value->map->keys[i];
        bool twice = key->kind != JV_TEXT;
        for (size_t n = 0; n < grown.named_count && !twice; n++)
            twice = jv_equal(&grown.names[n], key);
        if (twice) {
            return jinja_run_fail(r, node, ERR_INVALID, "** with a name twice, or with what is no name",
                                  NULL);
        }
        grown.names[grown.named_count] = *key;
        grown.named[grown.named_count++] = value->map->values[i];
    }
    *args = grown;
    return 0;
}

int jinja_args_eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                    struct jinja_args *args)
{
    *args = (struct jinja_args){0};
    if (args_room(r, args, node->count, node->count) < 0)
        return jinja_at_line(r, node);
    for (size_t i = 0; i < node->count; i++) {
        const struct jinja_node *arg = node->list[i];
        const bool inside = arg->kind == JN_NAMED || arg->kind == JN_SPREAD;
        struct jv value;
        if (jinja_eval(r, f, inside ? arg->a : arg, &value) < 0)
            return -1;
        if (arg->kind == JN_SPREAD) {
            if (args_spread(r, arg, &value, node->count, args) < 0)
                return -1;
        } else if (arg->kind == JN_NAMED) {
            args->names[args->named_count] = arg->value;
            args->named[args->named_count++] = value;
        } else {
            args->items[args->count++] = value;
        }
    }
    return 0;
}

int jinja_capture(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *body, struct jv *out)
{
    struct buf text = {.limit = CAPTURE_BYTES_MAX};
    struct buf *before = r->out;
    r->out = &text;
    int status = r->block(r, f, body);
    r->out = before;
    if (status >= 0)
        status = jv_copy(&r->arena, buf_str(&text), text.size, out, r->err) < 0 ? jinja_at_line(r, body) : 0;
    buf_fini(&text);
    return status;
}

/* Returns the index of the argument of that name, or SIZE_MAX. */
static size_t named_find(const struct jinja_args *args, const struct jv *name)
{
    size_t n = 0;
    while (n < args->named_count && !jv_equal(&args->names[n], name))
        n++;
    return n < args->named_count ? n : SIZE_MAX;
}

/* Sets a macro's variables caller, kwargs and varargs if its body reads them. 'taken' marks the named
 * arguments that were matched with a parameter. */
static int specials_put(struct jinja_run *r, const struct jinja_node *node, const struct jinja_node *macro,
                        const struct jinja_args *args, bool *taken, struct jinja_frame *frame)
{
    const struct jv caller = jv_borrow("caller", 6), kwargs = jv_borrow("kwargs", 6),
                    varargs = jv_borrow("varargs", 7);
    const size_t places = args->count < macro->count ? args->count : macro->count;
    struct jv rest, names;
    if ((macro->uses & JINJA_USES_CALLER) != 0) {
        const size_t n = named_find(args, &caller);
        const bool given = n != SIZE_MAX && args->named[n].kind != JV_NONE;
        if (n != SIZE_MAX)
            taken[n] = true;
        if (jinja_name_put(r, frame, &caller, given ? args->named[n] : jv_undefined("caller", 6)) < 0)
            return jinja_at_line(r, node);
    }
    if (jv_list_copy(&r->arena, JF_TUPLE, args->items + places, args->count - places, &rest, r->err) < 0 ||
        jv_map_new(&r->arena, &names, r->err) < 0) {
        return jinja_at_line(r, node);
    }
    for (size_t n = 0; n < args->named_count; n++)
        if (!taken[n] && jv_map_put(&r->arena, names.map, args->names[n], args->named[n], r->err) < 0)
            return jinja_at_line(r, node);
    if ((macro->uses & JINJA_USES_KWARGS) == 0 && names.map->count > 0)
        return jinja_run_fail(r, node, ERR_INVALID, "an argument unknown to the macro", &macro->value);
    if ((macro->uses & JINJA_USES_VARARGS) == 0 && rest.list->count > 0)
        return jinja_run_fail(r, node, ERR_INVALID, "too many arguments for the macro", &macro->value);
    return ((macro->uses & JINJA_USES_KWARGS) != 0 && jinja_name_put(r, frame, &kwargs, names) < 0) ||
                   ((macro->uses & JINJA_USES_VARARGS) != 0 && jinja_name_put(r, frame, &varargs, rest) < 0)
               ? jinja_at_line(r, node)
               : 0;
}

int jinja_macro_call(struct jinja_run *r, const struct jinja_node *node, const struct jv *self,
                     const struct jinja_args *args, struct jv *out)
{
    const struct jinja_node *macro = self->macro;
    struct jinja_frame *frame = jinja_frame_new(r, self->frame);
    bool *taken = jinja_alloc(&r->arena, args->named_count + 1, r->err);
    if (!frame || !taken)
        return jinja_at_line(r, node);
    if (++r->macros > JINJA_DEPTH_MAX)
        return jinja_run_fail(r, node, ERR_TOO_BIG, "macros nested too deep", NULL);
    for (size_t i = 0; i < macro->count; i++) {
        const struct jinja_node *param = macro->list[i];
        struct jv value = jv_undefined(param->value.text, param->value.size);
        const size_t n = i < args->count ? SIZE_MAX : named_find(args, &param->value);
        if (i < args->count) {
            value = args->items[i];
        } else if (n != SIZE_MAX) {
            value = args->named[n];
            taken[n] = true;
        } else if (param->a && jinja_eval(r, frame, param->a, &value) < 0) {
            return -1;
        }
        if (jinja_name_put(r, frame, &param->value, value) < 0)
            return jinja_at_line(r, node);
    }
    if (specials_put(r, node, macro, args, taken, frame) < 0)
        return -1;
    const int status = jinja_capture(r, frame, macro->a, out);
    r->macros--;
    return status;
}

/* Calls loop(…) in a recursive loop: runs its body over other items and writes the output as a text to *out.
 */
static int loop_call(struct jinja_run *r, const struct jinja_node *node, const struct jv_loop *loop,
                     const struct jinja_args *args, struct jv *out)
{
    struct buf text = {.limit = CAPTURE_BYTES_MAX};
    struct buf *before = r->out;
    if (!loop->node || args->count != 1 || args->named_count > 0) {
        return jinja_run_fail(r, node, ERR_INVALID,
                              "loop() of a loop that is not recursive, or not of one value", NULL);
    }
    if (++r->macros > JINJA_DEPTH_MAX)
        return jinja_run_fail(r, node, ERR_TOO_BIG, "loops nested too deep", NULL);
    r->out = &text;
    int status = r->loop(r, loop->frame, loop->node, &args->items[0], loop->depth + 1);
    r->out = before;
    r->macros--;
    if (status >= 0)
        status = jv_copy(&r->arena, buf_str(&text), text.size, out, r->err) < 0 ? jinja_at_line(r, node) : 0;
    buf_fini(&text);
    return status;
}

static int eval_call(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                     struct jv *out)
{
    struct jinja_args args;
    struct jv self;
    if (jinja_eval(r, f, node->a, &self) < 0 || jinja_args_eval(r, f, node, &args) < 0)
        return -1;
    switch (self.kind) {
    case JV_METHOD:
        return jinja_method_call(&r->arena, self.method, &args, out, r->err) < 0 ? jinja_at_line(r, node) : 0;
    case JV_MACRO:
        return jinja_macro_call(r, node, &self, &args, out);
    case JV_FUNCTION:
    case JV_JOINER:
        return jinja_function_call(&r->arena, &self, r->now_s, &args, out, r->err) < 0
                   ? jinja_at_line(r, node)
                   : 0;
    case JV_LOOP:
        return loop_call(r, node, self.loop, &args, out);
    default:
        return jinja_run_fail(r, node, ERR_INVALID, "a call of what is no function:",
                              node->a->kind == JN_NAME || node->a->kind == JN_ATTR ? &node->a->value : NULL);
    }
}

static int eval_builtin(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                        struct jv *out)
{
    struct jinja_args args;
    struct jv self;
    if (jinja_eval(r, f, node->a, &self) < 0 || jinja_args_eval(r, f, node, &args) < 0)
        return -1;
    const struct jinja_builtin *row =
        node->kind == JN_FILTER ? jinja_filter_row(&node->value) : jinja_test_row(&node->value);
    if (!row) {
        return jinja_run_fail(r, node, ERR_UNSUPPORTED,
                              node->kind == JN_FILTER ? "a filter that is not known:"
                                                      : "a test that is not known:",
                              &node->value);
    }
    if (jinja_builtin_call(row, &r->arena, &self, &args, out, r->err) < 0)
        return jinja_at_line(r, node);
    if (node->negated)
        *out = jv_bool(!jv_true(out));
    return 0;
}

/* ---- expressions ---- */

static int eval_members(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                        struct jv *out)
{
    if (node->kind == JN_LIST) {
        if (jv_list_new(&r->arena, node->count, out, r->err) < 0)
            return jinja_at_line(r, node);
        out->list->form = node->negated ? JF_TUPLE : JF_LIST;
        for (size_t i = 0; i < node->count; i++, out->list->count++)
            if (jinja_eval(r, f, node->list[i], &out->list->items[i]) < 0)
                return -1;
        return 0;
    }
    struct jv key = {.kind = JV_NONE}, value = key;
    if (jv_map_new(&r->arena, out, r->err) < 0)
        return jinja_at_line(r, node);
    for (size_t i = 0; i + 1 < node->count; i += 2) {
        if (jinja_eval(r, f, node->list[i], &key) < 0 || jinja_eval(r, f, node->list[i + 1], &value) < 0)
            return -1;
        if (jv_map_put(&r->arena, out->map, key, value, r->err) < 0)
            return jinja_at_line(r, node);
    }
    return 0;
}

static int eval_choice(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                       struct jv *out)
{
    struct jv condition;
    if (jinja_eval(r, f, node->b, &condition) < 0)
        return -1;
    if (jv_true(&condition))
        return jinja_eval(r, f, node->a, out);
    *out = jv_undefined("", 0);
    return node->c ? jinja_eval(r, f, node->c, out) : 0;
}

static int eval_kind(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                     struct jv *out)
{
    struct jv a;
    struct jv b;
    switch (node->kind) {
    case JN_CONST:
        *out = node->value;
        return 0;
    case JN_NAME:
        *out = name_value(f, &node->value);
        return 0;
    case JN_LIST:
    case JN_DICT:
        return eval_members(r, f, node, out);
    case JN_ATTR:
        return jinja_eval(r, f, node->a, &a) < 0                             ? -1
               : jinja_getattr(&r->arena, &a, &node->value, out, r->err) < 0 ? jinja_at_line(r, node)
                                                                             : 0;
    case JN_ITEM:
        return jinja_eval(r, f, node->a, &a) < 0 || jinja_eval(r, f, node->b, &b) < 0 ? -1
               : jinja_getitem(&r->arena, &a, &b, out, r->err) < 0                    ? jinja_at_line(r, node)
                                                                                      : 0;
    case JN_SLICE:
        return eval_slice(r, f, node, out);
    case JN_CALL:
        return eval_call(r, f, node, out);
    case JN_FILTER:
    case JN_TEST:
        return eval_builtin(r, f, node, out);
    case JN_NOT:
        if (jinja_eval(r, f, node->a, &a) < 0)
            return -1;
        *out = jv_bool(!jv_true(&a));
        return 0;
    case JN_SIGNED:
        return jinja_eval(r, f, node->a, &a) < 0                  ? -1
               : jinja_signed(&a, node->negated, out, r->err) < 0 ? jinja_at_line(r, node)
                                                                  : 0;
    case JN_AND:
    case JN_OR:
        if (jinja_eval(r, f, node->a, out) < 0)
            return -1;
        return jv_true(out) == (node->kind == JN_AND) ? jinja_eval(r, f, node->b, out) : 0;
    case JN_BINARY:
        return eval_binary(r, f, node, out);
    case JN_COMPARE:
        return eval_compare(r, f, node, out);
    case JN_CHOICE:
        return eval_choice(r, f, node, out);
    case JN_CAPTURE:
        return jinja_capture(r, jinja_frame_new(r, f), node->a, out) != 0 ? -1 : 0;
    default:
        return jinja_run_fail(r, node, ERR_INVALID, "a name with a value where none can be", NULL);
    }
}

int jinja_eval(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
{
    if (jinja_work(&r->arena, 1, r->err) < 0)
        return jinja_at_line(r, node);
    if (++r->depth > JINJA_EVAL_DEPTH_MAX)
        return jinja_run_fail(r, node, ERR_TOO_BIG, "nested too deep", NULL);
    const int status = eval_kind(r, f, node, out);
    r->depth--;
    return status;
}
