/* A parsed template: a tree of nodes in one arena. Only the files of model/templates include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_NODE_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_NODE_H

#include "model/templates/jinja_value.h"

enum jinja_kind {
    /* expressions */
    JN_CONST,   /* the constant 'value' */
    JN_NAME,    /* a variable, whose name is 'value' */
    JN_LIST,    /* a list of the items in 'list'; a tuple if 'negated' */
    JN_DICT,    /* a mapping; 'list' has key, value, key, value, … */
    JN_ATTR,    /* attribute 'value' of 'a' */
    JN_ITEM,    /* member 'b' of 'a', written a[b] */
    JN_SLICE,   /* slice of 'a' by list[0] : list[1] : list[2], NULL if left out */
    JN_CALL,    /* calls 'a' with the arguments in 'list' */
    JN_FILTER,  /* applies the filter 'value' to 'a', with the arguments in 'list' */
    JN_TEST,    /* applies the test 'value' to 'a', with the arguments in 'list'; `is not` if 'negated' */
    JN_NAMED,   /* 'value' = 'a', as argument or parameter; 'a' is NULL if the parameter has no default */
    JN_SPREAD,  /* *a among arguments; **a if 'negated' */
    JN_NOT,     /* not 'a' */
    JN_SIGNED,  /* plus 'a'; minus 'a' if 'negated' */
    JN_AND,     /* 'a' and 'b' */
    JN_OR,      /* 'a' or 'b' */
    JN_BINARY,  /* the operator 'op' applied to 'a' and 'b' */
    JN_COMPARE, /* a op list[0], and list[0] op list[1], …: operands are JN_BINARY with their op and b */
    JN_CHOICE,  /* 'a' if 'b' else 'c' ('c' NULL: undefined) */
    JN_CAPTURE, /* the text that the body 'a' writes */
    /* statements */
    JN_BLOCK,  /* the statements in 'list'; 'value': names that are undefined in this scope until it sets them
                */
    JN_TEXT,   /* writes 'value', a text between tags */
    JN_OUTPUT, /* writes 'a', which must be a text if 'negated' (the output of a filter block) */
    JN_FOR, /* 'list': targets; 'a': iterable; 'b': condition; 'c': body; 'd': else; recursive if 'negated' */
    JN_IF,  /* 'list': condition, body, condition, body, …; 'a': else */
    JN_SET, /* 'list': targets (JN_NAME or JN_ATTR of a name); they get 'a', or the text of block 'b' */
    JN_MACRO, /* 'value': name; 'list': JN_NAME or JN_NAMED parameters; 'a': body; a call block's if 'negated'
               */
    JN_BREAK, /* leaves the loop */
    JN_CONTINUE,   /* goes on with the loop's next item */
    JN_GENERATION, /* {% generation %} with body 'a' */
    JN_WITH,       /* 'list': the JN_NAMED variables; 'a': body */
    JN_CALL_BLOCK, /* calls 'b', a JN_CALL, with the JN_MACRO 'a' as its caller */
    JN_AUTOESCAPE, /* 'a': expression; 'b': body */
    JN_REFUSED,    /* a statement that is refused when it is reached; 'value' is its name */
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
    uint8_t uses; /* JN_MACRO: bits JINJA_USES_* of the names that its body reads */
    uint32_t line;
    struct jv value;
    struct jinja_node *a, *b, *c, *d;
    struct jinja_node **list;
    size_t count;
};

/* Variables that a macro has beside its parameters if its body reads them. */
enum { JINJA_USES_CALLER = 1, JINJA_USES_KWARGS = 2, JINJA_USES_VARARGS = 4 };

struct jinja {
    struct jinja_arena arena;
    struct jinja_node *root;
};

#endif
