/* The operators of templates, which compute as Python's do. Only the files of model/templates include this
 * header.
 *
 * Each function returns 0, or -1 with an error that does not name the line yet.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_OPERATOR_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_OPERATOR_H

#include "model/templates/jinja_node.h"

/* Computes a ~ b. */
int jinja_joined(struct jinja_arena *arena, const struct jv *a, const struct jv *b, struct jv *out,
                 struct err *err);
/* Computes a + b and the other arithmetic operators; + joins texts and lists. */
int jinja_arithmetic(struct jinja_arena *arena, enum jinja_op op, const struct jv *a, const struct jv *b,
                     struct jv *out, struct err *err);
/* Computes +a or -a. */
int jinja_signed(const struct jv *a, bool minus, struct jv *out, struct err *err);
/* Writes to *is whether a < b, a in b, and so on. */
int jinja_compared(struct jinja_arena *arena, enum jinja_op op, const struct jv *a, const struct jv *b,
                   bool *is, struct err *err);
/* Writes to *in whether 'all' contains 'item'. */
int jinja_contains(struct jinja_arena *arena, const struct jv *all, const struct jv *item, bool *in,
                   struct err *err);
/* Computes of[given[0] : given[1] : given[2]]; a part that is left out is NULL. */
int jinja_sliced(struct jinja_arena *arena, const struct jv *of, const struct jv *const given[3],
                 struct jv *out, struct err *err);
/* Makes a list of the form JF_RANGE: the numbers from start to stop, excluded, by step. */
int jinja_range_of(struct jinja_arena *arena, int64_t start, int64_t stop, int64_t step, struct jv *out,
                   struct err *err);

#endif
