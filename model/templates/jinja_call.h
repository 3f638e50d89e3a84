/* Filters, tests and methods of templates: rows of three tables. Private to model/jinja*.c. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_CALL_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_CALL_H

#include "model/templates/jinja_args.h"

struct jinja_builtin {
    const char *name;
    jinja_fn *call;
    const char *params[JINJA_PARAMS_MAX];
    enum jv_kind of; /* methods: of a text or of a map */
    bool any_args;   /* arguments are not matched with params */
};

/* Rows by name, or NULL. A method's name alone does not say of what: several rows may have it, and
 * jinja_method_find finds the one for the kind (JV_UNDEFINED: any). */
const struct jinja_builtin *jinja_filter_find(const struct jv *name);
/* The same of tests. */
const struct jinja_builtin *jinja_test_find(const struct jv *name);
/* The same of methods. */
const struct jinja_builtin *jinja_method_find(const struct jv *name, enum jv_kind of);

/* Call a row: arguments are matched with its parameters. */
int jinja_builtin_call(const struct jinja_builtin *row, struct jinja_arena *arena, const struct jv *self,
                       const struct jinja_args *args, struct jv *out, struct err *err);

/* 'item' in 'all', as Python has it. */
int jinja_contains(const struct jv *all, const struct jv *item, bool *in, struct err *err);

#endif
