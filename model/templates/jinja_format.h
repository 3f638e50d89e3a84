/* Python's formatting of texts: the operator % and str.format. Only the files of model/templates include this
 * header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_FORMAT_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_FORMAT_H

#include "model/templates/jinja_args.h"

/* format % values */
int jinja_percent(struct jinja_arena *arena, const struct jv *format, const struct jv *values, struct jv *out,
                  struct err *err);
/* The method format of str, for the table in jinja_method.c. */
jinja_fn jinja_do_format_method;

#endif
