/* Pre-tokenisers cut a text into pieces; BPE merges only within a piece.
 *
 * A splitter is a list of stages; each stage works on every piece that the stage before it made. A stage
 * either cuts at the matches of its pattern, in the way that its split_how says (the names are those of
 * Hugging Face's "behavior"), or changes each piece by steps (text_steps.h). A piece is a view, which knows
 * where in the given text each of its bytes stood. A splitter is immutable once its stages are added; a
 * scratch belongs to one thread at a time.
 */
#ifndef MOTLEY_MODEL_TEXT_SPLIT_H
#define MOTLEY_MODEL_TEXT_SPLIT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/text/pattern.h"
#include "model/text/text_steps.h"

struct splitter;
struct split_scratch;

enum { SPLIT_STAGES_MAX = 32 };

enum split_how {
    SPLIT_ISOLATED, /* each match, and each text between two matches, is a piece */
    SPLIT_REMOVED,  /* the texts between matches are pieces; the matches vanish */
    /* a match is joined to the piece before it, unless that is a match ("MergedWithPrevious") */
    SPLIT_WITH_PREVIOUS,
    /* a match is joined to the piece behind it, unless that is a match ("MergedWithNext") */
    SPLIT_WITH_NEXT,
    SPLIT_CONTIGUOUS /* matches that touch are one piece */
};

/* The regular expressions by which the known families of models split. */
extern const char split_gpt2[], split_llama3[], split_qwen2[], split_tekken[], split_digit[];

/* Returns a new splitter without stages, for which every text is one piece, or NULL with ERR_NOMEM. */
struct splitter *splitter_create(struct err *err);
void splitter_destroy(struct splitter *splitter);
/* Add a stage that cuts. The splitter owns the pattern from now on; a failure releases it. With a NULL
 * pattern, which could not be made, the call fails and leaves *err as it is. 'invert' exchanges matches and
 * the texts between them. ERR_TOO_BIG beyond SPLIT_STAGES_MAX stages. */
int splitter_cut(struct splitter *splitter, struct pattern *pattern, enum split_how how, bool invert,
                 struct err *err);
/* Add a stage that cuts at a regular expression with SPLIT_ISOLATED. */
int splitter_add(struct splitter *splitter, const char *pattern, struct err *err);
/* Add a stage that changes pieces. Returns its steps, which are still empty and belong to the splitter, or
 * NULL with ERR_TOO_BIG. */
struct text_steps *splitter_change(struct splitter *splitter, struct err *err);

/* Returns a new scratch for one thread and this splitter, which gets no further stages, or NULL with
 * ERR_NOMEM. */
struct split_scratch *split_scratch_create(const struct splitter *splitter, struct err *err);
void split_scratch_destroy(struct split_scratch *scratch);
/* Release the memory that an unusually large text has needed. */
void split_scratch_trim(struct split_scratch *scratch);

/* A function that is called for each piece in order. It returns 0, or -1 with *err to stop. */
typedef int split_piece_fn(void *arg, const struct text_view *piece, struct err *err);

/* Cut a text of valid UTF-8 and call 'piece' for every piece; no piece is empty. */
int split_text(const struct splitter *splitter, struct split_scratch *scratch, const struct text_view *text,
               split_piece_fn *piece, void *arg, struct err *err);

#endif
