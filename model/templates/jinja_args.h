/* What filters, tests, methods and functions are called with. Private to model/jinja*.c. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_ARGS_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_ARGS_H

#include "model/templates/jinja_value.h"

enum { JINJA_PARAMS_MAX = 4 };

struct jinja_args {
    size_t count, named_count;
    struct jv *items; /* by place */
    struct jv *names, *named;
};

/* What a row is called with: the arguments in the order of its parameters, those not given absent; 'extra'
 * are all of them as they came (select, map, …). */
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
    const char *params[JINJA_PARAMS_MAX]; /* "": by place alone */
    unsigned required;                    /* how many of them must be given */
    bool any_args;                        /* arguments are not matched with params */
    unsigned of;                          /* methods: bits of kinds */
    bool escapes; /* methods: of a Markup: arguments are escaped, and the result is safe */
};

/* Match the arguments with the row's parameters and call it. */
int jinja_builtin_call(const struct jinja_builtin *row, struct jinja_arena *arena, const struct jv *self,
                       const struct jinja_args *args, struct jv *out, struct err *err);
/* A row that is known and not done here: ERR_UNSUPPORTED with its name. */
jinja_fn jinja_not_done;

/* An argument that must be a text, or may be left out (*out NULL). */
int jinja_text_arg(const struct jinja_call *c, size_t index, const struct jv **out);
/* One that must be a whole number, or is left out. */
int jinja_number_arg(const struct jinja_call *c, size_t index, int64_t otherwise, int64_t *out);

#endif
