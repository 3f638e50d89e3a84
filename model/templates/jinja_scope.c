/* Resolves names in a template's scopes as jinja2's compiler does. If a scope sets a name before it reads it,
 * and no enclosing scope mentions the name, then the name is undefined in that scope until it is set, even if
 * a variable has that name. This matters if an inner scope reads the name earlier: {% for x in l %}{{ tools
 * }}{% endfor %}{% set tools = 1 %}. */
#include <string.h>

#include "model/templates/jinja_parser.h"

enum { NAMES_MAX = 1024 };

/* A scope and the names that it mentions itself, in the order of their first mention. */
struct scope {
    const struct scope *parent;
    struct jv_list names, stored; /* stored[i]: true if names[i] is set before it is read */
    struct jinja_nodes inner;     /* nodes with inner scopes, which are visited after this scope */
};

static int jinja_scope_visit(struct jinja_parser *p, struct scope *s, struct jinja_node *node);
static int scope_run(struct jinja_parser *p, const struct scope *parent, struct jinja_node *const *params,
                     size_t count, struct jinja_node *body);

static size_t jinja_scope_place_of(const struct scope *s, const struct jv *name)
{
    size_t i = 0;
    while (i < s->names.count && !jv_equal(&s->names.items[i], name))
        i++;
    return i;
}

static int mention(struct jinja_parser *p, struct scope *s, const struct jv *name, bool store)
{
    if (jinja_scope_place_of(s, name) < s->names.count)
        return 0;
    if (s->names.count == NAMES_MAX)
        return jinja_fail(p, ERR_TOO_BIG, "too many names in one scope, with", name);
    return jv_list_add(p->arena, &s->names, *name, p->err) < 0
               ? -1
               : jv_list_add(p->arena, &s->stored, jv_bool(store), p->err);
}

static int visit_all(struct jinja_parser *p, struct scope *s, struct jinja_node *const *list, size_t count)
{
    for (size_t i = 0; i < count; i++)
        if (jinja_scope_visit(p, s, list[i]) < 0)
            return -1;
    return 0;
}

/* Returns a copy of the scope for one branch of an `if`. */
static struct scope branch(const struct scope *s)
{
    struct scope way = *s;
    way.names.capacity = way.stored.capacity =
        s->names.count; /* a full capacity makes the copy's lists move when they grow */
    way.inner = (struct jinja_nodes){0};
    return way;
}

/* Visits an `if`. A name counts as set before it is read only if that holds in all three branches: `if`, the
 * `elif`s together, and `else`. */
static int visit_if(struct jinja_parser *p, struct scope *s, struct jinja_node *node)
{
    struct scope ways[3];
    if (jinja_scope_visit(p, s, node->list[0]) < 0)
        return -1;
    for (size_t w = 0; w < 3; w++) {
        const size_t from = w == 0 ? 1 : w == 1 ? 2 : node->count;
        const size_t to = w == 0 ? 2 : node->count;
        ways[w] = branch(s);
        if (visit_all(p, &ways[w], node->list + from, to - from) < 0 ||
            (w == 2 && jinja_scope_visit(p, &ways[w], node->a) < 0)) {
            return -1;
        }
        for (size_t i = 0; i < ways[w].inner.count; i++)
            if (jinja_nodes_add(p, &s->inner, ways[w].inner.items[i]) < 0)
                return -1;
    }
    const size_t before = s->names.count;
    for (size_t w = 0; w < 3; w++) {
        for (size_t i = before; i < ways[w].names.count; i++) {
            const struct jv *name = &ways[w].names.items[i];
            bool all = true;
            for (size_t o = 0; o < 3; o++) {
                const size_t at = jinja_scope_place_of(&ways[o], name);
                all = all && at < ways[o].names.count && jv_true(&ways[o].stored.items[at]);
            }
            if (mention(p, s, name, all) < 0)
                return -1;
        }
    }
    return 0;
}

static int visit_targets(struct jinja_parser *p, struct scope *s, const struct jinja_node *node)
{
    for (size_t i = 0; i < node->count; i++) {
        const struct jinja_node *target = node->list[i];
        const bool name = target->kind == JN_NAME;
        if (mention(p, s, name ? &target->value : &target->a->value, name) < 0)
            return -1;
    }
    return 0;
}

static int jinja_scope_visit(struct jinja_parser *p, struct scope *s, struct jinja_node *node)
{
    if (!node)
        return 0;
    switch (node->kind) {
    case JN_NAME:
        return mention(p, s, &node->value, false);
    case JN_IF:
        return visit_if(p, s, node);
    case JN_SET:
        if (node->b && jinja_nodes_add(p, &s->inner, node) < 0)
            return -1;
        return jinja_scope_visit(p, s, node->a) < 0 ? -1 : visit_targets(p, s, node);
    case JN_FOR:
        return jinja_nodes_add(p, &s->inner, node) < 0 ? -1 : jinja_scope_visit(p, s, node->a);
    case JN_MACRO:
        return jinja_nodes_add(p, &s->inner, node) < 0 ? -1 : mention(p, s, &node->value, true);
    case JN_CALL_BLOCK:
        return jinja_nodes_add(p, &s->inner, node->a) < 0 ? -1 : jinja_scope_visit(p, s, node->b);
    case JN_WITH:
        return jinja_nodes_add(p, &s->inner, node) < 0 ? -1 : visit_all(p, s, node->list, node->count);
    case JN_CAPTURE:
    case JN_GENERATION:
    case JN_AUTOESCAPE:
        return jinja_nodes_add(p, &s->inner, node);
    case JN_COMPARE: /* the right operand of one step is the left one of the next */
        for (size_t i = 0; i < node->count; i++)
            if (jinja_scope_visit(p, s, node->list[i]->b) < 0)
                return -1;
        return jinja_scope_visit(p, s, node->a);
    default:
        return jinja_scope_visit(p, s, node->a) < 0 || jinja_scope_visit(p, s, node->b) < 0 ||
                       jinja_scope_visit(p, s, node->c) < 0 || jinja_scope_visit(p, s, node->d) < 0
                   ? -1
                   : visit_all(p, s, node->list, node->count);
    }
}

/* Visits the inner scopes of a node. */
static int jinja_scope_scopes_of(struct jinja_parser *p, const struct scope *s, struct jinja_node *node)
{
    switch (node->kind) {
    case JN_FOR:
        return scope_run(p, s, node->list, node->count, node->c) < 0 ? -1 : scope_run(p, s, NULL, 0, node->d);
    case JN_MACRO:
    case JN_WITH:
        return scope_run(p, s, node->list, node->count, node->a);
    case JN_SET:
    case JN_AUTOESCAPE:
        return scope_run(p, s, NULL, 0, node->b);
    default: /* JN_CAPTURE, JN_GENERATION */
        return scope_run(p, s, NULL, 0, node->a);
    }
}

/* Returns true if an enclosing scope mentions the name. */
static bool is_outside(const struct scope *s, const struct jv *name)
{
    for (; s != NULL; s = s->parent)
        if (jinja_scope_place_of(s, name) < s->names.count)
            return true;
    return false;
}

static int scope_run(struct jinja_parser *p, const struct scope *parent, struct jinja_node *const *params,
                     size_t count, struct jinja_node *body)
{
    struct scope s = {.parent = parent};
    if (!body)
        return 0;
    for (size_t i = 0; i < count; i++)
        if (mention(p, &s, &params[i]->value, false) < 0)
            return -1;
    if (jv_list_new(p->arena, 0, &body->value, p->err) < 0 || visit_all(p, &s, body->list, body->count) < 0)
        return -1;
    for (size_t i = 0; i < s.names.count; i++) {
        if (jv_true(&s.stored.items[i]) && !is_outside(parent, &s.names.items[i]) &&
            jv_list_add(p->arena, body->value.list, s.names.items[i], p->err) < 0) {
            return -1;
        }
    }
    for (size_t i = 0; i < s.inner.count; i++)
        if (jinja_scope_scopes_of(p, &s, s.inner.items[i]) < 0)
            return -1;
    return 0;
}

int jinja_scopes(struct jinja_parser *p, struct jinja_node *root)
{
    return scope_run(p, NULL, NULL, 0, root);
}
