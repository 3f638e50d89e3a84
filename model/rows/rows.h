/* A dataset's text -> encoded rows, and their binary file.
 *
 * Input: one JSON object a line (blank lines are skipped) or one JSON array of them, as Python reads JSON
 * (row_json.h), UTF-8, either of them also in gzip (rows_source.h). Formats, by the keys of a row:
 *
 *   alpaca             instruction, output; input, system, history ([[question, answer], ...])
 *   chat               messages, as apply_chat_template takes them; tools, documents, chat_template_kwargs,
 * and other columns that the template names (chat.h) sharegpt           conversations of from and value (or
 * role and content); system, tools prompt-completion  prompt, completion: two texts, or two lists of
 * messages; the completion is learnt text               text tokens             ids or input_ids; labels
 *
 * Format `auto` looks at a row's keys; every row must be of the first one's. Columns that nobody reads may be
 * there; those that mean something (`tools` of a format that has none, `weight`, ...) are refused by name.
 * Anything else stops with ERR_INVALID or ERR_UNSUPPORTED: "line 17: ...".
 *
 * A row is a list of ids and, for each, a label: the id itself where it is learnt, -100 (ROWS_IGNORE) where
 * not. Label t is predicted from position t-1, so label 0 of a row is never learnt from whatever it says (it
 * is stored as -100). The end token is appended to answers and texts, unless they end with it, and learnt.
 * Rows longer than sequence_tokens are cut at their end and counted; a row with nothing left to learn is
 * dropped and counted. Token 0 is a label like any other.
 *
 * Rows are immutable once made and may be shared between threads.
 */
#ifndef MOTLEY_MODEL_ROWS_ROWS_H
#define MOTLEY_MODEL_ROWS_ROWS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/templates/chat.h"
#include "model/job/spec.h"
#include "model/text/tokenizer.h"

enum {
    ROWS_IGNORE = -100,
    ROWS_LINE_BYTES_MAX = 4 << 20, /* one line of a dataset */
    ROWS_COUNT_MAX = 100000000,
    ROWS_HISTOGRAM_BINS = 64
};

struct rows {
    uint32_t count;
    const uint64_t *offset; /* [count + 1]: row r is ids[offset[r] .. offset[r + 1]) */
    const int32_t *ids;     /* [offset[count]] */
    const int32_t *labels;  /* [offset[count]]: ROWS_IGNORE or the id to be learnt */
};

struct rows_options {
    enum spec_format format;
    enum spec_learn learn;
    uint32_t sequence_tokens;
    uint32_t vocab;                    /* ids at or above are refused (token rows); 0: not checked */
    const struct tokenizer *tokenizer; /* NULL serves token rows only */
    const struct chat_template
        *chat;             /* borrowed, for chat rows; NULL: chat rows are refused with chat_error */
    struct err chat_error; /* why there is no template; ERR_NONE: none was looked for */
    size_t bytes_max;      /* of memory for the encoded rows; 0: 2 GiB */
};

/* What rows have and their chat template never names: apply_chat_template drops it, too. */
enum rows_unwritten {
    ROWS_TOOLS_UNWRITTEN = 1,
    ROWS_DOCUMENTS_UNWRITTEN = 2,
    ROWS_CALLS_UNWRITTEN = 4,
    ROWS_REASONING_UNWRITTEN = 8
};

struct rows_report {
    enum spec_format format; /* what `auto` found */
    const char *found_by;    /* by this key, or "data.format"; static */
    const char *unit;        /* of places in the file: "line", or "row" of an array */
    uint32_t rows;           /* kept */
    uint32_t truncated;      /* kept, but cut */
    uint32_t dropped;        /* nothing to learn */
    uint32_t first_truncated_line, first_dropped_line; /* from 1; 0: none */
    unsigned unwritten;                                /* bits of enum rows_unwritten */
    uint64_t tokens, labelled_tokens;
    uint32_t longest; /* tokens of the longest kept row */
};

/* Fill *options from a specification's data part. The chat template is chosen from data.chat_template, else
 * from the model's own; *chat receives it, new (chat_template_destroy), or NULL when there is none to be had,
 * which is an error only once a chat row comes. 'tokenizer' may be NULL and is borrowed as long as the
 * options are used; 'vocab' is the model's. */
int rows_options_from_spec(const struct spec_data_part *data, const struct tokenizer *tokenizer,
                           uint32_t vocab, struct rows_options *options, struct chat_template **chat,
                           struct err *err);

/* Encode a dataset. 'text' is borrowed for the call. Returns new rows (rows_destroy) and fills *report.
 * ERR_INVALID with the line number for a bad row, ERR_TOO_BIG for a line or a dataset beyond its bound,
 * ERR_INVALID when no row is left. */
int rows_encode(const char *text, size_t size, const struct rows_options *options, struct rows **rows,
                struct rows_report *report, struct err *err);

void rows_destroy(struct rows *rows);

/* The binary form: "MTLYROWS", version, counts, offsets, ids, labels, SHA-256; little-endian; every value
 * checked at load (offsets rising, ids >= 0 and < vocab if vocab > 0, labels ROWS_IGNORE or the id at that
 * place or another id in range, each row with something to learn and at least two tokens). */
int rows_save(const struct rows *rows, struct buf *out, struct err *err);
/* The same, piece by piece: 'put' takes each in order and returns 0 or -1. */
int rows_save_to(const struct rows *rows,
                 int (*put)(void *arg, const void *bytes, size_t size, struct err *err), void *arg,
                 struct err *err);
/* How many bytes that is. */
uint64_t rows_saved_bytes(const struct rows *rows);
/* 'bytes' are borrowed for the call; the rows are a copy. ERR_CORRUPT says what is wrong where. */
int rows_load(const void *bytes, size_t size, uint32_t vocab, struct rows **rows, struct err *err);

/* One row's numbers, as the planner's costs want them. */
struct row_size {
    uint32_t tokens;
    uint32_t labelled; /* labels that are learnt (label 0 never is) */
};
/* Sizes of every row: sizes[0..rows->count). */
void rows_sizes(const struct rows *rows, struct row_size *sizes);

/* Lengths in at most ROWS_HISTOGRAM_BINS bins of equal width, for people and reports: count[b] rows of
 * b*bin_tokens .. (b+1)*bin_tokens - 1 tokens. */
struct rows_histogram {
    uint32_t rows, longest, bins, bin_tokens;
    uint64_t tokens, labelled, sum_sq; /* sum_sq = sum of tokens^2 */
    uint32_t count[ROWS_HISTOGRAM_BINS];
};
void rows_histogram(const struct rows *rows, struct rows_histogram *histogram);

/* The ids of a sample prompt, rendered the way the training rows are: alpaca -> as an instruction, chat -> as
 * a user's message with the beginning of an answer, text and tokens -> as it is. format must not be `auto`:
 * give the report's. Appends to 'ids'. */
int rows_render_prompt(const char *prompt, enum spec_format format, const struct rows_options *options,
                       struct ids *ids, struct err *err);

#endif
