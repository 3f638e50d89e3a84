/* What filters, tests and methods are called with. Private to model/jinja*.c. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_ARGS_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_ARGS_H

#include "model/templates/jinja_value.h"

enum { JINJA_PARAMS_MAX = 4, JINJA_ARGS_MAX = 16 };

struct jinja_args {
    size_t count; /* by place */
    struct jv items[JINJA_ARGS_MAX];
    size_t named_count;
    struct jv names[JINJA_ARGS_MAX], named[JINJA_ARGS_MAX];
};

/* What a row is called with: the arguments in the order of its parameters, those not given undefined; 'extra'
 * are all of them as they came (select, map, …). */
struct jinja_call {
    struct jinja_arena *arena;
    const struct jv *self, *args;
    const struct jinja_args *extra;
    struct jv *out;
    struct err *err;
};
typedef int jinja_fn(const struct jinja_call *call);

#endif
