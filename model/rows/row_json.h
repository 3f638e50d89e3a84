/* One row of a data file as Python's json module reads it, and what of that JSON cannot hold.
 *
 * Python takes NaN, Infinity, whole numbers of any length, real ones that overflow, halves of surrogate pairs
 * and a key twice (the last counts). Data sets have such things in columns that nobody reads; there they cost
 * nothing. Their place in the document holds null, 0 or U+FFFD, and row_json_get() refuses a column that has
 * one.
 */
#ifndef MOTLEY_MODEL_ROWS_ROW_JSON_H
#define MOTLEY_MODEL_ROWS_ROW_JSON_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>

#include "common/err.h"

enum { ROW_JSON_ODD_MAX = 16, ROW_JSON_KEY_BYTES = 64, ROW_JSON_DEPTH_MAX = 128 };

struct row_json {
    json_t *object; /* owned */
    struct {
        char key[ROW_JSON_KEY_BYTES]; /* a column, cut */
        const char *what;
    } odd[ROW_JSON_ODD_MAX];
    unsigned odd_count; /* at ROW_JSON_ODD_MAX: every column counts as odd */
};

/* Parse an object of 'size' bytes of UTF-8. ERR_INVALID says where it is no JSON, or no object. */
int row_json_parse(const char *text, size_t size, struct row_json *row, struct err *err);
void row_json_fini(struct row_json *row);

/* The column's value into *out, borrowed; NULL when it is absent or null. ERR_UNSUPPORTED when it has
 * something that the document does not hold. */
int row_json_get(const struct row_json *row, const char *key, const json_t **out, struct err *err);

/* True when the column is there and is not null, false, "", [] or {}; also when it is odd. */
bool row_json_says(const struct row_json *row, const char *key);

#endif
