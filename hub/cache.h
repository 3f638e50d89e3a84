/* The folder of a repository in the cache of Hugging Face's tools (hub/hub.h has its layout). For hub/ alone.
 */
#ifndef MOTLEY_HUB_CACHE_H
#define MOTLEY_HUB_CACHE_H

#include "hub/hub.h"

/* Writes the repository's folder: CACHE/models--OWNER--NAME. */
int cache_folder(const struct hub_place *place, const struct hub_name *name, char out[HUB_PATH_BYTES],
                 struct err *err);

/* Whether the text is a commit: 40 or 64 lower-case hex digits. */
bool cache_is_commit(const char *text);

/* Writes the commit that the cache has for the name's revision; ERR_NOT_FOUND. */
int cache_commit(const char *folder, const char *revision, char out[HUB_COMMIT_BYTES], struct err *err);
/* Keeps it. */
int cache_keep_commit(const char *folder, const char *revision, const char *commit, struct err *err);

/* Makes snapshots/COMMIT/FILE a link to the blob; a link that is right stays. */
int cache_link(const char *folder, const char *commit, const char *file, const char *etag, struct err *err);

/* Takes the lock under which Hugging Face's tools fetch a blob, and waits for it while 'watch' does not stop
 * it. Returns a descriptor to close, or -1: ERR_BUSY when somebody else has had it for ten minutes. */
int cache_lock(const struct hub_place *place, const char *folder, const char *etag,
               const struct hub_watch *watch, struct err *err);

/* Makes the folder that a file lies in. */
int cache_make_folder_of(const char *path, struct err *err);

#endif
