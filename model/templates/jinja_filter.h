/* Filters of texts, numbers and JSON for the table in jinja_builtin.c. Only the files of model/templates
 * include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_FILTER_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_FILTER_H

#include "model/templates/jinja_args.h"

/* Defined in jinja_number.c. */
jinja_fn jinja_do_int, jinja_do_float, jinja_do_abs, jinja_do_round, jinja_do_filesizeformat;
/* Defined in jinja_filter.c. */
jinja_fn jinja_do_default, jinja_do_attr, jinja_do_tojson, jinja_do_pprint, jinja_do_xmlattr,
    jinja_do_urlencode;
jinja_fn jinja_do_string, jinja_do_safe, jinja_do_escape, jinja_do_forceescape, jinja_do_striptags;
jinja_fn jinja_do_trim, jinja_do_replace_filter, jinja_do_format, jinja_do_center_filter, jinja_do_indent;
jinja_fn jinja_do_truncate, jinja_do_wordwrap, jinja_do_wordcount;

#endif
