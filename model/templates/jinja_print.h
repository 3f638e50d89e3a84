/* Writes values as text: as Python's str() and repr(), and as JSON. Only the files of model/templates include
 * this header. */
#ifndef MOTLEY_MODEL_TEMPLATES_JINJA_PRINT_H
#define MOTLEY_MODEL_TEMPLATES_JINJA_PRINT_H

#include "model/templates/jinja_value.h"

/* Limit on the bytes of one text that a template makes. */
enum { JINJA_TEXT_MAX = 64 << 20 };

/* The arguments of json.dumps. */
struct jv_json_style {
    bool ascii, sorted;
    bool lines;             /* each item stands on a line of its own, behind 'indent' once per level */
    struct jv indent;       /* a text */
    struct jv item, member; /* the separators, texts */
};

/* Append what Python's str() and repr() return. They refuse values whose text contains a memory address. */
int jv_print(const struct jv *value, struct buf *out, struct err *err);
int jv_repr(const struct jv *value, struct buf *out, struct err *err);
/* Appends repr() with the keys of mappings sorted, as pprint does. */
int jv_repr_sorted(const struct jv *value, struct buf *out, struct err *err);
/* Appends what Python's json.dumps returns. ERR_INVALID: JSON cannot represent the value. */
int jv_json(const struct jv *value, const struct jv_json_style *style, struct buf *out, struct err *err);
/* Appends a floating point number as repr() writes it. */
int jv_print_real(double real, struct buf *out, struct err *err);

/* jv_text_of() and jv_repr_of() write str(value) and repr(value) to *out. If status is 0, jv_take() writes
 * the bytes of 'text' as a text to *out; it frees 'text' in any case. */
int jv_text_of(struct jinja_arena *arena, const struct jv *value, struct jv *out, struct err *err);
int jv_repr_of(struct jinja_arena *arena, const struct jv *value, struct jv *out, struct err *err);
int jv_take(struct jinja_arena *arena, struct buf *text, int status, struct jv *out, struct err *err);

#endif
