/* Filters that order, count and group, and tests that compare, for the tables in jinja_call.c. Private to
 * model/jinja*.c.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_LISTS_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_LISTS_H

#include "model/templates/jinja_args.h"

/* The member of a value by a dotted path of names ("function.name", "0"), as Jinja's filters take it;
 * undefined where there is none. */
struct jv jinja_member(const struct jv *value, const struct jv *path);

/* Rows of the tables; each as Jinja's filter or test of that name. */
jinja_fn jinja_do_sort, jinja_do_dictsort, jinja_do_unique, jinja_do_min, jinja_do_max, jinja_do_sum;
jinja_fn jinja_do_batch, jinja_do_slice, jinja_do_groupby;
jinja_fn jinja_do_float, jinja_do_abs, jinja_do_round, jinja_do_attr;
jinja_fn jinja_do_wordcount, jinja_do_indent, jinja_do_center, jinja_do_escape;
jinja_fn jinja_is_less, jinja_is_less_equal, jinja_is_greater, jinja_is_greater_equal;
jinja_fn jinja_is_lower, jinja_is_upper, jinja_is_divisible;

#endif
