/* Methods of strings as Python's str has them, for the table in jinja_method.c. Only the files of
 * model/templates include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_TEXT_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_TEXT_H

#include "model/templates/jinja_args.h"

/* Replaces HTML's five special characters by entities; a Markup stays as it is. The result is a Markup. */
int jinja_escaped(struct jinja_arena *arena, const struct jv *value, struct jv *out, struct err *err);
/* Pads a text to 'width' characters. 'side' says where the text stands: -1 left, 1 right, 0 in the middle. */
int jinja_padded(struct jinja_arena *arena, const struct jv *text, int64_t width, char fill, int side,
                 struct jv *out, struct err *err);
/* Makes a list of the text's lines, with their line ends if 'ends', as str.splitlines does. */
int jinja_lines(struct jinja_arena *arena, const struct jv *text, bool ends, struct jv *out, struct err *err);

jinja_fn jinja_do_strip, jinja_do_lstrip, jinja_do_rstrip;
jinja_fn jinja_do_replace;
jinja_fn jinja_do_split, jinja_do_rsplit, jinja_do_splitlines, jinja_do_partition, jinja_do_rpartition;
jinja_fn jinja_do_startswith, jinja_do_endswith, jinja_do_removeprefix, jinja_do_removesuffix;
jinja_fn jinja_do_find, jinja_do_rfind, jinja_do_index, jinja_do_rindex, jinja_do_count;
jinja_fn jinja_do_center, jinja_do_ljust, jinja_do_rjust, jinja_do_zfill, jinja_do_expandtabs;
jinja_fn jinja_do_join_method;

#endif
