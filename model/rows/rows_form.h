/* What a row's columns are: which format they make, and the conversation in them. For rows.c alone.
 *
 * A column that says something about how the row is meant (`tools`, `history`, `weight` …) is read by the
 * row's format or refused by its name; any other (an id, a source) may be there.
 */
#ifndef MOTLEY_MODEL_ROWS_ROWS_FORM_H
#define MOTLEY_MODEL_ROWS_ROWS_FORM_H

#include "model/templates/chat.h"
#include "model/rows/row_json.h"
#include "model/job/spec.h"

/* The format of a row: 'asked', or for `auto` what its keys say. *key becomes the key that said it (static).
 * ERR_INVALID: no format's keys are there, those of two are, or a key of the one asked for is not. */
int row_format(const struct row_json *row, enum spec_format asked, enum spec_format *format, const char **key,
               struct err *err);

/* Refuse columns that mean something and that nobody reads in this format. 'chat' may be NULL. 'chosen': by
 * the specification, not by the row's keys. */
int row_columns_check(const struct row_json *row, enum spec_format format, bool chosen,
                      const struct chat_template *chat, struct err *err);

/* A conversation and what else its template is given; owned. */
struct row_chat {
    json_t *messages;
    size_t prompt; /* of the messages, those of `prompt`; 0: there is no `prompt` */
    json_t *tools, *documents, *kwargs;
    struct chat_rest rest; /* borrowed from those */
};

/* Read a row of format chat, sharegpt or prompt-completion-chat. Columns that the template names go to it.
 * row_chat_fini() in any case. */
int row_chat_read(const struct row_json *row, enum spec_format format, const struct chat_template *chat,
                  struct row_chat *out, struct err *err);
/* What of it the template never names, so that it is not in the text: bits, or 0. */
unsigned row_chat_unwritten(const struct row_chat *row, const struct chat_template *chat);
void row_chat_fini(struct row_chat *chat);

#endif
