/* Parses one row of a data file as Python's json module does, and marks values that a JSON document cannot
 * hold.
 *
 * Python accepts NaN, Infinity, whole numbers of any length, real numbers that overflow, halves of surrogate
 * pairs, and duplicate keys, of which the last counts. Datasets have such values in columns that no format
 * reads, where they do no harm. In the document null, 0 or U+FFFD stands in their place, and row_json_get()
 * refuses a column that contains one.
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
        char key[ROW_JSON_KEY_BYTES]; /* the column's name, cut to fit */
        const char *what;             /* names the kind of value, for messages; static */
    } odd[ROW_JSON_ODD_MAX];
    unsigned odd_count; /* columns with such values; at ROW_JSON_ODD_MAX every column is refused */
};

/* Parses an object of 'size' bytes of UTF-8. ERR_INVALID says where the text is not JSON, or that it is not
 * an object. */
int row_json_parse(const char *text, size_t size, struct row_json *row, struct err *err);
void row_json_fini(struct row_json *row);

/* Writes the column's value to *out, borrowed, or NULL if it is absent or null. ERR_UNSUPPORTED: the column
 * contains a value that the document cannot hold. */
int row_json_get(const struct row_json *row, const char *key, const json_t **out, struct err *err);

/* Returns true if the row has the column and its value is not null, false, "", [] or {}, or cannot be held.
 */
bool row_json_says(const struct row_json *row, const char *key);

#endif
