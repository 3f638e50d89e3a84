/* Parses expressions, with one function per level of precedence, as in Jinja's documentation. Each returns a
 * node, or NULL with the error. */
#include <string.h>

#include "model/templates/jinja_parser.h"

static struct jinja_node *unary(struct jinja_parser *p, bool with_filters);

static struct jinja_node *two(struct jinja_parser *p, enum jinja_kind kind, enum jinja_op op,
                              struct jinja_node *a, struct jinja_node *b)
{
    struct jinja_node *node = a && b ? jinja_node_new(p, kind) : NULL;
    if (node) {
        node->op = op;
        node->a = a;
        node->b = b;
        node->line = a->line;
    }
    return node;
}

/* Parses *list or **mapping among arguments. */
static struct jinja_node *spread(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JN_SPREAD);
    if (!node)
        return NULL;
    node->negated = jinja_is_operator(p, "**");
    node->a = jinja_advance(p) < 0 ? NULL : jinja_expression(p);
    return node->a ? node : NULL;
}

/* Returns true if an argument may follow those before it: positional arguments come first, then named ones;
 * *list and **mapping may appear once each. */
static bool is_in_order(const struct jinja_nodes *before, const struct jinja_node *node)
{
    for (size_t i = 0; i < before->count; i++) {
        const struct jinja_node *other = before->items[i];
        const bool names = other->kind == JN_NAMED, list = other->kind == JN_SPREAD && !other->negated;
        const bool mapping = other->kind == JN_SPREAD && other->negated;
        if (mapping || (node->kind != JN_NAMED && node->kind != JN_SPREAD && (names || list)) ||
            (node->kind == JN_SPREAD && !node->negated && list) ||
            (node->kind == JN_NAMED && names && jv_equal(&node->value, &other->value))) {
            return false;
        }
    }
    return true;
}

/* Parses expressions up to 'close' into nodes; if 'named', they are arguments, which may have names. */
static int series(struct jinja_parser *p, const char *close, bool named, struct jinja_nodes *nodes)
{
    while (!jinja_is_operator(p, close)) {
        const bool stars = named && (jinja_is_operator(p, "*") || jinja_is_operator(p, "**"));
        struct jinja_node *node = stars ? spread(p) : jinja_expression(p);
        if (node && named && node->kind == JN_NAME && jinja_is_operator(p, "=")) {
            node->kind = JN_NAMED;
            node->a = jinja_advance(p) < 0 ? NULL : jinja_expression(p);
            node = node->a ? node : NULL;
        }
        if (node && named && !is_in_order(nodes, node))
            return jinja_fail(p, ERR_INVALID, "arguments in an order that cannot be, or one twice", NULL);
        if (!node || jinja_nodes_add(p, nodes, node) < 0)
            return -1;
        if (jinja_is_operator(p, ",")) {
            if (jinja_advance(p) < 0)
                return -1;
        } else if (!jinja_is_operator(p, close)) {
            return jinja_expected(p, close);
        }
    }
    return jinja_advance(p);
}

int jinja_arguments(struct jinja_parser *p, struct jinja_node *node)
{
    struct jinja_nodes nodes = {0};
    if (jinja_advance(p) < 0 || series(p, ")", true, &nodes) < 0)
        return -1;
    node->list = nodes.items;
    node->count = nodes.count;
    return 0;
}

static struct jinja_node *parenthesis(struct jinja_parser *p)
{
    struct jinja_nodes nodes = {0};
    if (jinja_advance(p) < 0)
        return NULL;
    struct jinja_node *first = jinja_is_operator(p, ")") ? NULL : jinja_expression(p);
    if (first && jinja_is_operator(p, ")"))
        return jinja_advance(p) < 0 ? NULL : first;
    struct jinja_node *tuple = p->err->code == ERR_NONE ? jinja_node_new(p, JN_LIST) : NULL;
    if (!tuple || (first && (jinja_nodes_add(p, &nodes, first) < 0 || jinja_take_operator(p, ",") < 0)) ||
        series(p, ")", false, &nodes) < 0) {
        return NULL;
    }
    tuple->negated = true;
    tuple->list = nodes.items;
    tuple->count = nodes.count;
    return tuple;
}

static struct jinja_node *list_literal(struct jinja_parser *p)
{
    struct jinja_nodes nodes = {0};
    struct jinja_node *node = jinja_node_new(p, JN_LIST);
    if (!node || jinja_advance(p) < 0 || series(p, "]", false, &nodes) < 0)
        return NULL;
    node->list = nodes.items;
    node->count = nodes.count;
    return node;
}

static struct jinja_node *dict_literal(struct jinja_parser *p)
{
    struct jinja_nodes nodes = {0};
    struct jinja_node *node = jinja_node_new(p, JN_DICT);
    if (!node || jinja_advance(p) < 0)
        return NULL;
    while (!jinja_is_operator(p, "}")) {
        struct jinja_node *key = jinja_expression(p);
        struct jinja_node *value = !key || jinja_take_operator(p, ":") < 0 ? NULL : jinja_expression(p);
        if (!value || jinja_nodes_add(p, &nodes, key) < 0 || jinja_nodes_add(p, &nodes, value) < 0)
            return NULL;
        if (jinja_is_operator(p, ",") ? jinja_advance(p) < 0 : !jinja_is_operator(p, "}"))
            return jinja_is_operator(p, "}") ? NULL : (jinja_expected(p, "}"), NULL);
    }
    node->list = nodes.items;
    node->count = nodes.count;
    return jinja_advance(p) < 0 ? NULL : node;
}

struct jinja_node *jinja_name_or_constant(struct jinja_parser *p)
{
    static const char *const reserved[] = {"and", "or", "not", "if", "else", "elif", "in", "is", "for"};
    const struct jv name = p->token.value;
    struct jinja_node *node = jinja_node_new(p, JN_CONST);
    for (size_t i = 0; i < sizeof(reserved) / sizeof(reserved[0]); i++) {
        if (jv_is_text(&name, reserved[i])) {
            jinja_expected(p, "a value");
            return NULL;
        }
    }
    if (!node || jinja_advance(p) < 0)
        return NULL;
    if (jv_is_text(&name, "true") || jv_is_text(&name, "True")) {
        node->value = jv_bool(true);
    } else if (jv_is_text(&name, "false") || jv_is_text(&name, "False")) {
        node->value = jv_bool(false);
    } else if (jv_is_text(&name, "none") || jv_is_text(&name, "None")) {
        node->value.kind = JV_NONE;
    } else {
        node->kind = JN_NAME;
        node->value = name;
    }
    return node;
}

static struct jinja_node *constant(struct jinja_parser *p)
{
    struct jinja_node *node = jinja_node_new(p, JN_CONST);
    if (!node)
        return NULL;
    node->value = p->token.value;
    const bool text = p->token.kind == T_STRING;
    if (jinja_advance(p) < 0)
        return NULL;
    while (text && p->token.kind == T_STRING) { /* adjacent string literals are concatenated */
        char *both = jinja_alloc(p->arena, node->value.size + p->token.value.size + 1, p->err);
        if (!both)
            return NULL;
        memcpy(both, node->value.text, node->value.size);
        memcpy(both + node->value.size, p->token.value.text, p->token.value.size);
        node->value = jv_borrow(both, node->value.size + p->token.value.size);
        if (jinja_advance(p) < 0)
            return NULL;
    }
    return node;
}

static struct jinja_node *primary(struct jinja_parser *p)
{
    switch (p->token.kind) {
    case T_NAME:
        return jinja_name_or_constant(p);
    case T_STRING:
    case T_NUMBER:
        return constant(p);
    case T_OPERATOR:
        if (jinja_is_operator(p, "("))
            return parenthesis(p);
        if (jinja_is_operator(p, "["))
            return list_literal(p);
        if (jinja_is_operator(p, "{"))
            return dict_literal(p);
        break;
    case T_END:
        break;
    }
    jinja_expected(p, "a value");
    return NULL;
}

struct jinja_node *jinja_attribute(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *node = jinja_advance(p) < 0 ? NULL : jinja_node_new(p, JN_ATTR);
    if (!node)
        return NULL;
    node->a = of;
    node->value = p->token.value;
    /* an index behind a dot, as in list.0 */
    if (p->token.kind == T_NUMBER && p->token.value.kind == JV_INT) {
        node->kind = JN_ITEM;
        node->b = jinja_node_new(p, JN_CONST);
        if (!node->b)
            return NULL;
        node->b->value = p->token.value;
    } else if (p->token.kind != T_NAME) {
        jinja_expected(p, "a name");
        return NULL;
    }
    return jinja_advance(p) < 0 ? NULL : node;
}

/* Parses [index] or [from:to:step]. */
static struct jinja_node *subscript(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *node = jinja_node_new(p, JN_SLICE);
    struct jinja_node **parts = jinja_alloc(p->arena, 3 * sizeof(struct jinja_node *), p->err);
    size_t colons = 0;
    if (!node || !parts || jinja_advance(p) < 0)
        return NULL;
    while (!jinja_is_operator(p, "]")) {
        if (jinja_is_operator(p, ":")) {
            if (++colons == 3 || jinja_advance(p) < 0)
                return colons == 3 ? (jinja_expected(p, "]"), NULL) : NULL;
        } else if (parts[colons] || !(parts[colons] = jinja_expression(p))) {
            return p->err->code != ERR_NONE ? NULL : (jinja_expected(p, "]"), NULL);
        }
    }
    node->a = of;
    node->list = parts;
    node->count = 3;
    if (colons == 0) {
        node->kind = JN_ITEM;
        node->b = parts[0];
        if (!node->b) {
            jinja_expected(p, "a value");
            return NULL;
        }
    }
    return jinja_advance(p) < 0 ? NULL : node;
}

/* Parses the call of a function, a macro or a method. */
static struct jinja_node *call(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *node = jinja_node_new(p, JN_CALL);
    if (!node || jinja_arguments(p, node) < 0)
        return NULL;
    node->a = of;
    return node;
}

static struct jinja_node *postfix(struct jinja_parser *p, struct jinja_node *node)
{
    while (node && p->token.kind == T_OPERATOR)
        if (jinja_is_operator(p, "."))
            node = jinja_attribute(p, node);
        else if (jinja_is_operator(p, "["))
            node = subscript(p, node);
        else if (jinja_is_operator(p, "("))
            node = call(p, node);
        else
            break;
    return node;
}

struct jinja_node *jinja_filter(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_node *node = jinja_node_new(p, JN_FILTER);
    if (!node || p->token.kind != T_NAME)
        return !node ? NULL : (jinja_expected(p, "a filter"), NULL);
    node->a = of;
    node->value = p->token.value;
    return jinja_advance(p) < 0 || (jinja_is_operator(p, "(") && jinja_arguments(p, node) < 0) ? NULL : node;
}

/* Returns true if the current token begins a test's argument without parentheses. */
static bool begins_argument(const struct jinja_parser *p)
{
    static const char *const others[] = {"else", "or", "and"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (jinja_is_name(p, others[i]))
            return false;
    return p->token.kind == T_NAME || p->token.kind == T_STRING || p->token.kind == T_NUMBER ||
           jinja_is_operator(p, "[") || jinja_is_operator(p, "{");
}

static struct jinja_node *test(struct jinja_parser *p, struct jinja_node *of)
{
    struct jinja_nodes nodes = {0};
    struct jinja_node *node = jinja_advance(p) < 0 ? NULL : jinja_node_new(p, JN_TEST);
    if (node && jinja_is_name(p, "not")) {
        node->negated = true;
        node = jinja_advance(p) < 0 ? NULL : node;
    }
    if (!node || p->token.kind != T_NAME)
        return !node ? NULL : (jinja_expected(p, "a test"), NULL);
    node->a = of;
    node->value = p->token.value;
    if (jinja_advance(p) < 0)
        return NULL;
    const bool called = jinja_is_operator(p, "(");
    if (called && jinja_arguments(p, node) < 0)
        return NULL;
    if (!called && jinja_is_name(p, "is")) {
        jinja_expected(p, "something else than a second test");
        return NULL;
    }
    if (!called && begins_argument(p)) {
        struct jinja_node *argument = postfix(p, primary(p));
        if (!argument || jinja_nodes_add(p, &nodes, argument) < 0)
            return NULL;
        node->list = nodes.items;
        node->count = 1;
    }
    return node;
}

struct jinja_node *jinja_filters(struct jinja_parser *p, struct jinja_node *node)
{
    while (node)
        if (jinja_is_operator(p, "|"))
            node = jinja_advance(p) < 0 ? NULL : jinja_filter(p, node);
        else if (jinja_is_name(p, "is"))
            node = test(p, node);
        else if (jinja_is_operator(p, "("))
            node = call(p, node);
        else
            break;
    return node;
}

static struct jinja_node *unary(struct jinja_parser *p, bool with_filters)
{
    struct jinja_node *node = NULL;
    if (jinja_deeper(p) < 0)
        return NULL;
    if (jinja_is_operator(p, "-") || jinja_is_operator(p, "+")) {
        struct jinja_node *sign = jinja_node_new(p, JN_SIGNED);
        if (sign) {
            sign->negated = jinja_is_operator(p, "-");
            node = jinja_advance(p) == 0 && (sign->a = unary(p, false)) ? sign : NULL;
        }
    } else {
        node = primary(p);
    }
    node = node ? postfix(p, node) : NULL;
    p->depth--;
    return node && with_filters ? jinja_filters(p, node) : node;
}

struct operator_row {
    const char *text;
    enum jinja_op op;
};

/* Parses operands of the next level of precedence, joined from left to right by the operators of this level.
 */
static struct jinja_node *level(struct jinja_parser *p, unsigned at)
{
    static const struct operator_row rows[4][5] = {
        {{"+", JO_ADD}, {"-", JO_SUB}},
        {{"~", JO_CONCAT}},
        {{"*", JO_MUL}, {"//", JO_FLOOR}, {"/", JO_DIV}, {"%", JO_MOD}},
        {{"**", JO_POWER}}};
    if (at == 4)
        return unary(p, true);
    struct jinja_node *node = level(p, at + 1);
    while (node) {
        const struct operator_row *row = rows[at];
        while (row->text && !jinja_is_operator(p, row->text))
            row++;
        if (!row->text)
            break;
        node = jinja_advance(p) < 0 ? NULL : two(p, JN_BINARY, row->op, node, level(p, at + 1));
    }
    return node;
}

/* Parses a comparison operator. Returns 1 and its operator in *op, 0 if there is none, or -1. */
static int comparison(struct jinja_parser *p, enum jinja_op *op)
{
    static const struct operator_row rows[] = {{"==", JO_EQ}, {"!=", JO_NE}, {"<=", JO_LE},
                                               {">=", JO_GE}, {"<", JO_LT},  {">", JO_GT}};
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (jinja_is_operator(p, rows[i].text)) {
            *op = rows[i].op;
            return jinja_advance(p) < 0 ? -1 : 1;
        }
    }
    const bool negated = jinja_is_name(p, "not");
    if (!negated && !jinja_is_name(p, "in"))
        return 0;
    *op = negated ? JO_NOT_IN : JO_IN;
    if (jinja_advance(p) < 0)
        return -1;
    if (negated && !jinja_is_name(p, "in"))
        return jinja_expected(p, "in");
    return negated && jinja_advance(p) < 0 ? -1 : 1;
}

static struct jinja_node *jinja_expression_compare(struct jinja_parser *p)
{
    struct jinja_nodes nodes = {0};
    struct jinja_node *first = level(p, 0);
    struct jinja_node *left = first;
    enum jinja_op op;
    int got = 0;
    while (left && (got = comparison(p, &op)) > 0) {
        struct jinja_node *right = level(p, 0);
        struct jinja_node *step = two(p, JN_BINARY, op, left, right);
        if (!step || jinja_nodes_add(p, &nodes, step) < 0)
            return NULL;
        left = right;
    }
    if (!left || got < 0 || nodes.count == 0)
        return !left || got < 0 ? NULL : first;
    struct jinja_node *node = jinja_node_new(p, JN_COMPARE);
    if (node) {
        node->a = first;
        node->list = nodes.items;
        node->count = nodes.count;
    }
    return node;
}

static struct jinja_node *negation(struct jinja_parser *p)
{
    if (!jinja_is_name(p, "not"))
        return jinja_expression_compare(p);
    struct jinja_node *node = jinja_deeper(p) < 0 ? NULL : jinja_node_new(p, JN_NOT);
    if (!node || jinja_advance(p) < 0 || !(node->a = negation(p)))
        return NULL;
    p->depth--;
    return node;
}

static struct jinja_node *conjunction(struct jinja_parser *p)
{
    struct jinja_node *node = negation(p);
    while (node && jinja_is_name(p, "and"))
        node = jinja_advance(p) < 0 ? NULL : two(p, JN_AND, JO_ADD, node, negation(p));
    return node;
}

struct jinja_node *jinja_disjunction(struct jinja_parser *p)
{
    struct jinja_node *node = conjunction(p);
    while (node && jinja_is_name(p, "or"))
        node = jinja_advance(p) < 0 ? NULL : two(p, JN_OR, JO_ADD, node, conjunction(p));
    return node;
}

struct jinja_node *jinja_tuple(struct jinja_parser *p, bool choices)
{
    struct jinja_nodes nodes = {0};
    struct jinja_node *node = choices ? jinja_expression(p) : jinja_disjunction(p);
    if (!node || !jinja_is_operator(p, ","))
        return node;
    struct jinja_node *tuple = jinja_nodes_add(p, &nodes, node) < 0 ? NULL : jinja_node_new(p, JN_LIST);
    while (tuple && jinja_is_operator(p, ",")) {
        if (jinja_advance(p) < 0)
            return NULL;
        if (p->token.kind == T_END)
            break;
        node = choices ? jinja_expression(p) : jinja_disjunction(p);
        if (!node || jinja_nodes_add(p, &nodes, node) < 0)
            return NULL;
    }
    if (tuple) {
        tuple->negated = true;
        tuple->list = nodes.items;
        tuple->count = nodes.count;
    }
    return tuple;
}

/* Parses "a if b else c". */
struct jinja_node *jinja_expression(struct jinja_parser *p)
{
    if (jinja_deeper(p) < 0)
        return NULL;
    struct jinja_node *node = jinja_disjunction(p);
    while (node && jinja_is_name(p, "if")) {
        node = jinja_advance(p) < 0 ? NULL : two(p, JN_CHOICE, JO_ADD, node, jinja_disjunction(p));
        if (node && jinja_is_name(p, "else")) {
            node->c = jinja_advance(p) < 0 ? NULL : jinja_expression(p);
            node = node->c ? node : NULL;
        }
    }
    p->depth--;
    return node;
}
