/* Arguments of filters, tests, methods and functions, and the rows of their tables. Only the files of
 * model/templates include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_ARGS_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_ARGS_H

#include "model/templates/jinja_value.h"

enum { JINJA_PARAMS_MAX = 4 };

struct jinja_args {
    size_t count, named_count;
    struct jv *items; /* positional arguments */
    struct jv *names, *named;
};

/* One call of a table row. args[] has the arguments in the order of the row's parameters, JV_ABSENT if not
 * given; 'extra' has all arguments as written, for rows such as select and map. */
struct jinja_call {
    struct jinja_arena *arena;
    const char *name;
    const struct jv *self, *args;
    const struct jinja_args *extra;
    struct jv *out;
    struct err *err;
};
typedef int jinja_fn(const struct jinja_call *call);

/* A filter, a test or a method. */
struct jinja_builtin {
    const char *name;
    jinja_fn *call;
    const char *params[JINJA_PARAMS_MAX]; /* "": the parameter is positional only */
    unsigned required;                    /* how many of the first parameters must be given */
    bool any_args;                        /* arguments are not matched with params */
    unsigned of;                          /* for methods: bits of the kinds of value that have the method */
    bool escapes; /* methods of a Markup: arguments are escaped, and the result is a Markup */
};

/* Matches the arguments with the row's parameters and calls the row's function. */
int jinja_builtin_call(const struct jinja_builtin *row, struct jinja_arena *arena, const struct jv *self,
                       const struct jinja_args *args, struct jv *out, struct err *err);
/* The function of rows that jinja2 has and Motley does not support; it fails with ERR_UNSUPPORTED and the
 * name. */
jinja_fn jinja_not_done;

/* Reads an argument that must be a text or be left out (*out becomes NULL). */
int jinja_text_arg(const struct jinja_call *c, size_t index, const struct jv **out);
/* Reads an argument that must be a whole number; *out becomes 'otherwise' if it is left out. */
int jinja_number_arg(const struct jinja_call *c, size_t index, int64_t otherwise, int64_t *out);

#endif
