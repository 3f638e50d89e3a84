/* What hashing a model's files gave, kept while the files have not changed: so that registering a large model
 * by reference again (every submit names it) does not read it again.
 *
 * A file counts as unchanged while device, inode, size and both times (modification, status change) are the
 * same; the last cannot be set back by a user. Bounded; the oldest goes. Shared by pool threads: it locks.
 */
#ifndef MOTLEY_API_BLOBS_KNOWN_H
#define MOTLEY_API_BLOBS_KNOWN_H

#include <stdbool.h>

#include "common/err.h"
#include "model/files/manifest.h"

struct known_files;

/* Returns new, or NULL with ERR_NOMEM. */
struct known_files *known_files_create(struct err *err);
void known_files_destroy(struct known_files *known);

/* The manifest of the file at 'path' if it is known and unchanged: a copy (manifest_fini). */
bool known_files_find(struct known_files *known, const char *path, struct manifest *manifest);
/* Remember it, as of the moment 'since_ns' (clock_wall_us()*1000) before it was read: a file changed since
 * then is not remembered. */
void known_files_keep(struct known_files *known, const char *path, int64_t since_ns,
                      const struct manifest *manifest);

#endif
