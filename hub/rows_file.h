/* Which file of a data set's repository holds the rows that a job asks for. Pure; for hub/ alone. */
#ifndef MOTLEY_HUB_ROWS_FILE_H
#define MOTLEY_HUB_ROWS_FILE_H

#include <stddef.h>

#include "hub/hub.h"

/* Writes the index of the file among paths[count]: of those that Motley reads (JSON lines or an array, also
 * in gzip) the one that is named for the part, or to train on the only one. ERR_INVALID when several could be
 * meant, or none is; ERR_UNSUPPORTED when there is Parquet alone. */
int rows_file_choose(const char *id, const char *const *paths, size_t count, enum hub_part part, size_t *file,
                     struct err *err);

#endif
