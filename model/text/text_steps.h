/* What a tokenizer does to a text before it is cut: replacing, prefixing, Unicode normalisation; and where
 * each byte of the outcome came from, so that tokens can be placed in the text that was given.
 *
 * Steps do not change once all are added. Scratch belongs to one thread at a time; a view is good until the
 * scratch it lies in is used again.
 */
#ifndef MOTLEY_MODEL_TEXT_TEXT_STEPS_H
#define MOTLEY_MODEL_TEXT_TEXT_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/digest.h"
#include "common/err.h"
#include "model/text/pattern.h"
#include "model/text/text_characters.h"

enum { TEXT_STEPS_MAX = 64, TEXT_STEP_BYTES = 1 << 20 };

enum text_step_kind {
    TEXT_FORM,          /* a Unicode normalisation form */
    TEXT_REPLACE,       /* every 'from' by 'to' */
    TEXT_REPLACE_FOUND, /* every match of 'pattern' by 'to' */
    TEXT_PREPEND,       /* 'to' before it */
    TEXT_PREPEND_ONCE,  /* unless it begins with 'from' or with 'to' */
    TEXT_PREPEND_FIRST, /* the same, and only before the beginning of the whole text */
    TEXT_STRIP,         /* white space at the beginning ('left') and at the end ('right') goes */
    TEXT_CHARACTERS     /* each character by what text_characters.h says of it */
};

enum text_form { TEXT_NFC, TEXT_NFD, TEXT_NFKC, TEXT_NFKD };

struct text_step {
    enum text_step_kind kind;
    enum text_form form;
    enum character_map map;
    bool left, right;
    char *from, *to; /* owned */
    size_t from_size, to_size;
    struct pattern *pattern; /* owned */
};

struct text_steps {
    unsigned count;
    struct text_step *steps; /* owned */
};
void text_steps_fini(struct text_steps *steps);

/* A stretch of text. Byte i came from place[i] of the text that was given (place[size] is where its end came
 * from), or from base + i when place is NULL. */
struct text_view {
    const char *text;
    size_t size;
    const uint32_t *place;
    uint32_t base;
};

/* Room for what one list of steps makes. Zero it to begin, with the limit of both bufs set. */
struct text_room {
    struct buf text[2];
    uint32_t *place[2];
    size_t place_capacity[2];
    struct pattern_search *search[TEXT_STEPS_MAX];
};
void text_room_fini(struct text_room *room);

/* Add a step; texts are copied and the pattern is taken, also on failure. ERR_TOO_BIG beyond the limits,
 * ERR_UNSUPPORTED for a pattern that matches nothing (0 bytes) at the beginning of texts and puts a text
 * there: `tokenizers` then writes the text's beginning twice as soon as another step changes it. */
int text_steps_add(struct text_steps *steps, enum text_step_kind kind, const char *from, size_t from_size,
                   const char *to, size_t to_size, struct err *err);
int text_steps_add_form(struct text_steps *steps, enum text_form form, struct err *err);
int text_steps_add_pattern(struct text_steps *steps, struct pattern *pattern, const char *to, size_t to_size,
                           struct err *err);
int text_steps_add_map(struct text_steps *steps, enum character_map map, struct err *err);
int text_steps_add_strip(struct text_steps *steps, bool left, bool right, struct err *err);
/* Add them to a digest. */
int text_steps_digest(const struct text_steps *steps, struct digest *digest, struct err *err);

/* Where byte 'at' (at <= size) of the view came from. */
uint32_t text_place(const struct text_view *view, size_t at);
/* Bytes [begin, end) of a view. */
struct text_view text_slice(const struct text_view *view, size_t begin, size_t end);

/* All steps over 'in' (valid UTF-8); *out lies in 'room', or is 'in' when they change nothing. Nothing is
 * put before a text of no bytes. ERR_TOO_BIG beyond the room's limit, ERR_NOMEM, ERR_UNSUPPORTED as above. */
int text_steps_apply(const struct text_steps *steps, const struct text_view *in, struct text_room *room,
                     struct text_view *out, struct err *err);

#endif
