/* A parsed template: a tree of nodes in one arena. Private to model/jinja*.c. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_NODE_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_NODE_H

#include "model/templates/jinja_value.h"

enum jinja_kind {
    /* expressions */
    JN_CONST,   /* value */
    JN_NAME,    /* value: its text */
    JN_LIST,    /* list; a tuple if 'negated' */
    JN_DICT,    /* list: key, value, key, value, … */
    JN_ATTR,    /* a . value */
    JN_ITEM,    /* a [ b ] */
    JN_SLICE,   /* a [ list[0] : list[1] : list[2] ], NULL where left out */
    JN_CALL,    /* a ( list ) */
    JN_FILTER,  /* a | value ( list ) */
    JN_TEST,    /* a is value ( list ), not if 'negated' */
    JN_NAMED,   /* value = a, among arguments and parameters; a NULL: no default */
    JN_SPREAD,  /* *a among arguments; **a if 'negated' */
    JN_NOT,     /* a */
    JN_SIGNED,  /* +a; -a if 'negated' */
    JN_AND,     /* a, b */
    JN_OR,      /* a, b */
    JN_BINARY,  /* a op b */
    JN_COMPARE, /* a op list[0], and list[0] op list[1], …: operands are JN_BINARY with their op and b */
    JN_CHOICE,  /* a if b else c (c NULL: undefined) */
    JN_CAPTURE, /* what body a writes, as a text */
    /* statements */
    JN_BLOCK,      /* list; value: of a scope, names that are undefined until it sets them */
    JN_TEXT,       /* value */
    JN_OUTPUT,     /* a; of a filter block if 'negated': it must be a text */
    JN_FOR,        /* list: targets; a in order, if b; c body, d else; recursive if 'negated' */
    JN_IF,         /* list: condition, body, condition, body, …; a else */
    JN_SET,        /* list: targets (JN_NAME or JN_ATTR of a name); a, or the text of block b */
    JN_MACRO,      /* value; list: JN_NAME or JN_NAMED parameters; a body; of a call block if 'negated' */
    JN_BREAK,      /* out of the loop */
    JN_CONTINUE,   /* to its next round */
    JN_GENERATION, /* a body */
    JN_WITH,       /* list: JN_NAMED of the names; a body */
    JN_CALL_BLOCK, /* b: a JN_CALL, given the JN_MACRO a as its caller */
    JN_AUTOESCAPE, /* a expression, b body */
    JN_REFUSED,    /* value: the name of a statement that is refused when it is reached */
};

enum jinja_op {
    JO_ADD,
    JO_SUB,
    JO_MUL,
    JO_DIV,
    JO_FLOOR,
    JO_MOD,
    JO_POWER,
    JO_CONCAT,
    JO_EQ,
    JO_NE,
    JO_LT,
    JO_LE,
    JO_GT,
    JO_GE,
    JO_IN,
    JO_NOT_IN
};

struct jinja_node {
    enum jinja_kind kind;
    enum jinja_op op;
    bool negated;
    uint8_t uses; /* JN_MACRO: which of the names below its body reads (JINJA_USES_*) */
    uint32_t line;
    struct jv value;
    struct jinja_node *a, *b, *c, *d;
    struct jinja_node **list;
    size_t count;
};

/* Names that a macro has beside its parameters when its body reads them. */
enum { JINJA_USES_CALLER = 1, JINJA_USES_KWARGS = 2, JINJA_USES_VARARGS = 4 };

struct jinja {
    struct jinja_arena arena;
    struct jinja_node *root;
};

#endif
