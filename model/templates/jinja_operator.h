/* Operators of templates, and the functions that make values. Private to model/jinja*.c.
 *
 * Each returns 0 or -1 with the error, without the line.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_OPERATOR_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_OPERATOR_H

#include "model/templates/jinja_call.h"
#include "model/templates/jinja_node.h"

/* a ~ b */
int jinja_joined(struct jinja_arena *arena, const struct jv *a, const struct jv *b, struct jv *out,
                 struct err *err);
/* a + b and the like: of numbers as Python's, of texts and lists joined. */
int jinja_arithmetic(struct jinja_arena *arena, enum jinja_op op, const struct jv *a, const struct jv *b,
                     struct jv *out, struct err *err);
/* Whether a < b and the like, a in b. */
int jinja_compared(struct jinja_arena *arena, enum jinja_op op, const struct jv *a, const struct jv *b,
                   bool *is, struct err *err);
/* of[given[0] : given[1] : given[2]], NULL where left out. */
int jinja_sliced(struct jinja_arena *arena, const struct jv *of, const struct jv *const given[3],
                 struct jv *out, struct err *err);
/* What `loop` is in round 'i' of a loop over 'list': a map. */
int jinja_loop(struct jinja_arena *arena, const struct jv_list *list, size_t i, struct jv *out,
               struct err *err);
/* range(…), as a list. */
int jinja_range(struct jinja_arena *arena, const struct jinja_args *args, struct jv *out, struct err *err);
/* namespace(…), or dict(…) unless it 'changes': of names, or of a mapping. */
int jinja_map(struct jinja_arena *arena, const struct jinja_args *args, bool changes, struct jv *out,
              struct err *err);
/* strftime_now(format) at now_s (seconds since 1970, UTC). 'format' may be NULL: an error. */
int jinja_day(struct jinja_arena *arena, int64_t now_s, const struct jv *format, struct jv *out,
              struct err *err);

#endif
