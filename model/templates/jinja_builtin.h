/* Finds filters and tests by name. Only the files of model/templates include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_BUILTIN_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_BUILTIN_H

#include "model/templates/jinja_args.h"

/* These functions return the row of the table of filters, or of tests, with that name; NULL if there is
 * none. */
const struct jinja_builtin *jinja_filter_row(const struct jv *name);
const struct jinja_builtin *jinja_test_row(const struct jv *name);

#endif
