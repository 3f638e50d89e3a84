/* Decoding turns the texts of tokens into one text. Each step is one of the decoders of `tokenizers` and
 * makes a list of texts from a list of texts; the texts that the last step makes are joined.
 *
 * Steps do not change once all are added. A list of texts belongs to one thread at a time.
 */
#ifndef MOTLEY_MODEL_TEXT_DECODE_STEPS_H
#define MOTLEY_MODEL_TEXT_DECODE_STEPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/text/pattern.h"

/* DECODE_TEXT_BYTES: most bytes of a step's 'from' or 'to' */
enum { DECODE_STEPS_MAX = 32, DECODE_TEXT_BYTES = 4096 };

enum decode_kind {
    /* all texts become one, of the bytes that their characters stand for in GPT-2's alphabet */
    DECODE_BYTE_LEVEL,
    DECODE_METASPACE,     /* 'from' becomes a space; with 'flag' it vanishes in the first text */
    DECODE_REPLACE,       /* matches of 'pattern' become 'to' */
    DECODE_BYTE_FALLBACK, /* a text such as "<0x0A>" becomes its byte */
    DECODE_FUSE,          /* all texts become one */
    /* 'from' is removed, at most 'start' times at the beginning and 'stop' times at the end */
    DECODE_STRIP,
    DECODE_BPE, /* 'from' (a suffix) becomes a space, and vanishes in the last text */
    /* equal texts in a row become one, and 'from' vanishes; with 'flag' spaces before punctuation and
     * contractions vanish, and 'to' becomes a space */
    DECODE_CTC,
    /* a text behind the first loses its prefix 'from', or gets a space before it; with 'flag' spaces before
     * punctuation and contractions vanish */
    DECODE_WORD_PIECE
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
    bool spaced; /* the texts are joined with spaces, as `tokenizers` does where it has no decoder */
};
void decode_steps_fini(struct decode_steps *steps);

/* Add a step. The texts in 'step' are copied; its pattern belongs to the steps from now on, and a failure
 * releases it. */
int decode_steps_add(struct decode_steps *steps, const struct decode_step *step, struct err *err);

/* A list of texts, one behind the other; text i ends before byte ends[i]. Begin with zeroes and the buf's
 * limit set. */
struct text_list {
    struct buf text;
    size_t *ends;
    size_t count, capacity;
};
void text_list_fini(struct text_list *list);
int text_list_add(struct text_list *list, const char *text, size_t size, struct err *err);

/* Apply all steps to 'list', which they change, and append the outcome to 'out'. */
int decode_steps_apply(const struct decode_steps *steps, struct text_list *list, struct buf *out,
                       struct err *err);

/* Append bytes as UTF-8, with one U+FFFD for each maximal invalid part (utf8_decode() says which). */
int decode_lossy(const uint8_t *bytes, size_t size, struct buf *out, struct err *err);
/* Append the bytes that the characters of a text stand for in GPT-2's alphabet, or the text as it is when one
 * of its characters is outside the alphabet. */
int decode_alphabet(const char *text, size_t size, struct buf *out, struct err *err);

#endif
