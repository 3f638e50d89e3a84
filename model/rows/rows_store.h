/* Collects rows and then turns them into immutable rows. Only rows.c includes this header. */
#ifndef MOTLEY_MODEL_ROWS_ROWS_STORE_H
#define MOTLEY_MODEL_ROWS_ROWS_STORE_H

#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/rows/rows.h"

struct rows_store;

/* Returns a new store, or NULL with ERR_NOMEM. bytes_max bounds the memory of the rows. */
struct rows_store *rows_store_create(size_t bytes_max, struct err *err);
void rows_store_destroy(struct rows_store *store);
/* Copies a row of 'count' tokens. ERR_TOO_BIG: the rows would take more than bytes_max. */
int rows_store_add(struct rows_store *store, const int32_t *ids, const int32_t *labels, uint32_t count,
                   struct err *err);
/* Writes the collected rows, new, to *rows and empties the store. */
int rows_store_finish(struct rows_store *store, struct rows **rows, struct err *err);

#endif
