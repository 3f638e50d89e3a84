/* What a backup asks of the database while it is in use, and what makes a database of one. Blocking. */
#ifndef MOTLEY_STORE_BACKUP_H
#define MOTLEY_STORE_BACKUP_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

/* A transaction that sees the database as it was at one moment, which pg_dump can be told to see as well. */
struct store_snapshot;

/* Begins one. 'wait_ms': how long a server that does not answer is tried again. ERR_UNSUPPORTED: the database
 * has another schema than this program. Returns new, or NULL. */
struct store_snapshot *store_snapshot_create(const char *conninfo, unsigned wait_ms, struct err *err);
void store_snapshot_destroy(struct store_snapshot *snapshot);
/* Its name, for pg_dump --snapshot. */
const char *store_snapshot_name(const struct store_snapshot *snapshot);
/* Calls 'found' for each file that the database knows: 'path' is where a file of a model lies that was
 * registered by reference, else NULL. Ends at the first that returns -1. */
typedef int store_file_fn(void *arg, const char *sha256, uint64_t bytes, const char *path, struct err *err);
int store_snapshot_files(struct store_snapshot *snapshot, store_file_fn *found, void *arg, struct err *err);

/* Whether the database has no tables yet. */
int store_is_empty(const char *conninfo, unsigned wait_ms, bool *empty, struct err *err);

/* Says that files of models which were registered by reference lie among the others now, but for 'left_out'.
 */
int store_take_files_in(const char *conninfo, const char *const *left_out, size_t count, struct err *err);

#endif
