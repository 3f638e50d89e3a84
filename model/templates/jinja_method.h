/* Attributes, items and methods of values, as jinja2's sandboxed environment gives them. Private to
 * model/jinja*.c. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_METHOD_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_METHOD_H

#include "model/templates/jinja_args.h"

/* value.name: an attribute of the kind of value, else a member; undefined where there is neither. ERR_INVALID
 * of what is undefined. */
int jinja_getattr(struct jinja_arena *arena, const struct jv *of, const struct jv *name, struct jv *out,
                  struct err *err);
/* The attribute alone, as the filter attr has it. */
int jinja_attribute_alone(struct jinja_arena *arena, const struct jv *of, const struct jv *name,
                          struct jv *out, struct err *err);
/* value[key]: a member, else an attribute. */
int jinja_getitem(struct jinja_arena *arena, const struct jv *of, const struct jv *key, struct jv *out,
                  struct err *err);
/* A member by a path of names and numbers with dots between ("function.name", "0"), as filters take it; a
 * part that is undefined becomes 'otherwise', if that is given. */
int jinja_getpath(struct jinja_arena *arena, const struct jv *value, const struct jv *path,
                  const struct jv *otherwise, struct jv *out, struct err *err);
int jinja_method_call(struct jinja_arena *arena, const struct jv_method *method,
                      const struct jinja_args *args, struct jv *out, struct err *err);

#endif
