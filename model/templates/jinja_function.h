/* Functions that a template may call. Only the files of model/templates include this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_FUNCTION_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_FUNCTION_H

#include "model/templates/jinja_args.h"

/* The function of that name as a value; false for none. */
bool jinja_function_find(const struct jv *name, struct jv *out);
/* Call a value of kind JV_FUNCTION, or of JV_JOINER. now_s: what strftime_now tells (seconds since 1970,
 * UTC). */
int jinja_function_call(struct jinja_arena *arena, const struct jv *function, int64_t now_s,
                        const struct jinja_args *args, struct jv *out, struct err *err);

#endif
