/* Tells a row's format by its columns and reads the conversation in them. Only rows.c includes this header.
 *
 * A column that changes a row's meaning (`tools`, `history`, `weight` …) is read by the row's format or
 * refused by its name; any other column (an id, a source) is named as one that is not read.
 */
#ifndef MOTLEY_MODEL_ROWS_ROWS_FORM_H
#define MOTLEY_MODEL_ROWS_ROWS_FORM_H

#include "model/templates/chat.h"
#include "model/rows/row_json.h"
#include "model/rows/rows.h"
#include "model/job/spec.h"

/* Finds the format of a row: 'asked', or for `auto` the format whose keys the row has. *key becomes the key
 * that told it (static). ERR_INVALID: the row has the keys of no format or of two, or lacks a key of the
 * format that was asked for. */
int row_format(const struct row_json *row, enum spec_format asked, enum spec_format *format, const char **key,
               struct err *err);

/* Refuses columns that change a row's meaning and that this format does not read. 'chat' may be NULL.
 * 'chosen': the specification names the format; otherwise the row's keys told it. */
int row_columns_check(const struct row_json *row, enum spec_format format, bool chosen,
                      const struct chat_template *chat, struct err *err);

/* A conversation and the other variables that its template receives; all are owned. */
struct row_chat {
    json_t *messages;
    size_t
        prompt; /* how many of the messages, from the first, are those of `prompt`; 0: no column `prompt` */
    json_t *tools, *documents, *kwargs;
    struct chat_rest rest; /* borrowed from the fields above */
};

/* Reads a row of format chat, sharegpt or prompt-completion with messages. Columns that the template names
 * become variables of it. The caller releases *out with row_chat_fini(), also after an error. */
int row_chat_read(const struct row_json *row, enum spec_format format, const struct chat_template *chat,
                  struct row_chat *out, struct err *err);
/* Returns the first message's role that is none of the usual ones and not in the template's text, borrowed;
 * or NULL. A template writes it as it is, or leaves its message out. */
const char *row_chat_unknown_role(const struct row_chat *row, const struct chat_template *chat);
/* Adds the parts of the row that the template never names to the list of names. */
void row_chat_unwritten(const struct row_chat *row, const struct chat_template *chat,
                        char names[ROWS_NAMES_BYTES]);
/* Adds the columns that the format does not read to the list of names. 'chat' may be NULL. */
void row_columns_unread(const struct row_json *row, enum spec_format format, const struct chat_template *chat,
                        char names[ROWS_NAMES_BYTES]);
void row_chat_fini(struct row_chat *chat);

#endif
