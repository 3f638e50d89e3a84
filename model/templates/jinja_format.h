/* Formats texts as Python's operator % and str.format do. Only the files of model/templates include this
 * header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_FORMAT_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_FORMAT_H

#include "model/templates/jinja_args.h"

/* Computes format % values. */
int jinja_percent(struct jinja_arena *arena, const struct jv *format, const struct jv *values, struct jv *out,
                  struct err *err);
/* Implements the method str.format for the table in jinja_method.c. */
jinja_fn jinja_do_format_method;

#endif
