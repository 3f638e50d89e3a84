/* Checks what jinja2 checks when it compiles a template, before anything is rendered. */
#include "model/templates/jinja.h"
#include "model/templates/jinja_builtin.h"
#include "model/templates/jinja_parser.h"

/* Refuses unknown filters and tests, except inside an `if` of the same scope ('soft'). Adds to *uses the
 * JINJA_USES_* bits of the names that the nodes read. */
static int templates_check(struct jinja_parser *p, struct jinja_node *node, bool soft, uint8_t *uses);

static int check_all(struct jinja_parser *p, struct jinja_node *const *list, size_t count, bool soft,
                     uint8_t *uses)
{
    for (size_t i = 0; i < count; i++)
        if (templates_check(p, list[i], soft, uses) < 0)
            return -1;
    return 0;
}

static int check_row(struct jinja_parser *p, const struct jinja_node *node, bool soft)
{
    const bool filter = node->kind == JN_FILTER;
    if (soft || (filter ? jinja_filter_row(&node->value) : jinja_test_row(&node->value)))
        return 0;
    p->token.line = node->line;
    return jinja_fail(p, ERR_UNSUPPORTED,
                      filter ? "a filter that is not known:" : "a test that is not known:", &node->value);
}

static int check_macro(struct jinja_parser *p, struct jinja_node *node, uint8_t *uses)
{
    static const char *const names[] = {"caller", "kwargs", "varargs"};
    uint8_t own = 0;
    if (check_all(p, node->list, node->count, false, uses) < 0 ||
        templates_check(p, node->a, false, &own) < 0)
        return -1;
    *uses |= own;
    for (size_t i = 0; i < node->count; i++)
        for (size_t n = 0; n < 3; n++)
            own &= (uint8_t)~(jv_is_text(&node->list[i]->value, names[n]) ? 1U << n : 0U);
    node->uses = own;
    return 0;
}

static int check_node(struct jinja_parser *p, struct jinja_node *node, bool soft, uint8_t *uses)
{
    const bool scope = node->kind == JN_CAPTURE || node->kind == JN_GENERATION || node->kind == JN_AUTOESCAPE;
    switch (node->kind) {
    case JN_NAME:
        *uses |= jv_is_text(&node->value, "caller")    ? JINJA_USES_CALLER
                 : jv_is_text(&node->value, "kwargs")  ? JINJA_USES_KWARGS
                 : jv_is_text(&node->value, "varargs") ? JINJA_USES_VARARGS
                                                       : 0;
        return 0;
    case JN_MACRO:
        return check_macro(p, node, uses);
    case JN_FILTER:
    case JN_TEST:
        if (check_row(p, node, soft) < 0)
            return -1;
        break;
    case JN_IF:
    case JN_CHOICE:
        soft = true;
        break;
    case JN_COMPARE: /* the right operand of one step is the left one of the next */
        for (size_t i = 0; i < node->count; i++)
            if (templates_check(p, node->list[i]->b, soft, uses) < 0)
                return -1;
        return templates_check(p, node->a, soft, uses);
    case JN_FOR:
        return templates_check(p, node->a, soft, uses) < 0 || templates_check(p, node->b, false, uses) < 0 ||
                       templates_check(p, node->c, false, uses) < 0
                   ? -1
                   : templates_check(p, node->d, false, uses);
    case JN_WITH:
        return check_all(p, node->list, node->count, soft, uses) < 0
                   ? -1
                   : templates_check(p, node->a, false, uses);
    case JN_SET:
        return templates_check(p, node->a, soft, uses) < 0 ? -1 : templates_check(p, node->b, false, uses);
    default:
        break;
    }
    soft = soft && !scope;
    return templates_check(p, node->a, soft, uses) < 0 || templates_check(p, node->b, soft, uses) < 0 ||
                   templates_check(p, node->c, soft, uses) < 0 || templates_check(p, node->d, soft, uses) < 0
               ? -1
               : check_all(p, node->list, node->count, soft, uses);
}

/* The depth is bounded here, before anything else walks the tree. */
static int templates_check(struct jinja_parser *p, struct jinja_node *node, bool soft, uint8_t *uses)
{
    if (!node)
        return 0;
    if (++p->depth > JINJA_TREE_DEPTH_MAX) {
        p->token.line = node->line;
        return jinja_fail(p, ERR_TOO_BIG, "nested too deep", NULL);
    }
    const int status = check_node(p, node, soft, uses);
    p->depth--;
    return status;
}

int jinja_check(struct jinja_parser *p, struct jinja_node *root)
{
    uint8_t uses = 0;
    return templates_check(p, root, false, &uses);
}
