/* Runs statements, and a rendering as a whole. */
#include "model/templates/jinja_run.h"

#include <stdlib.h>
#include <string.h>

#include "model/templates/jinja_print.h"

static int run_block(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node);

static int mark(struct jinja_run *r, size_t begin, size_t end)
{
    struct jinja_marks *marks = r->marks;
    if (!marks || r->out != r->result || begin == end)
        return 0;
    struct jinja_mark *last = marks->count > 0 ? &marks->items[marks->count - 1] : NULL;
    if (last && last->message == r->message && last->generation == r->generation) {
        last->end = end;
        return 0;
    }
    if (!marks->items || marks->count == marks->capacity) {
        const size_t capacity = marks->capacity == 0 ? 64 : 2 * marks->capacity;
        struct jinja_mark *grown = realloc(marks->items, capacity * sizeof(*grown));
        if (!grown)
            return err_set(r->err, ERR_NOMEM, "out of memory for a conversation's parts");
        marks->items = grown;
        marks->capacity = capacity;
    }
    marks->items[marks->count++] =
        (struct jinja_mark){.begin = begin, .end = end, .message = r->message, .generation = r->generation};
    return 0;
}

static int jinja_run_put(struct jinja_run *r, const struct jinja_node *node, const struct jv *value)
{
    const size_t begin = r->out->size;
    if (jv_print(value, r->out, r->err) < 0 || mark(r, begin - r->begin, r->out->size - r->begin) < 0)
        return jinja_at_line(r, node);
    return 0;
}

/* Assigns a value to one name, or its elements to as many names. */
static int jinja_run_unpack(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                            const struct jv *value)
{
    struct jv_list list = {.count = 1, .items = (struct jv *)(uintptr_t)value};
    if (node->count > 1 && jv_items(&r->arena, value, &list, r->err) < 0)
        return jinja_at_line(r, node);
    if (list.count != node->count)
        return jinja_run_fail(r, node, ERR_INVALID, "as many names as there are values must be", NULL);
    for (size_t i = 0; i < node->count; i++) {
        const struct jinja_node *target = node->list[i];
        int status = 0;
        if (target->kind == JN_NAME) {
            status = jinja_name_put(r, f, &target->value, list.items[i]);
        } else {
            struct jv of;
            if (jinja_eval(r, f, target->a, &of) < 0)
                return -1;
            if (of.kind != JV_NAMESPACE) {
                return jinja_run_fail(r, target, ERR_INVALID,
                                      "set of an attribute of what is no namespace:", &target->value);
            }
            status = jinja_work(&r->arena, jv_weight(&of), r->err) < 0
                         ? -1
                         : jv_map_put(&r->arena, of.map, target->value, list.items[i], r->err);
        }
        if (status < 0)
            return jinja_at_line(r, node);
    }
    return 0;
}

/* Selects the items for which a loop's condition is true. */
static int loop_filter(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                       struct jv_list *list)
{
    struct jv kept;
    if (jv_list_new(&r->arena, list->count, &kept, r->err) < 0)
        return jinja_at_line(r, node);
    for (size_t i = 0; i < list->count; i++) {
        struct jv is;
        struct jinja_frame *frame = jinja_frame_new(r, f);
        if (!frame || jinja_run_unpack(r, frame, node, &list->items[i]) < 0 ||
            jinja_eval(r, frame, node->b, &is) < 0)
            return jinja_at_line(r, node);
        if (jv_true(&is))
            kept.list->items[kept.list->count++] = list->items[i];
    }
    *list = *kept.list;
    return 0;
}

/* Runs a loop over a list that is not empty. *ended becomes true if the body ran to its end once, without
 * break or continue. */
static int run_rounds(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                      struct jv_loop *loop, bool *ended)
{
    const struct jv name = jv_borrow("loop", 4), value = {.kind = JV_LOOP, .loop = loop};
    const struct jv_list *list = &loop->items;
    int status = 0;
    for (; loop->at < list->count && status != LEAVE_BREAK; loop->at++) {
        struct jinja_frame *frame = jinja_frame_new(r, f);
        const struct jv *item = &list->items[loop->at];
        if (!frame || jinja_work(&r->arena, 1, r->err) < 0 || jinja_name_put(r, frame, &name, value) < 0 ||
            jinja_run_unpack(r, frame, node, item) < 0) {
            return jinja_at_line(r, node);
        }
        const int32_t message = r->message;
        r->message = item->kind == JV_MAP && item->message > 0 ? item->message - 1 : message;
        loop->peeked = loop->peeked == SIZE_MAX ? SIZE_MAX : 0;
        status = run_block(r, frame, node->c);
        r->message = message;
        if (status < 0)
            return -1;
        *ended = *ended || status == 0;
    }
    return 0;
}

static int run_loop(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node,
                    const struct jv *over, size_t depth)
{
    struct jv_loop *loop = jinja_alloc(&r->arena, sizeof(*loop), r->err);
    struct jv_list *iterator = jv_is_list(over, JF_ITERATOR) ? over->list : NULL;
    const size_t taken = iterator ? iterator->taken : 0;
    if (!loop || jv_items(&r->arena, over, &loop->items, r->err) < 0)
        return jinja_at_line(r, node);
    if (node->b && loop_filter(r, f, node, &loop->items) < 0)
        return -1;
    if (loop->items.count == 0)
        return node->d ? run_block(r, jinja_frame_new(r, f), node->d) : 0;
    loop->depth = depth;
    loop->node = node->negated ? node : NULL;
    loop->frame = f;
    bool ended = false;
    if (run_rounds(r, f, node, loop, &ended) < 0)
        return -1;
    if (iterator && !node->b && loop->peeked < loop->items.count - loop->at)
        iterator->taken =
            taken + loop->at + loop->peeked; /* items that a break left remain in the iterator */
    return ended || !node->d ? 0
                             /* as in jinja2, `else` also runs when break or continue ended each round */
                             : run_block(r, jinja_frame_new(r, f), node->d);
}

static int run_for(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jv over;
    return jinja_eval(r, f, node->a, &over) < 0 ? -1 : run_loop(r, f, node, &over, 0);
}

static int run_if(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    for (size_t i = 0; i + 1 < node->count; i += 2) {
        struct jv condition;
        if (jinja_eval(r, f, node->list[i], &condition) < 0)
            return -1;
        if (jv_true(&condition))
            return run_block(r, f, node->list[i + 1]);
    }
    return node->a ? run_block(r, f, node->a) : 0;
}

static int run_set(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jv value;
    if (node->a)
        return jinja_eval(r, f, node->a, &value) < 0 ? -1 : jinja_run_unpack(r, f, node, &value);
    const int status = jinja_capture(r, jinja_frame_new(r, f), node->b, &value);
    return status != 0 ? status : jinja_run_unpack(r, f, node, &value);
}

static int run_with(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jinja_frame *frame = jinja_frame_new(r, f);
    for (size_t i = 0; i < node->count && frame; i++) {
        struct jv value;
        if (jinja_eval(r, f, node->list[i]->a, &value) < 0)
            return -1;
        if (jinja_name_put(r, frame, &node->list[i]->value, value) < 0)
            return jinja_at_line(r, node);
    }
    return run_block(r, frame, node->a);
}

static int run_call_block(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jinja_args args;
    struct jv macro;
    struct jv out;
    if (jinja_eval(r, f, node->b->a, &macro) < 0 || jinja_args_eval(r, f, node->b, &args) < 0)
        return -1;
    if (macro.kind != JV_MACRO)
        return jinja_run_fail(r, node, ERR_UNSUPPORTED, "a call block of what is no macro", NULL);
    args.names[args.named_count] = jv_borrow("caller", 6);
    args.named[args.named_count++] = (struct jv){.kind = JV_MACRO, .macro = node->a, .frame = f};
    return jinja_macro_call(r, node, &macro, &args, &out) < 0 ? -1 : jinja_run_put(r, node, &out);
}

static int run_autoescape(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jv on;
    if (jinja_eval(r, f, node->a, &on) < 0)
        return -1;
    return jv_true(&on)
               ? jinja_run_fail(r, node, ERR_UNSUPPORTED, "autoescape that is on is not known here", NULL)
               : run_block(r, jinja_frame_new(r, f), node->b);
}

static int run_statement(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    struct jv value;
    bool generation;
    int status;
    switch (node->kind) {
    case JN_TEXT:
        return jinja_run_put(r, node, &node->value);
    case JN_OUTPUT:
        if (jinja_eval(r, f, node->a, &value) < 0)
            return -1;
        return node->negated && value.kind != JV_TEXT
                   ? jinja_run_fail(r, node, ERR_INVALID,
                                    "a filter block whose filter gives no text:", &node->a->value)
                   : jinja_run_put(r, node, &value);
    case JN_FOR:
        return run_for(r, f, node);
    case JN_IF:
        return run_if(r, f, node);
    case JN_SET:
        return run_set(r, f, node);
    case JN_MACRO:
        value = (struct jv){.kind = JV_MACRO, .macro = node, .frame = f};
        return jinja_name_put(r, f, &node->value, value) < 0 ? jinja_at_line(r, node) : 0;
    case JN_BREAK:
        return LEAVE_BREAK;
    case JN_CONTINUE:
        return LEAVE_CONTINUE;
    case JN_WITH:
        return run_with(r, f, node);
    case JN_CALL_BLOCK:
        return run_call_block(r, f, node);
    case JN_AUTOESCAPE:
        return run_autoescape(r, f, node);
    case JN_REFUSED:
        return jinja_run_fail(r, node, ERR_UNSUPPORTED, "a statement that is not known here:", &node->value);
    case JN_GENERATION:
        generation = r->generation;
        r->generation = true;
        status = run_block(r, jinja_frame_new(r, f), node->a);
        r->generation = generation;
        return status;
    default:
        return jinja_run_fail(r, node, ERR_INTERNAL, "a statement that is none", NULL);
    }
}

static int run_block(struct jinja_run *r, struct jinja_frame *f, const struct jinja_node *node)
{
    if (!f || jinja_work(&r->arena, 1, r->err) < 0)
        return jinja_at_line(r, node);
    if (++r->depth > JINJA_EVAL_DEPTH_MAX)
        return jinja_run_fail(r, node, ERR_TOO_BIG, "nested too deep", NULL);
    int status = 0;
    for (size_t i = 0; node->value.kind == JV_LIST && i < node->value.list->count; i++) {
        const struct jv *name = &node->value.list->items[i];
        if (jinja_name_put(r, f, name, jv_undefined(name->text, name->size)) < 0)
            return jinja_at_line(r, node);
    }
    for (size_t i = 0; i < node->count && status == 0; i++)
        status = run_statement(r, f, node->list[i]);
    r->depth--;
    return status;
}

/* Sets the variables; each element of `messages` stores its index. */
static int globals_fill(struct jinja_run *r, const json_t *variables)
{
    struct jv all;
    r->globals = jinja_frame_new(r, NULL);
    if (!r->globals || jv_from_json(&r->arena, variables, &all, r->err) < 0)
        return -1;
    r->globals->names = *all.map;
    const struct jv *messages = jv_map_find(all.map, "messages", 8);
    for (size_t i = 0; messages && messages->kind == JV_LIST && i < messages->list->count; i++)
        messages->list->items[i].message = (int32_t)i + 1;
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
    struct jinja_run r = {.arena = {.limit = JINJA_MEMORY_BYTES_MAX, .work_max = JINJA_STEPS_MAX},
                          .now_s = now_s,
                          .out = out,
                          .result = out,
                          .begin = out->size,
                          .marks = marks,
                          .message = -1,
                          .err = &why,
                          .block = run_block,
                          .loop = run_loop};
    const size_t marked = marks ? marks->count : 0;
    int status = json_is_object(variables) ? globals_fill(&r, variables)
                                           : err_set(&why, ERR_INTERNAL, "a template's names are no object");
    if (status == 0) {
        /* The template sets its variables in a frame of its own above the given variables. */
        status = run_block(&r, jinja_frame_new(&r, r.globals), jinja->root);
    }
    if (status < 0) {
        out->size = r.begin;
        if (marks)
            marks->count = marked;
        *err = why;
    }
    jinja_arena_fini(&r.arena);
    return status < 0 ? -1 : 0;
}
