/* Encodes a dataset's text into rows of token ids, and stores encoded rows in a binary file.
 *
 * Input: one JSON object a line (blank lines are skipped) or one JSON array of them, as Python reads JSON
 * (row_json.h), UTF-8, either of them also in gzip (rows_source.h). Formats, by the keys of a row:
 *
 *   - alpaca: instruction, output; input, system, history ([[question, answer], ...]);
 *   - chat: messages, as apply_chat_template takes them; tools, documents, chat_template_kwargs, and other
 *     columns that the template names (chat.h);
 *   - sharegpt: conversations of from and value (or role and content); system, tools;
 *   - prompt-completion: prompt and completion, two texts or two lists of messages; the completion is learnt;
 *   - text: text;
 *   - tokens: ids or input_ids; labels.
 *
 * Format `auto` looks at the first row's keys, and every later row must have the same format. A row may have
 * columns that no format reads; columns that change a row's meaning (`tools` in a format without tools,
 * `weight`, ...) are refused by name. Every other fault ends with ERR_INVALID or ERR_UNSUPPORTED: "line 17:
 * ...".
 *
 * A row is a list of ids and, for each id, a label: the id itself if it is learnt, else -100 (ROWS_IGNORE).
 * Label t is predicted from position t-1, so label 0 of a row is never learnt and is stored as -100. The end
 * token is appended to answers and texts that do not end with it, and is learnt. Rows longer than
 * sequence_tokens are cut at their end and counted; a row without a learnt label is dropped and counted.
 * Token 0 is a label like any other.
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
    ROWS_LINE_BYTES_MAX = 4 << 20, /* bytes of one line of a dataset */
    ROWS_COUNT_MAX = 100000000,
    ROWS_HISTOGRAM_BINS = 64
};

struct rows {
    uint32_t count;
    const uint64_t *offset; /* [count + 1]: row r is ids[offset[r] .. offset[r + 1]) */
    const int32_t *ids;     /* [offset[count]]: token ids */
    const int32_t *labels;  /* [offset[count]]: ROWS_IGNORE or the id to be learnt */
};

struct rows_options {
    enum spec_format format;
    enum spec_learn learn;
    uint32_t sequence_tokens;
    uint32_t vocab;                    /* ids from this number on are refused (token rows); 0: not checked */
    const char *day;                   /* data.day, or NULL; borrowed */
    const struct tokenizer *tokenizer; /* NULL: only rows of format tokens can be encoded */
    const struct chat_template
        *chat;             /* borrowed, for chat rows; NULL: chat rows are refused with chat_error */
    struct err chat_error; /* why there is no template; ERR_NONE: none was looked for */
    size_t bytes_max;      /* limit on the encoded rows' memory; 0: 2 GiB */
};

enum { ROWS_NAMES_BYTES = 300, ROWS_ROLE_BYTES = 41 };

struct rows_report {
    enum spec_format format; /* the rows' format, which `auto` may have found */
    const char *found_by;    /* the key that told the format, or "data.format"; static */
    const char *unit;        /* what places in the file count: "line", or "row" of an array; static */
    uint32_t rows;           /* rows that were kept */
    uint32_t truncated;      /* kept rows that were cut at sequence_tokens */
    uint32_t dropped;        /* rows without a learnt label */
    uint32_t unknown_roles;  /* rows with a message of a role that is not usual and not in the template */
    /* places in `unit`, from 1; 0: none */
    uint32_t first_truncated_line, first_dropped_line, first_unknown_line;
    char unknown_role[ROWS_ROLE_BYTES]; /* the first such role, in printable ASCII */
    /* Names with ", " between them, each once: keys of messages, tools and documents that the chat template
     * never names, so that they are not in the text (apply_chat_template drops them, too); and columns that
     * no format reads. */
    char unwritten[ROWS_NAMES_BYTES], unread[ROWS_NAMES_BYTES];
    char day[16]; /* what the chat template's strftime_now tells, or "" if it does not name it */
    uint64_t tokens, labelled_tokens;
    uint32_t longest; /* tokens of the longest kept row */
};

/* Fills *options from a specification's data part. The chat template is data.chat_template, else the model's
 * own. *chat receives it, new (chat_template_destroy), or NULL if neither exists; that is an error only when
 * a chat row comes. 'tokenizer' may be NULL and is borrowed as long as the options are used; 'vocab' is the
 * size of the model's vocabulary. */
int rows_options_from_spec(const struct spec_data_part *data, const struct tokenizer *tokenizer,
                           uint32_t vocab, struct rows_options *options, struct chat_template **chat,
                           struct err *err);

/* Encodes a dataset. 'text' is borrowed for the call. Writes new rows (rows_destroy) to *rows and fills
 * *report. ERR_INVALID names the line of a bad row, or says that no row is left; ERR_TOO_BIG: a line or the
 * dataset exceeds its limit. */
int rows_encode(const char *text, size_t size, const struct rows_options *options, struct rows **rows,
                struct rows_report *report, struct err *err);

void rows_destroy(struct rows *rows);

/* Appends the binary form: "MTLYROWS", version, counts, offsets, ids, labels, SHA-256; little-endian. Every
 * value is checked when it is loaded: offsets rise, ids are >= 0 and < vocab if vocab > 0, labels are
 * ROWS_IGNORE or an id in range, and each row has at least two tokens and one learnt label. */
int rows_save(const struct rows *rows, struct buf *out, struct err *err);
/* Writes the bytes of rows_save() piece by piece: 'put' takes each piece in order and returns 0 or -1. */
int rows_save_to(const struct rows *rows,
                 int (*put)(void *arg, const void *bytes, size_t size, struct err *err), void *arg,
                 struct err *err);
/* Returns how many bytes rows_save() appends. */
uint64_t rows_saved_bytes(const struct rows *rows);
/* Loads the binary form. 'bytes' are borrowed for the call; the rows are a copy. ERR_CORRUPT says which value
 * is wrong and where. */
int rows_load(const void *bytes, size_t size, uint32_t vocab, struct rows **rows, struct err *err);

/* The size of one row, from which the planner computes costs. */
struct row_size {
    uint32_t tokens;
    uint32_t labelled; /* number of learnt labels; label 0 is never learnt */
};
/* Writes the size of every row to sizes[0..rows->count). */
void rows_sizes(const struct rows *rows, struct row_size *sizes);

/* A histogram of row lengths for people and reports, in at most ROWS_HISTOGRAM_BINS bins of equal width:
 * count[b] rows have b*bin_tokens to (b+1)*bin_tokens - 1 tokens. */
struct rows_histogram {
    uint32_t rows, longest, bins, bin_tokens;
    uint64_t tokens, labelled, sum_sq; /* sum_sq = sum of tokens^2 */
    uint32_t count[ROWS_HISTOGRAM_BINS];
};
void rows_histogram(const struct rows *rows, struct rows_histogram *histogram);

/* Appends the ids of a sample prompt to 'ids', rendered as the training rows are: for alpaca as an
 * instruction, for chat as a user's message followed by the beginning of an answer, for text and tokens as it
 * is. format must not be `auto`: pass the one in the report. */
int rows_render_prompt(const char *prompt, enum spec_format format, const struct rows_options *options,
                       struct ids *ids, struct err *err);

#endif
