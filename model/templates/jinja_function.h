/* Functions that a template may call. Only the files of model/templates include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_FUNCTION_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_FUNCTION_H

#include "model/templates/jinja_args.h"

/* Writes the function of that name to *out; returns false if there is none. */
bool jinja_function_find(const struct jv *name, struct jv *out);
/* Calls a value of kind JV_FUNCTION or JV_JOINER. strftime_now uses now_s (seconds since 1970, UTC). */
int jinja_function_call(struct jinja_arena *arena, const struct jv *function, int64_t now_s,
                        const struct jinja_args *args, struct jv *out, struct err *err);

#endif
