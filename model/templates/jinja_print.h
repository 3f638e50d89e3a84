/* Values as text: Python's str() and repr(), and JSON. Only the files of model/templates include this header.
 */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_PRINT_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_PRINT_H

#include "model/templates/jinja_value.h"

/* Bytes of a text that a template makes. */
enum { JINJA_TEXT_MAX = 64 << 20 };

/* How json.dumps writes. */
struct jv_json_style {
    bool ascii, sorted;
    bool lines;             /* with line ends, 'indent' once for each level */
    struct jv indent;       /* a text */
    struct jv item, member; /* the separators, texts */
};

/* What Python's str() and repr() say. ERR_INVALID for what has an address of memory in its text. */
int jv_print(const struct jv *value, struct buf *out, struct err *err);
int jv_repr(const struct jv *value, struct buf *out, struct err *err);
/* The same as repr() with the keys of mappings in order, as pprint has it. */
int jv_repr_sorted(const struct jv *value, struct buf *out, struct err *err);
/* Python's json.dumps. ERR_INVALID for what JSON has not. */
int jv_json(const struct jv *value, const struct jv_json_style *style, struct buf *out, struct err *err);
/* A floating point number as repr() writes it. */
int jv_print_real(double real, struct buf *out, struct err *err);

/* str() and repr() as values. The bytes of 'text' as a value, and 'text' freed, if status is 0. */
int jv_text_of(struct jinja_arena *arena, const struct jv *value, struct jv *out, struct err *err);
int jv_repr_of(struct jinja_arena *arena, const struct jv *value, struct jv *out, struct err *err);
int jv_take(struct jinja_arena *arena, struct buf *text, int status, struct jv *out, struct err *err);

#endif
