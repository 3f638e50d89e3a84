/* Rows being collected, for rows.c alone: append, then turn into immutable rows. */
#ifndef MOTLEY_MODEL_ROWS_ROWS_STORE_H
#define MOTLEY_MODEL_ROWS_ROWS_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/rows/rows.h"

struct rows_store;

/* Returns new, or NULL with ERR_NOMEM. bytes_max bounds the memory of the rows. */
struct rows_store *rows_store_create(size_t bytes_max, struct err *err);
void rows_store_destroy(struct rows_store *store);
/* Copy a row of 'count' tokens. ERR_TOO_BIG beyond the bound. */
int rows_store_add(struct rows_store *store, const int32_t *ids, const int32_t *labels, uint32_t count,
                   struct err *err);
/* The rows collected, new; the store is empty after. */
int rows_store_finish(struct rows_store *store, struct rows **rows, struct err *err);

#endif
