/* How texts of tokens become a text: the decoders of `tokenizers`, each of which makes a list of texts of a
 * list of texts; what the last one leaves is put together.
 *
 * Steps do not change once all are added. A list belongs to one thread at a time.
 */
#ifndef MOTLEY_MODEL_TEXT_DECODE_STEPS_H
#define MOTLEY_MODEL_TEXT_DECODE_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/text/pattern.h"

enum { DECODE_STEPS_MAX = 32, DECODE_TEXT_BYTES = 4096 };

enum decode_kind {
    DECODE_BYTE_LEVEL,    /* characters of GPT-2's alphabet are bytes; all texts become one */
    DECODE_METASPACE,     /* 'from' is a space; with 'flag' it vanishes in the first text */
    DECODE_REPLACE,       /* matches of 'pattern' by 'to' */
    DECODE_BYTE_FALLBACK, /* "<0x0A>" is that byte */
    DECODE_FUSE,          /* all texts become one */
    DECODE_STRIP,         /* 'from', at most 'start' times at the beginning and 'stop' times at the end */
    DECODE_BPE,           /* 'from' (a suffix) is a space, and nothing in the last text */
    DECODE_CTC,           /* no text twice in a row, no 'from'; with 'flag' cleaned, and 'to' is a space */
    DECODE_WORD_PIECE     /* a space before texts that do not begin with 'from'; with 'flag' cleaned */
};

struct decode_step {
    enum decode_kind kind;
    char *from, *to; /* owned, or NULL */
    size_t from_size, to_size;
    struct pattern *pattern; /* owned, or NULL */
    uint32_t start, stop;
    bool flag;
};

struct decode_steps {
    unsigned count;
    struct decode_step *steps; /* owned */
    bool spaced; /* texts are put together with a space between them, as they are where there is no decoder */
};
void decode_steps_fini(struct decode_steps *steps);

/* Add a step: texts (borrowed, in 'step') are copied, its pattern is taken, also on failure. */
int decode_steps_add(struct decode_steps *steps, const struct decode_step *step, struct err *err);

/* Texts one behind the other; text i ends before byte ends[i]. Zero it to begin, with the buf's limit set. */
struct text_list {
    struct buf text;
    size_t *ends;
    size_t count, capacity;
};
void text_list_fini(struct text_list *list);
int text_list_add(struct text_list *list, const char *text, size_t size, struct err *err);

/* Do all steps to 'list' and append the outcome to 'out'. */
int decode_steps_apply(const struct decode_steps *steps, struct text_list *list, struct buf *out,
                       struct err *err);

/* Append bytes as UTF-8, one U+FFFD for each maximal invalid part. */
int decode_lossy(const uint8_t *bytes, size_t size, struct buf *out, struct err *err);
/* Append the bytes that a text in GPT-2's alphabet stands for, or the text as it is when a character of it is
 * outside the alphabet. */
int decode_alphabet(const char *text, size_t size, struct buf *out, struct err *err);

#endif
