/* Pre-tokenisers: cutting a text into the pieces that BPE merges within.
 *
 * A splitter is a list of stages over every piece of the one before. A stage cuts, as its split_how says of
 * the matches of its pattern (the names are those of Hugging Face's "behavior"), or changes each piece by
 * steps (text_steps.h). Pieces are views, which know where in the given text each of their bytes stood. A
 * splitter is immutable once its stages are added; scratch belongs to one thread at a time.
 */
#ifndef MOTLEY_MODEL_TEXT_SPLIT_H
#define MOTLEY_MODEL_TEXT_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/digest.h"
#include "common/err.h"
#include "model/text/pattern.h"
#include "model/text/text_steps.h"

struct splitter;
struct split_scratch;

enum { SPLIT_STAGES_MAX = 32 };

enum split_how {
    SPLIT_ISOLATED,      /* matches and what lies between them are pieces of their own */
    SPLIT_REMOVED,       /* what lies between matches; they themselves vanish */
    SPLIT_WITH_PREVIOUS, /* a match ends the piece before it, unless that is a match ("MergedWithPrevious") */
    SPLIT_WITH_NEXT,     /* a match begins the piece behind it, likewise ("MergedWithNext") */
    SPLIT_CONTIGUOUS     /* matches in a row are one piece */
};

/* The patterns of the known families. */
extern const char split_gpt2[], split_llama3[], split_qwen2[], split_tekken[], split_digit[];

/* An empty splitter, new: every text is one piece. */
struct splitter *splitter_create(struct err *err);
void splitter_destroy(struct splitter *splitter);
/* Add a stage that cuts; the pattern is taken, also on failure, and NULL (one that could not be made) is
 * passed on as the failure it is. 'invert': what matches and what lies between change places. ERR_TOO_BIG. */
int splitter_cut(struct splitter *splitter, struct pattern *pattern, enum split_how how, bool invert,
                 struct err *err);
/* A regular expression of the known families, isolated. */
int splitter_add(struct splitter *splitter, const char *pattern, struct err *err);
/* Add a stage that changes pieces; its steps, empty yet, are the splitter's. NULL: ERR_TOO_BIG. */
struct text_steps *splitter_change(struct splitter *splitter, struct err *err);
/* Add the stages to a digest. */
int splitter_digest(const struct splitter *splitter, struct digest *digest, struct err *err);

/* Scratch for one thread, new; for this splitter, all of whose stages are added. */
struct split_scratch *split_scratch_create(const struct splitter *splitter, struct err *err);
void split_scratch_destroy(struct split_scratch *scratch);
/* Give back what an unusually large text has taken. */
void split_scratch_trim(struct split_scratch *scratch);

/* Called for each piece in order; returns 0, or -1 with *err to stop. */
typedef int split_piece_fn(void *arg, const struct text_view *piece, struct err *err);

/* Cut a text, valid UTF-8, and call 'piece' for every piece (none is empty). */
int split_text(const struct splitter *splitter, struct split_scratch *scratch, const struct text_view *text,
               split_piece_fn *piece, void *arg, struct err *err);

#endif
