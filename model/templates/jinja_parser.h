/* What the parts of the parser share: tokens (jinja_token.c), expressions (jinja_expression.c), statements
 * (jinja_parse.c). Private to model/jinja*.c.
 *
 * Functions that return an int give 0 or -1 with p->err; those that return a node give NULL then.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_PARSER_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_PARSER_H

#include "model/templates/jinja_node.h"

enum token_kind { T_NAME, T_STRING, T_NUMBER, T_OPERATOR, T_END };

struct jinja_token {
    enum token_kind kind;
    struct jv value; /* a name, operator or string as a text; a number as it is */
    uint32_t line;
};

/* Nodes being collected. */
struct jinja_nodes {
    struct jinja_node **items;
    size_t count, capacity;
};

struct jinja_parser {
    struct jinja_arena *arena;
    const char *text;
    size_t size, at;
    uint32_t line;
    unsigned open;  /* brackets open in the tag at hand */
    unsigned depth; /* of nesting */
    unsigned loops;
    bool keep_line;           /* the end of the tag at hand takes no line end away: that of raw */
    struct jinja_token token; /* the one looked at */
    struct err *err;
};

/* Set p->err: "line N: what "name"" (name may be NULL). Returns -1. */
int jinja_fail(struct jinja_parser *p, enum err_code code, const char *what, const struct jv *name);
/* Set p->err: that another token stands where 'what' must. Returns -1. */
int jinja_expected(struct jinja_parser *p, const char *what);
/* A node of this kind at the line at hand. */
struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_kind kind);
/* Append to a list of bounded length. */
int jinja_nodes_add(struct jinja_parser *p, struct jinja_nodes *nodes, struct jinja_node *node);
/* Count one level of nesting, which the caller takes back; an error beyond JINJA_DEPTH_MAX. */
int jinja_deeper(struct jinja_parser *p);

/* Look at the next token. At the end of the tag it is T_END, and what the tag takes away behind it is gone.
 */
int jinja_advance(struct jinja_parser *p);
/* The end of a tag with this sign ('-', '+' or another) was passed: take away what it does. block: a newline.
 */
void jinja_end_trim(struct jinja_parser *p, char sign, bool block);
/* Whether the token looked at is this name. */
bool jinja_is_name(const struct jinja_parser *p, const char *name);
/* Whether it is this operator. */
bool jinja_is_operator(const struct jinja_parser *p, const char *text);
/* The token must be this operator; look at the next. */
int jinja_take_operator(struct jinja_parser *p, const char *text);

/* An expression, with "a if b else c"; one without that; a name or constant; an attribute behind '.'; the
 * arguments of a call into a node. The token looked at is the first behind. */
struct jinja_node *jinja_expression(struct jinja_parser *p);
/* An expression, or several with commas between: a tuple. 'choices': with "a if b else c". */
struct jinja_node *jinja_tuple(struct jinja_parser *p, bool choices);
/* Up to `or`, as behind `in` of a loop. */
struct jinja_node *jinja_disjunction(struct jinja_parser *p);
/* A name, or a constant of that name. */
struct jinja_node *jinja_name_or_constant(struct jinja_parser *p);
/* '.' and a name, of a node. */
struct jinja_node *jinja_attribute(struct jinja_parser *p, struct jinja_node *of);
/* The filter whose name is the token looked at, of a node; and filters, tests and calls behind one. */
struct jinja_node *jinja_filter(struct jinja_parser *p, struct jinja_node *of);
struct jinja_node *jinja_filters(struct jinja_parser *p, struct jinja_node *node);
/* What jinja2 finds when it compiles a template: filters and tests that are unknown where no condition stands
 * before them; what names macros read. */
int jinja_check(struct jinja_parser *p, struct jinja_node *root);
/* Which names are undefined in a scope until it sets them: the value of the scope's JN_BLOCK. */
int jinja_scopes(struct jinja_parser *p, struct jinja_node *root);
/* '(' … ')' into node->list. */
int jinja_arguments(struct jinja_parser *p, struct jinja_node *node);

#endif
