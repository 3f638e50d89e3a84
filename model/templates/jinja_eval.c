/* Rendering: the tree is walked, with values in an arena of the rendering's own. */
#include "model/templates/jinja.h"

#include <stdlib.h>
#include <string.h>

#include "model/templates/jinja_call.h"
#include "model/templates/jinja_operator.h"

enum { EVAL_DEPTH_MAX = 400, CAPTURE_BYTES_MAX = 16 << 20 };

/* What a statement ends with, beside 0 and -1. */
enum { LEAVE_BREAK = 1, LEAVE_CONTINUE = 2 };

struct run {
    struct jinja_arena arena;
    struct jinja_frame *globals;
    int64_t now_s;
    unsigned depth, macros;
    struct buf *out;    /* where output goes now */
    struct buf *result; /* where it goes in the end: what is written there is marked */
    size_t begin;       /* of this rendering in it */
    struct jinja_marks *marks;
    int32_t message; /* the loop's, or -1 */
    bool generation;
    bool placed; /* the error has its line */
    struct err *err;
};

/* Say where it went wrong, once: at the innermost node. */
static int at_line(struct run *r, const struct jinja_node *node)
{
    if (!r->placed) {
        err_wrap(r->err, "line %u", node->line);
        r->placed = true;
    }
    return -1;
}

static int fail(struct run *r, const struct jinja_node *node, enum err_code code, const char *what,
                const struct jv *name)
{
    const int size = name == NULL ? 0 : (int)(name->size < 60 ? name->size : 60);
    err_set(r->err, code, "%s%s%.*s%s", what, name != NULL ? " \"" : "", size, name != NULL ? name->text : "",
            name != NULL ? "\"" : "");
    return at_line(r, node);
}

static int eval(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out);
static int run_block(struct run *r, struct jinja_frame *f, const struct jinja_node *node);

/* ---- names ---- */

static struct jinja_frame *frame_new(struct run *r, struct jinja_frame *parent)
{
    struct jinja_frame *frame = jinja_alloc(&r->arena, sizeof(*frame), r->err);
    if (frame != NULL) {
        frame->parent = parent;
    }
    return frame;
}

static struct jv name_value(const struct jinja_frame *f, const struct jv *name)
{
    for (; f != NULL; f = f->parent) {
        const struct jv *found = jv_map_get(&f->names, name);
        if (found != NULL) {
            return *found;
        }
    }
    for (int i = 0; i < JF_COUNT; i++) {
        if (jv_is_text(name, jinja_functions[i])) {
            return (struct jv){.kind = JV_FUNCTION, .number = i};
        }
    }
    return jv_undefined(name->text, name->size);
}

static int name_put(struct run *r, struct jinja_frame *f, const struct jv *name, struct jv value)
{
    return jv_map_put(&r->arena, &f->names, *name, value, r->err);
}

/* ---- members ---- */

static int member_get(struct run *r, const struct jinja_node *node, const struct jv *of, const struct jv *key,
                      struct jv *out)
{
    int64_t index;
    const struct jv *found = NULL;
    const bool counted = jv_number(key, &index);
    *out = key->kind == JV_TEXT ? jv_undefined(key->text, key->size) : jv_undefined("an element", 10);
    switch (of->kind) {
    case JV_UNDEFINED:
        return fail(r, node, ERR_INVALID, "undefined:", of);
    case JV_MAP:
    case JV_NAMESPACE:
        found = jv_map_get(of->map, key);
        break;
    case JV_LIST:
        index = counted && index < 0 ? index + (int64_t)of->list->count : index;
        found = counted && index >= 0 && (uint64_t)index < of->list->count ? &of->list->items[index] : NULL;
        break;
    case JV_TEXT:
        if (counted) {
            const int64_t count = (int64_t)jv_characters(of);
            index = index < 0 ? index + count : index;
            if (index >= 0 && index < count) {
                const size_t begin = jv_character_at(of, (size_t)index);
                *out = jv_borrow(of->text + begin, jv_character_at(of, (size_t)index + 1) - begin);
            }
        }
        break;
    default:
        break;
    }
    *out = found != NULL ? *found : *out;
    return jinja_work(&r->arena, jv_weight(of), r->err) < 0 ? at_line(r, node) : 0;
}

static int eval_slice(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
{
    struct jv of;
    struct jv parts[3];
    const struct jv *given[3] = {NULL, NULL, NULL};
    if (eval(r, f, node->a, &of) < 0) {
        return -1;
    }
    for (size_t i = 0; i < 3; i++) {
        if (node->list[i] != NULL) {
            if (eval(r, f, node->list[i], &parts[i]) < 0) {
                return -1;
            }
            given[i] = parts[i].kind != JV_NONE ? &parts[i] : NULL;
        }
    }
    return jinja_sliced(&r->arena, &of, given, out, r->err) < 0 ? at_line(r, node) : 0;
}

/* ---- operators ---- */

static int eval_compare(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
{
    struct jv left;
    struct jv right;
    bool is = true;
    if (eval(r, f, node->a, &left) < 0) {
        return -1;
    }
    for (size_t i = 0; i < node->count && is; i++) {
        if (eval(r, f, node->list[i]->b, &right) < 0) {
            return -1;
        }
        if (jinja_compared(&r->arena, node->list[i]->op, &left, &right, &is, r->err) < 0) {
            return at_line(r, node);
        }
        left = right;
    }
    *out = jv_bool(is);
    return 0;
}

static int eval_binary(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
{
    struct jv a;
    struct jv b;
    if (eval(r, f, node->a, &a) < 0 || eval(r, f, node->b, &b) < 0) {
        return -1;
    }
    const int status = node->op == JO_CONCAT ? jinja_joined(&r->arena, &a, &b, out, r->err)
                                             : jinja_arithmetic(&r->arena, node->op, &a, &b, out, r->err);
    return status < 0 ? at_line(r, node) : 0;
}

/* ---- calls ---- */

static int args_eval(struct run *r, struct jinja_frame *f, const struct jinja_node *node,
                     struct jinja_args *args)
{
    args->count = 0;
    args->named_count = 0;
    for (size_t i = 0; i < node->count; i++) {
        const struct jinja_node *arg = node->list[i];
        const bool named = arg->kind == JN_NAMED;
        struct jv *to = named ? &args->named[args->named_count] : &args->items[args->count];
        if (eval(r, f, named ? arg->a : arg, to) < 0) {
            return -1;
        }
        if (named) {
            args->names[args->named_count++] = arg->value;
        } else {
            args->count++;
        }
    }
    return 0;
}

/* Output of a body as a text. */
static int capture(struct run *r, struct jinja_frame *f, const struct jinja_node *body, struct jv *out)
{
    struct buf text = {.limit = CAPTURE_BYTES_MAX};
    struct buf *before = r->out;
    r->out = &text;
    int status = run_block(r, f, body);
    r->out = before;
    if (status >= 0) {
        status = jv_copy(&r->arena, buf_str(&text), text.size, out, r->err) < 0 ? at_line(r, body) : 0;
    }
    buf_fini(&text);
    return status;
}

static int macro_call(struct run *r, const struct jinja_node *node, const struct jv *self,
                      const struct jinja_args *args, struct jv *out)
{
    const struct jinja_node *macro = self->macro;
    struct jinja_frame *frame = frame_new(r, self->frame);
    size_t used = 0;
    if (frame == NULL || args->count > macro->count) {
        return frame == NULL ? at_line(r, node)
                             : fail(r, node, ERR_INVALID, "too many arguments for the macro", &macro->value);
    }
    if (++r->macros > JINJA_DEPTH_MAX) {
        return fail(r, node, ERR_TOO_BIG, "macros nested too deep", NULL);
    }
    for (size_t i = 0; i < macro->count; i++) {
        const struct jinja_node *param = macro->list[i];
        struct jv value = jv_undefined(param->value.text, param->value.size);
        bool given = i < args->count;
        if (given) {
            value = args->items[i];
        }
        for (size_t n = 0; n < args->named_count; n++) {
            if (!jv_is_text(&args->names[n], "caller") && jv_equal(&args->names[n], &param->value)) {
                value = args->named[n];
                given = true;
                used++;
            }
        }
        if ((!given && param->a != NULL && eval(r, frame, param->a, &value) < 0) ||
            name_put(r, frame, &param->value, value) < 0) {
            return at_line(r, node);
        }
    }
    for (size_t n = 0; n < args->named_count; n++) {
        if (jv_is_text(&args->names[n], "caller") && args->named[n].kind == JV_MACRO) {
            used++;
            if (name_put(r, frame, &args->names[n], args->named[n]) < 0) {
                return at_line(r, node);
            }
        }
    }
    if (used != args->named_count) {
        return fail(r, node, ERR_INVALID, "an argument unknown to the macro", &macro->value);
    }
    const int status = capture(r, frame, macro->a, out);
    r->macros--;
    return status;
}

/* raise_exception: what the template says of the messages it was given. */
static int raised(struct run *r, const struct jinja_node *node, const struct jv *what)
{
    const bool said = what != NULL && what->kind == JV_TEXT;
    err_set(r->err, ERR_INVALID, "the template refuses the conversation: %.*s",
            said ? (int)(what->size < 300 ? what->size : 300) : 0, said ? what->text : "");
    return at_line(r, node);
}

static int function_call(struct run *r, const struct jinja_node *node, const struct jv *self,
                         const struct jinja_args *args, struct jv *out)
{
    const struct jv *first = args->count > 0 ? &args->items[0] : NULL;
    switch ((enum jinja_function)self->number) {
    case JF_NAMESPACE:
        return jinja_map(&r->arena, args, true, out, r->err) < 0 ? at_line(r, node) : 0;
    case JF_DICT:
        return jinja_map(&r->arena, args, false, out, r->err) < 0 ? at_line(r, node) : 0;
    case JF_RANGE:
        return jinja_range(&r->arena, args, out, r->err) < 0 ? at_line(r, node) : 0;
    case JF_RAISE:
        return raised(r, node, first);
    case JF_STRFTIME:
        break;
    case JF_COUNT:
        return fail(r, node, ERR_INTERNAL, "a function that is none", NULL);
    }
    return jinja_day(&r->arena, r->now_s, first, out, r->err) < 0 ? at_line(r, node) : 0;
}

static int eval_call(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
{
    struct jinja_args args;
    struct jv self;
    if (node->a->kind == JN_ATTR) {
        if (eval(r, f, node->a->a, &self) < 0 || args_eval(r, f, node, &args) < 0) {
            return -1;
        }
        const struct jinja_builtin *method = jinja_method_find(&node->a->value, self.kind);
        const struct jv *member =
            self.kind == JV_MAP || self.kind == JV_NAMESPACE ? jv_map_get(self.map, &node->a->value) : NULL;
        if (method == NULL && member != NULL && member->kind == JV_MACRO) {
            return macro_call(r, node, member, &args, out);
        }
        if (self.kind == JV_UNDEFINED || method == NULL) {
            err_set(r->err, ERR_UNSUPPORTED, "%s has no method \"%.*s\"", jv_kind_name(&self),
                    (int)(node->a->value.size < 60 ? node->a->value.size : 60), node->a->value.text);
            return at_line(r, node);
        }
        return jinja_builtin_call(method, &r->arena, &self, &args, out, r->err) < 0 ? at_line(r, node) : 0;
    }
    if (eval(r, f, node->a, &self) < 0 || args_eval(r, f, node, &args) < 0) {
        return -1;
    }
    if (self.kind == JV_MACRO) {
        return macro_call(r, node, &self, &args, out);
    }
    return self.kind == JV_FUNCTION
               ? function_call(r, node, &self, &args, out)
               : fail(r, node, ERR_INVALID,
                      "a call of what is no function:", node->a->kind == JN_NAME ? &node->a->value : NULL);
}

static int eval_builtin(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
{
    struct jinja_args args;
    struct jv self;
    if (eval(r, f, node->a, &self) < 0 || args_eval(r, f, node, &args) < 0) {
        return -1;
    }
    const struct jinja_builtin *row =
        node->kind == JN_FILTER ? jinja_filter_find(&node->value) : jinja_test_find(&node->value);
    if (row == NULL) {
        return fail(r, node, ERR_UNSUPPORTED,
                    node->kind == JN_FILTER ? "a filter that is not known here:"
                                            : "a test that is not known here:",
                    &node->value);
    }
    if (jinja_builtin_call(row, &r->arena, &self, &args, out, r->err) < 0) {
        return at_line(r, node);
    }
    if (node->negated) {
        *out = jv_bool(!jv_true(out));
    }
    return 0;
}

/* ---- expressions ---- */

static int eval_members(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
{
    if (node->kind == JN_LIST) {
        if (jv_list_new(&r->arena, node->count, out, r->err) < 0) {
            return at_line(r, node);
        }
        out->list->tuple = node->negated;
        for (size_t i = 0; i < node->count; i++, out->list->count++) {
            if (eval(r, f, node->list[i], &out->list->items[i]) < 0) {
                return -1;
            }
        }
        return 0;
    }
    struct jv key;
    struct jv value;
    if (jv_map_new(&r->arena, out, r->err) < 0) {
        return at_line(r, node);
    }
    for (size_t i = 0; i + 1 < node->count; i += 2) {
        if (eval(r, f, node->list[i], &key) < 0 || eval(r, f, node->list[i + 1], &value) < 0) {
            return -1;
        }
        if (jv_map_put(&r->arena, out->map, key, value, r->err) < 0) {
            return at_line(r, node);
        }
    }
    return 0;
}

static int eval_negate(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
{
    struct jv value;
    int64_t number;
    if (eval(r, f, node->a, &value) < 0) {
        return -1;
    }
    if (value.kind == JV_FLOAT) {
        *out = (struct jv){.kind = JV_FLOAT, .real = -value.real};
        return 0;
    }
    if (!jv_number(&value, &number) || number == INT64_MIN) {
        return fail(r, node, ERR_INVALID, "a minus before what is no number", NULL);
    }
    *out = jv_int(-number);
    return 0;
}

static int eval_choice(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
{
    struct jv condition;
    if (eval(r, f, node->b, &condition) < 0) {
        return -1;
    }
    if (jv_true(&condition)) {
        return eval(r, f, node->a, out);
    }
    *out = jv_undefined("", 0);
    return node->c != NULL ? eval(r, f, node->c, out) : 0;
}

static int eval_kind(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
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
        return eval(r, f, node->a, &a) < 0 ? -1 : member_get(r, node, &a, &node->value, out);
    case JN_ITEM:
        return eval(r, f, node->a, &a) < 0 || eval(r, f, node->b, &b) < 0 ? -1
                                                                          : member_get(r, node, &a, &b, out);
    case JN_SLICE:
        return eval_slice(r, f, node, out);
    case JN_CALL:
        return eval_call(r, f, node, out);
    case JN_FILTER:
    case JN_TEST:
        return eval_builtin(r, f, node, out);
    case JN_NOT:
        if (eval(r, f, node->a, &a) < 0) {
            return -1;
        }
        *out = jv_bool(!jv_true(&a));
        return 0;
    case JN_NEGATE:
        return eval_negate(r, f, node, out);
    case JN_AND:
    case JN_OR:
        if (eval(r, f, node->a, out) < 0) {
            return -1;
        }
        return jv_true(out) == (node->kind == JN_AND) ? eval(r, f, node->b, out) : 0;
    case JN_BINARY:
        return eval_binary(r, f, node, out);
    case JN_COMPARE:
        return eval_compare(r, f, node, out);
    case JN_CHOICE:
        return eval_choice(r, f, node, out);
    case JN_CAPTURE:
        return capture(r, frame_new(r, f), node->a, out) != 0 ? -1 : 0;
    default:
        return fail(r, node, ERR_INVALID, "a name with a value where none can be", NULL);
    }
}

static int eval(struct run *r, struct jinja_frame *f, const struct jinja_node *node, struct jv *out)
{
    if (jinja_work(&r->arena, 1, r->err) < 0) {
        return at_line(r, node);
    }
    if (++r->depth > EVAL_DEPTH_MAX) {
        return fail(r, node, ERR_TOO_BIG, "nested too deep", NULL);
    }
    const int status = eval_kind(r, f, node, out);
    r->depth--;
    return status;
}

/* ---- statements ---- */

static int mark(struct run *r, size_t begin, size_t end)
{
    struct jinja_marks *marks = r->marks;
    if (marks == NULL || r->out != r->result || begin == end) {
        return 0;
    }
    struct jinja_mark *last = marks->count > 0 ? &marks->items[marks->count - 1] : NULL;
    if (last != NULL && last->message == r->message && last->generation == r->generation) {
        last->end = end;
        return 0;
    }
    if (marks->count == marks->capacity) {
        const size_t capacity = marks->capacity == 0 ? 64 : 2 * marks->capacity;
        struct jinja_mark *grown = realloc(marks->items, capacity * sizeof(*grown));
        if (grown == NULL) {
            return err_set(r->err, ERR_NOMEM, "out of memory for a conversation's parts");
        }
        marks->items = grown;
        marks->capacity = capacity;
    }
    marks->items[marks->count++] =
        (struct jinja_mark){.begin = begin, .end = end, .message = r->message, .generation = r->generation};
    return 0;
}

static int put(struct run *r, const struct jinja_node *node, const struct jv *value)
{
    const size_t begin = r->out->size;
    if (jv_print(value, r->out, r->err) < 0 || mark(r, begin - r->begin, r->out->size - r->begin) < 0) {
        return at_line(r, node);
    }
    return 0;
}

/* Names from one value: one, or as many as it has elements. */
static int unpack(struct run *r, struct jinja_frame *f, const struct jinja_node *node, const struct jv *value)
{
    struct jv_list list = {.count = 1, .items = (struct jv *)(uintptr_t)value};
    if (node->count > 1 && jv_items(&r->arena, value, &list, r->err) < 0) {
        return at_line(r, node);
    }
    if (list.count != node->count) {
        return fail(r, node, ERR_INVALID, "as many names as there are values must be", NULL);
    }
    for (size_t i = 0; i < node->count; i++) {
        const struct jinja_node *target = node->list[i];
        int status = 0;
        if (target->kind == JN_NAME) {
            status = name_put(r, f, &target->value, list.items[i]);
        } else {
            struct jv of;
            if (eval(r, f, target->a, &of) < 0) {
                return -1;
            }
            if (of.kind != JV_NAMESPACE) {
                return fail(r, target, ERR_INVALID,
                            "set of an attribute of what is no namespace:", &target->value);
            }
            status = jinja_work(&r->arena, jv_weight(&of), r->err) < 0
                         ? -1
                         : jv_map_put(&r->arena, of.map, target->value, list.items[i], r->err);
        }
        if (status < 0) {
            return at_line(r, node);
        }
    }
    return 0;
}

/* The name `loop` in round 'i' of a loop over 'list'. */
static int loop_put(struct run *r, struct jinja_frame *f, const struct jv_list *list, size_t i)
{
    struct jv loop;
    const struct jv name = jv_borrow("loop", 4);
    return jinja_loop(&r->arena, list, i, &loop, r->err) < 0 ? -1 : name_put(r, f, &name, loop);
}

/* Those of a list that a loop's condition takes. */
static int loop_filter(struct run *r, struct jinja_frame *f, const struct jinja_node *node,
                       struct jv_list *list)
{
    struct jv kept;
    if (jv_list_new(&r->arena, list->count, &kept, r->err) < 0) {
        return at_line(r, node);
    }
    for (size_t i = 0; i < list->count; i++) {
        struct jv is;
        struct jinja_frame *frame = frame_new(r, f);
        if (frame == NULL || unpack(r, frame, node, &list->items[i]) < 0 ||
            eval(r, frame, node->b, &is) < 0) {
            return at_line(r, node);
        }
        if (jv_true(&is)) {
            kept.list->items[kept.list->count++] = list->items[i];
        }
    }
    *list = *kept.list;
    return 0;
}

static int run_for(struct run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jv over;
    struct jv_list list;
    if (eval(r, f, node->a, &over) < 0) {
        return -1;
    }
    if (jv_items(&r->arena, &over, &list, r->err) < 0) {
        return at_line(r, node);
    }
    if (node->b != NULL && loop_filter(r, f, node, &list) < 0) {
        return -1;
    }
    if (list.count == 0) {
        return node->d != NULL ? run_block(r, f, node->d) : 0;
    }
    const int32_t message = r->message;
    int status = 0;
    for (size_t i = 0; i < list.count && status != LEAVE_BREAK; i++) {
        struct jinja_frame *frame = frame_new(r, f);
        if (frame == NULL || jinja_work(&r->arena, 1, r->err) < 0 || loop_put(r, frame, &list, i) < 0 ||
            unpack(r, frame, node, &list.items[i]) < 0) {
            return at_line(r, node);
        }
        const bool is_message = list.items[i].kind == JV_MAP && list.items[i].message > 0;
        r->message = is_message ? list.items[i].message - 1 : message;
        status = run_block(r, frame, node->c);
        if (status < 0) {
            return -1;
        }
    }
    r->message = message;
    return 0;
}

static int run_if(struct run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    for (size_t i = 0; i + 1 < node->count; i += 2) {
        struct jv condition;
        if (eval(r, f, node->list[i], &condition) < 0) {
            return -1;
        }
        if (jv_true(&condition)) {
            return run_block(r, f, node->list[i + 1]);
        }
    }
    return node->a != NULL ? run_block(r, f, node->a) : 0;
}

static int run_set(struct run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jv value;
    if (node->a != NULL) {
        return eval(r, f, node->a, &value) < 0 ? -1 : unpack(r, f, node, &value);
    }
    const int status = capture(r, frame_new(r, f), node->b, &value);
    return status != 0 ? status : unpack(r, f, node, &value);
}

static int run_with(struct run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jinja_frame *frame = frame_new(r, f);
    for (size_t i = 0; i < node->count && frame != NULL; i++) {
        struct jv value;
        if (eval(r, f, node->list[i]->a, &value) < 0) {
            return -1;
        }
        if (name_put(r, frame, &node->list[i]->value, value) < 0) {
            return at_line(r, node);
        }
    }
    return run_block(r, frame, node->a);
}

static int run_call_block(struct run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jinja_args args;
    struct jv macro;
    struct jv out;
    if (eval(r, f, node->b->a, &macro) < 0 || args_eval(r, f, node->b, &args) < 0) {
        return -1;
    }
    if (macro.kind != JV_MACRO || args.named_count == JINJA_ARGS_MAX) {
        return fail(r, node, ERR_UNSUPPORTED, "a call block of what is no macro", NULL);
    }
    args.names[args.named_count] = jv_borrow("caller", 6);
    args.named[args.named_count++] = (struct jv){.kind = JV_MACRO, .macro = node->a, .frame = f};
    return macro_call(r, node, &macro, &args, &out) < 0 ? -1 : put(r, node, &out);
}

static int run_statement(struct run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jv value;
    bool generation;
    int status;
    switch (node->kind) {
    case JN_TEXT:
        return put(r, node, &node->value);
    case JN_OUTPUT:
        return eval(r, f, node->a, &value) < 0 ? -1 : put(r, node, &value);
    case JN_FOR:
        return run_for(r, f, node);
    case JN_IF:
        return run_if(r, f, node);
    case JN_SET:
        return run_set(r, f, node);
    case JN_MACRO:
        value = (struct jv){.kind = JV_MACRO, .macro = node, .frame = f};
        return name_put(r, f, &node->value, value) < 0 ? at_line(r, node) : 0;
    case JN_BREAK:
        return LEAVE_BREAK;
    case JN_CONTINUE:
        return LEAVE_CONTINUE;
    case JN_WITH:
        return run_with(r, f, node);
    case JN_CALL_BLOCK:
        return run_call_block(r, f, node);
    case JN_GENERATION:
        generation = r->generation;
        r->generation = true;
        status = run_block(r, f, node->a);
        r->generation = generation;
        return status;
    default:
        return fail(r, node, ERR_INTERNAL, "a statement that is none", NULL);
    }
}

static int run_block(struct run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    if (f == NULL || jinja_work(&r->arena, 1, r->err) < 0) {
        return at_line(r, node);
    }
    if (++r->depth > EVAL_DEPTH_MAX) {
        return fail(r, node, ERR_TOO_BIG, "nested too deep", NULL);
    }
    int status = 0;
    for (size_t i = 0; i < node->count && status == 0; i++) {
        status = run_statement(r, f, node->list[i]);
    }
    r->depth--;
    return status;
}

/* The names that are given; elements of `messages` know their place. */
static int globals_fill(struct run *r, const json_t *variables)
{
    struct jv all;
    r->globals = frame_new(r, NULL);
    if (r->globals == NULL || jv_from_json(&r->arena, variables, &all, r->err) < 0) {
        return -1;
    }
    r->globals->names = *all.map;
    const struct jv *messages = jv_map_find(all.map, "messages", 8);
    for (size_t i = 0; messages != NULL && messages->kind == JV_LIST && i < messages->list->count; i++) {
        messages->list->items[i].message = (int32_t)i + 1;
    }
    return 0;
}

void jinja_marks_fini(struct jinja_marks *marks)
{
    free(marks->items);
    *marks = (struct jinja_marks){0};
}

int jinja_render(const struct jinja *jinja, const json_t *variables, int64_t now_s, struct buf *out,
                 struct jinja_marks *marks, struct err *err)
{
    struct err why = {0};
    struct run r = {.arena = {.limit = JINJA_MEMORY_BYTES_MAX, .work_max = JINJA_STEPS_MAX},
                    .now_s = now_s,
                    .out = out,
                    .result = out,
                    .begin = out->size,
                    .marks = marks,
                    .message = -1,
                    .err = &why};
    const size_t marked = marks != NULL ? marks->count : 0;
    int status = json_is_object(variables) ? globals_fill(&r, variables)
                                           : err_set(&why, ERR_INTERNAL, "a template's names are no object");
    if (status == 0) {
        /* What the template sets stands in a frame of its own, over what it is given. */
        status = run_block(&r, frame_new(&r, r.globals), jinja->root);
    }
    if (status < 0) {
        out->size = r.begin;
        if (marks != NULL) {
            marks->count = marked;
        }
        *err = why;
    }
    jinja_arena_fini(&r.arena);
    return status < 0 ? -1 : 0;
}
