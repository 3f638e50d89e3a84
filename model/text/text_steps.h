/* Normalisation is what a tokenizer does to a text before it cuts it: replacing, prefixing and Unicode
 * normalisation. For each byte of the outcome it records the byte of the given text that it came from, so
 * that tokens can be placed in the given text.
 *
 * Steps do not change once all are added. A struct text_room belongs to one thread at a time; a view is valid
 * until the room it lies in is used again.
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

/* TEXT_STEP_BYTES: most bytes of a step's 'from' or 'to' */
enum { TEXT_STEPS_MAX = 64, TEXT_STEP_BYTES = 1 << 20 };

enum text_step_kind {
    TEXT_FORM,          /* applies a Unicode normalisation form */
    TEXT_REPLACE,       /* replaces every 'from' by 'to' */
    TEXT_REPLACE_FOUND, /* replaces every match of 'pattern' by 'to' */
    TEXT_PREPEND,       /* puts 'to' before the text */
    TEXT_PREPEND_ONCE,  /* puts 'to' before a text that begins with neither 'from' nor 'to' */
    TEXT_PREPEND_FIRST, /* as TEXT_PREPEND_ONCE, but only at the beginning of the whole text */
    TEXT_STRIP,         /* removes white space at the beginning ('left') and at the end ('right') */
    TEXT_CHARACTERS     /* maps each character by 'map' (text_characters.h) */
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

/* A stretch of text. Byte i came from byte place[i] of the given text, and its end from place[size]; where
 * 'place' is NULL, byte i came from base + i. */
struct text_view {
    const char *text;
    size_t size;
    const uint32_t *place;
    uint32_t base;
};

/* The memory that one list of steps works in. Begin with zeroes and the limit of both bufs set. */
struct text_room {
    struct buf text[2];
    uint32_t *place[2];
    size_t place_capacity[2];
    struct pattern_search *search[TEXT_STEPS_MAX];
};
void text_room_fini(struct text_room *room);

/* Each function adds a step. Texts are copied; a pattern belongs to the steps from now on, and a failure
 * releases it. ERR_TOO_BIG beyond the limits, ERR_UNSUPPORTED for a pattern with an empty match at the
 * beginning of texts and a 'to' of some bytes: `tokenizers` then writes the text's beginning twice as soon as
 * another step changes it. */
int text_steps_add(struct text_steps *steps, enum text_step_kind kind, const char *from, size_t from_size,
                   const char *to, size_t to_size, struct err *err);
int text_steps_add_form(struct text_steps *steps, enum text_form form, struct err *err);
int text_steps_add_pattern(struct text_steps *steps, struct pattern *pattern, const char *to, size_t to_size,
                           struct err *err);
int text_steps_add_map(struct text_steps *steps, enum character_map map, struct err *err);
int text_steps_add_strip(struct text_steps *steps, bool left, bool right, struct err *err);

/* Returns the offset in the given text that byte 'at' (at <= size) of the view came from. */
uint32_t text_place(const struct text_view *view, size_t at);
/* Returns the view of bytes [begin, end) of a view. */
struct text_view text_slice(const struct text_view *view, size_t begin, size_t end);

/* Apply all steps to 'in' (valid UTF-8). *out lies in 'room', or is 'in' when the steps change nothing. No
 * step changes an empty text, so nothing is put before one. ERR_TOO_BIG beyond the room's limit, ERR_NOMEM,
 * ERR_UNSUPPORTED as for the functions that add steps. */
int text_steps_apply(const struct text_steps *steps, const struct text_view *in, struct text_room *room,
                     struct text_view *out, struct err *err);

#endif
