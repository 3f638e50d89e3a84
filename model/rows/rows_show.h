/* Shows encoded rows to people: a summary of a data file, and a row's text with the learnt part marked. */
#ifndef MOTLEY_MODEL_ROWS_ROWS_SHOW_H
#define MOTLEY_MODEL_ROWS_ROWS_SHOW_H

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/err.h"
#include "model/rows/rows.h"
#include "model/text/tokenizer.h"

/* Appends a summary in one sentence: "12 rows of format chat (by \"messages\"): …". */
int rows_report_say(const struct rows_report *report, uint32_t sequence_tokens, struct buf *out,
                    struct err *err);

/* Appends the text of row 'row' (below rows->count); each learnt part stands between 'begin' and 'end'.
 * Control characters other than line ends and tabs are shown as their pictures (U+2400 …). Without a
 * tokenizer (NULL) the ids are shown. A text longer than bytes_max is cut and ends with "…". */
int rows_show(const struct rows *rows, uint32_t row, const struct tokenizer *tokenizer, const char *begin,
              const char *end, size_t bytes_max, struct buf *out, struct err *err);

/* Appends to 'list' a sentence for each thing that is allowed and yet looks wrong: rows that were dropped,
 * and roles that the chat template does not name. */
int rows_report_doubts(const struct rows_report *report, json_t *list, struct err *err);

#endif
