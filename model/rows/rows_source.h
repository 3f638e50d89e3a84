/* Iterates over the rows of a data file: JSON lines or one JSON array, either of them also in gzip.
 *
 * Pure; one thread owns a source. Of a gzip file only the inflated text of the current row is in memory.
 */
#ifndef MOTLEY_MODEL_ROWS_ROWS_SOURCE_H
#define MOTLEY_MODEL_ROWS_ROWS_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

struct rows_source;

/* Opens the bytes of a file, which are borrowed until close. For a file of another kind (Parquet, a Git LFS
 * pointer, …) the error names the kind and what to give instead. Writes a new source to *source. */
int rows_source_open(const void *bytes, size_t size, struct rows_source **source, struct err *err);
void rows_source_close(struct rows_source *source);

/* Returns 1 with the next row's text, borrowed until the next call; 0 at the end; -1 if the file is damaged
 * or a row is too big. Blank lines are skipped. */
int rows_source_next(struct rows_source *source, const char **text, size_t *size, struct err *err);

/* Return how messages call the row that was returned last: its unit, "line" or for an array "row", and its
 * number, from 1. */
const char *rows_source_unit(const struct rows_source *source);
uint32_t rows_source_number(const struct rows_source *source);

#endif
