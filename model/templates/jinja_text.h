/* Methods and filters of texts, for the tables in jinja_call.c. Private to model/jinja*.c. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_TEXT_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_TEXT_H

#include "model/templates/jinja_args.h"

/* Bytes of a text that a template makes. */
enum { JINJA_TEXT_MAX = 64 << 20 };

/* The text of any value, as Python's str() has it. */
int jinja_text_of(struct jinja_arena *arena, const struct jv *value, struct jv *out, struct err *err);
/* An argument that must be a text, or may be left out (*out NULL). */
int jinja_text_arg(const struct jv *arg, const struct jv **out, struct err *err);
/* An argument that is a number, or what it is otherwise. */
int64_t jinja_number_arg(const struct jv *arg, int64_t otherwise);

/* Rows of the tables; each as Python's method of str, or Jinja's filter, of that name. */
jinja_fn jinja_do_strip;
jinja_fn jinja_do_lstrip;
jinja_fn jinja_do_rstrip;
jinja_fn jinja_do_upper;
jinja_fn jinja_do_lower;
jinja_fn jinja_do_capitalize;
jinja_fn jinja_do_title_method;
jinja_fn jinja_do_title_filter;
jinja_fn jinja_do_replace;
jinja_fn jinja_do_split;
jinja_fn jinja_do_splitlines;
jinja_fn jinja_do_startswith;
jinja_fn jinja_do_endswith;
jinja_fn jinja_do_removeprefix;
jinja_fn jinja_do_removesuffix;
jinja_fn jinja_do_find;

#endif
