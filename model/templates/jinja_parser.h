/* Declarations that the parts of the parser share: tokens (jinja_token.c), expressions (jinja_expression.c),
 * statements (jinja_parse.c). Only the files of model/templates include this header.
 *
 * Functions that return an int return 0, or -1 with p->err; functions that return a node return NULL with
 * p->err.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_PARSER_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_PARSER_H

#include "model/templates/jinja_node.h"

enum token_kind { T_NAME, T_STRING, T_NUMBER, T_OPERATOR, T_END };

struct jinja_token {
    enum token_kind kind;
    struct jv value; /* names, operators and strings as a text; numbers as a number */
    uint32_t line;
};

/* A growing list of nodes. */
struct jinja_nodes {
    struct jinja_node **items;
    size_t count, capacity;
};

struct jinja_parser {
    struct jinja_arena *arena;
    const char *text;
    size_t size, at;
    uint32_t line;
    unsigned open;  /* brackets that are open in the current tag */
    unsigned depth; /* current nesting */
    unsigned loops;
    bool keep_line;           /* the current tag, {% raw %}, removes no line end behind it */
    struct jinja_token token; /* the current token */
    struct err *err;
};

/* Sets p->err to "line N: what "name"" (name may be NULL). Returns -1. */
int jinja_fail(struct jinja_parser *p, enum err_code code, const char *what, const struct jv *name);
/* Sets p->err, which says that the current token stands where 'what' must. Returns -1. */
int jinja_expected(struct jinja_parser *p, const char *what);
/* Makes a node of a kind at the current line. */
struct jinja_node *jinja_node_new(struct jinja_parser *p, enum jinja_kind kind);
/* Appends to a list, whose length is bounded. */
int jinja_nodes_add(struct jinja_parser *p, struct jinja_nodes *nodes, struct jinja_node *node);
/* Counts one more level of nesting, and fails beyond JINJA_DEPTH_MAX; the caller decrements p->depth. */
int jinja_deeper(struct jinja_parser *p);

/* Makes the next token the current one. At the end of the tag it is T_END, and the white space that the tag
 * removes behind it has been skipped. */
int jinja_advance(struct jinja_parser *p);
/* Skips the white space that the end of a tag removes: all of it behind the sign '-', none behind '+', else
 * one line end if it is a block tag. */
void jinja_end_trim(struct jinja_parser *p, char sign, bool block);
/* Returns true if the current token is this name. */
bool jinja_is_name(const struct jinja_parser *p, const char *name);
/* Returns true if the current token is this operator. */
bool jinja_is_operator(const struct jinja_parser *p, const char *text);
/* Requires the current token to be this operator, and advances. */
int jinja_take_operator(struct jinja_parser *p, const char *text);

/* The functions below parse a part of an expression; afterwards the current token is the first one behind it.
 *
 * Parses an expression, "a if b else c" included. */
struct jinja_node *jinja_expression(struct jinja_parser *p);
/* Parses an expression, or several with commas as a tuple; 'choices': with "a if b else c". */
struct jinja_node *jinja_tuple(struct jinja_parser *p, bool choices);
/* Parses an expression without "a if b else c", as behind the `in` of a loop. */
struct jinja_node *jinja_disjunction(struct jinja_parser *p);
/* Parses a name or a constant such as true. */
struct jinja_node *jinja_name_or_constant(struct jinja_parser *p);
/* Parses '.' and a name behind a node. */
struct jinja_node *jinja_attribute(struct jinja_parser *p, struct jinja_node *of);
/* jinja_filter() parses the filter whose name is the current token and applies it to 'of'; jinja_filters()
 * parses all filters, tests and calls behind 'node'. */
struct jinja_node *jinja_filter(struct jinja_parser *p, struct jinja_node *of);
struct jinja_node *jinja_filters(struct jinja_parser *p, struct jinja_node *node);
/* Checks what jinja2 checks when it compiles a template: unknown filters and tests that stand in no
 * condition. Also sets the JINJA_USES_* bits of each macro. */
int jinja_check(struct jinja_parser *p, struct jinja_node *root);
/* Finds the names that are undefined in a scope until it sets them, and stores them in the scope's JN_BLOCK.
 */
int jinja_scopes(struct jinja_parser *p, struct jinja_node *root);
/* Parses '(' … ')' into node->list. */
int jinja_arguments(struct jinja_parser *p, struct jinja_node *node);

#endif
