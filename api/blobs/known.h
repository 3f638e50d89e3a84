/* Remembers the hashes of a model's files while the files do not change. So registering a large model by
 * reference again, as every submit does, does not read its files again.
 *
 * A file counts as unchanged while its device, inode, size and both times (modification and status change)
 * are the same; a user cannot set the status-change time back. Bounded: the oldest entry is dropped. Shared
 * by pool threads under a lock.
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

/* Copies the manifest of the file at 'path' if the file is known and unchanged (release it with
 * manifest_fini). */
bool known_files_find(struct known_files *known, const char *path, struct manifest *manifest);
/* Remembers a manifest. 'since_ns' is the wall-clock time (clock_wall_us()*1000) before the file was read; a
 * file that changed after it is not remembered. */
void known_files_keep(struct known_files *known, const char *path, int64_t since_ns,
                      const struct manifest *manifest);

#endif
