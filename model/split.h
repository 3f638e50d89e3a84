/* Pre-tokenisers: cutting a text into the pieces that BPE merges within.
 *
 * A splitter is a list of stages; each stage cuts every piece of the one before, as its split_how says of the
 * matches of its pattern (the names are those of Hugging Face's "behavior"). Patterns are compiled by
 * PCRE2 with Unicode properties, where \s is exactly Unicode's White_Space, as in Oniguruma and Rust.
 * Matching is bounded by PCRE2's match limit. A splitter is immutable; scratch belongs to one thread at a
 * time.
 */
#ifndef MOTLEY_MODEL_SPLIT_H
#define MOTLEY_MODEL_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/digest.h"
#include "common/err.h"

struct splitter;
struct split_scratch;

enum { SPLIT_STAGES_MAX = 8, SPLIT_PATTERN_BYTES = 4096 };

enum split_how {
    SPLIT_ISOLATED,      /* matches and what lies between them are pieces of their own */
    SPLIT_WITH_PREVIOUS, /* a match ends the piece before it ("MergedWithPrevious") */
    SPLIT_WITH_NEXT      /* a match begins the piece behind it ("MergedWithNext") */
};

/* The patterns of the known families. */
extern const char split_gpt2[], split_llama3[], split_qwen2[], split_tekken[], split_digit[], split_digits[];

/* An empty splitter, new: every text is one piece. */
struct splitter *splitter_create(struct err *err);
void splitter_destroy(struct splitter *splitter);
/* Add a stage; 'pattern' is copied, and is no pattern but the very text to be found if 'literal'.
 * ERR_UNSUPPORTED when PCRE2 does not take it, ERR_TOO_BIG. */
int splitter_add(struct splitter *splitter, const char *pattern, size_t size, enum split_how how,
                 bool literal, struct err *err);
/* Add the patterns to a digest. */
int splitter_digest(const struct splitter *splitter, struct digest *digest, struct err *err);

/* Scratch for one thread, new; for this splitter, all of whose stages are added. */
struct split_scratch *split_scratch_create(const struct splitter *splitter, struct err *err);
void split_scratch_destroy(struct split_scratch *scratch);

/* Called for each piece in order; returns 0, or -1 with *err to stop. */
typedef int split_piece_fn(void *arg, const char *piece, size_t size, struct err *err);

/* Cut text[0..size), valid UTF-8, and call 'piece' for every piece (none is empty). */
int split_text(const struct splitter *splitter, struct split_scratch *scratch, const char *text, size_t size,
               split_piece_fn *piece, void *arg, struct err *err);

#endif
