/* Reads attributes, items and methods of values as jinja2's sandboxed environment does. Only the files of
 * model/templates include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_METHOD_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_METHOD_H

#include "model/templates/jinja_args.h"

/* Computes of.name: an attribute of the value's kind, else a member, else undefined. ERR_INVALID: 'of' itself
 * is undefined. */
int jinja_getattr(struct jinja_arena *arena, const struct jv *of, const struct jv *name, struct jv *out,
                  struct err *err);
/* Computes of.name without looking at members, as the filter attr does. */
int jinja_attribute_alone(struct jinja_arena *arena, const struct jv *of, const struct jv *name,
                          struct jv *out, struct err *err);
/* Computes of[key]: a member, else an attribute, else undefined. */
int jinja_getitem(struct jinja_arena *arena, const struct jv *of, const struct jv *key, struct jv *out,
                  struct err *err);
/* Reads a member by a path of names and numbers separated by dots ("function.name", "0"), as filters accept
 * it. An undefined part becomes 'otherwise', if that is given. */
int jinja_getpath(struct jinja_arena *arena, const struct jv *value, const struct jv *path,
                  const struct jv *otherwise, struct jv *out, struct err *err);
int jinja_method_call(struct jinja_arena *arena, const struct jv_method *method,
                      const struct jinja_args *args, struct jv *out, struct err *err);

#endif
