/* Operators of templates, as Python's. Private to model/jinja*.c.
 *
 * Each returns 0 or -1 with the error, without the line.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_OPERATOR_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_OPERATOR_H

#include "model/templates/jinja_node.h"

/* a ~ b */
int jinja_joined(struct jinja_arena *arena, const struct jv *a, const struct jv *b, struct jv *out,
                 struct err *err);
/* a + b and the like: of numbers as Python's, of texts and lists joined. */
int jinja_arithmetic(struct jinja_arena *arena, enum jinja_op op, const struct jv *a, const struct jv *b,
                     struct jv *out, struct err *err);
/* +a, -a */
int jinja_signed(const struct jv *a, bool minus, struct jv *out, struct err *err);
/* Whether a < b and the like, a in b. */
int jinja_compared(struct jinja_arena *arena, enum jinja_op op, const struct jv *a, const struct jv *b,
                   bool *is, struct err *err);
/* 'item' in 'all'. */
int jinja_contains(struct jinja_arena *arena, const struct jv *all, const struct jv *item, bool *in,
                   struct err *err);
/* of[given[0] : given[1] : given[2]], NULL where left out. */
int jinja_sliced(struct jinja_arena *arena, const struct jv *of, const struct jv *const given[3],
                 struct jv *out, struct err *err);
/* The numbers from start up to stop (excluded) by step, as a list of the form JF_RANGE. */
int jinja_range_of(struct jinja_arena *arena, int64_t start, int64_t stop, int64_t step, struct jv *out,
                   struct err *err);

#endif
