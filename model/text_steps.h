/* What a tokenizer does to a text before it is cut: replacing, prefixing, Unicode normalisation; and where
 * each byte of the outcome came from, so that tokens can be placed in the text that was given.
 *
 * Steps are a plain value. Scratch belongs to one thread at a time; a view is good until the scratch it lies
 * in is used again.
 */
#ifndef MOTLEY_MODEL_TEXT_STEPS_H
#define MOTLEY_MODEL_TEXT_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"

enum { TEXT_STEPS_MAX = 8, TEXT_STEP_BYTES = 32 };

enum text_step_kind {
    TEXT_FORM,         /* a Unicode normalisation form */
    TEXT_REPLACE,      /* every 'from' by 'to' */
    TEXT_PREPEND,      /* 'to' before it */
    TEXT_PREPEND_ONCE, /* unless it begins with 'from' or with 'to' */
    TEXT_PREPEND_FIRST /* the same, and only before the beginning of the whole text */
};

enum text_form { TEXT_NFC, TEXT_NFD, TEXT_NFKC, TEXT_NFKD };

struct text_step {
    enum text_step_kind kind;
    enum text_form form;
    char from[TEXT_STEP_BYTES], to[TEXT_STEP_BYTES]; /* NUL-terminated UTF-8 */
};

struct text_steps {
    unsigned count;
    struct text_step steps[TEXT_STEPS_MAX];
};

/* A stretch of text. Byte i came from place[i] of the text that was given (place[size] is where its end came
 * from), or from base + i when place is NULL. */
struct text_view {
    const char *text;
    size_t size;
    const uint32_t *place;
    uint32_t base;
};

/* Room for what steps make. Zero it to begin, with the limit of both bufs set. */
struct text_room {
    struct buf text[2];
    uint32_t *place[2];
    size_t place_capacity[2];
};
void text_room_fini(struct text_room *room);

/* Add a step; 'from' and 'to' are copied. ERR_TOO_BIG beyond the limits. */
int text_steps_add(struct text_steps *steps, enum text_step_kind kind, const char *from, const char *to,
                   struct err *err);
int text_steps_add_form(struct text_steps *steps, enum text_form form, struct err *err);

/* Where byte 'at' (at <= size) of the view came from. */
uint32_t text_place(const struct text_view *view, size_t at);
/* Bytes [begin, end) of a view. */
struct text_view text_slice(const struct text_view *view, size_t begin, size_t end);

/* All steps over 'in' (valid UTF-8); *out lies in 'room', or is 'in' when they change nothing. Nothing is
 * put before a text of no bytes. ERR_TOO_BIG beyond the room's limit, ERR_NOMEM. */
int text_steps_apply(const struct text_steps *steps, const struct text_view *in, struct text_room *room,
                     struct text_view *out, struct err *err);

#endif
