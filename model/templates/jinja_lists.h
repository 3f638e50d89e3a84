/* Filters that order, count and group, for the tables in jinja_builtin.c. Only the files of model/templates
 * include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_LISTS_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_LISTS_H

#include "model/templates/jinja_args.h"

jinja_fn jinja_do_sort, jinja_do_dictsort, jinja_do_unique, jinja_do_min, jinja_do_max, jinja_do_sum;
jinja_fn jinja_do_batch, jinja_do_slice, jinja_do_groupby;
jinja_fn jinja_do_length, jinja_do_list, jinja_do_first, jinja_do_last, jinja_do_reverse, jinja_do_items;
jinja_fn jinja_do_join;

/* Makes an iterator over borrowed items, as the filter 'name' returns one; each item can be taken once. */
int jinja_iterator(struct jinja_arena *arena, struct jv *items, size_t count, const char *name,
                   struct jv *out, struct err *err);

#endif
