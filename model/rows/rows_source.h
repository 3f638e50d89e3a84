/* The rows of a data file, one after the other: JSON lines, or one JSON array, either of them also in gzip.
 *
 * Pure; one thread owns a source. Memory: of a gzip file what is inflated of the row in hand.
 */
#ifndef MOTLEY_MODEL_ROWS_ROWS_SOURCE_H
#define MOTLEY_MODEL_ROWS_ROWS_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct rows_source;

/* Open the bytes of a file, borrowed until close. A file that is something else (Parquet, a Git LFS pointer,
 * …) is refused by what it is, and with what to give instead. Returns new. */
int rows_source_open(const void *bytes, size_t size, struct rows_source **source, struct err *err);
void rows_source_close(struct rows_source *source);

/* The next row's text, borrowed until the next call: 1; 0 at the end; -1: the file is damaged or a row is too
 * big. Blank lines are skipped. */
int rows_source_next(struct rows_source *source, const char **text, size_t *size, struct err *err);

/* What the row that came last is called in messages: "line" and its number, from 1, or for an array "row" and
 * its place, from 1. */
const char *rows_source_unit(const struct rows_source *source);
uint32_t rows_source_number(const struct rows_source *source);

#endif
