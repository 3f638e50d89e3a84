/* Tests (`is …`), for the table in jinja_builtin.c. Only the files of model/templates include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_TEST_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_TEST_H

#include "model/templates/jinja_args.h"

/* Returns the test of that name, or NULL. */
const struct jinja_builtin *jinja_test_find(const struct jv *name);

#endif
