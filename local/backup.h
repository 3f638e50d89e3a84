/* `motley backup` and `motley restore`: a server's whole in a folder, made while it is used, and a server
 * made of it.
 *
 * The folder: database.dump, blobs/ and backup.json (api/backup.h), home/ (the CA, the administrator's token,
 * the configuration and the ports of a home), with/ (files that were asked for), manifest.json and
 * manifest.sha256 (local/manifest.h). It holds secrets: folders have mode 0700, files 0600. Agents' own homes
 * are not in it: agents of a home join again, and those of other machines go on. Blocking; for the client
 * program. */
#ifndef MOTLEY_LOCAL_BACKUP_H
#define MOTLEY_LOCAL_BACKUP_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "local/local.h"

struct local_backup {
    const char *folder; /* absolute: of the backup */
    const char *home;   /* absolute */
    /* api.yaml of a server with a PostgreSQL of its own, absolute; NULL: the server is the home's */
    const char *config;
    const char *const *with; /* absolute paths of further files and folders to keep; [with_count] */
    unsigned with_count;
    bool without_models; /* no files of models that were registered by their paths */
    local_progress_fn *progress;
    void *progress_arg;
};

/* Makes the backup in a folder that is missing or empty. A home that is not up is kept down meanwhile, and
 * its PostgreSQL runs alone. HOME/run/backup.json then says when and where. Returns what backup.json says,
 * new; NULL with an error: ERR_CONFLICT (the folder is not empty), ERR_BUSY (the home is going up). */
json_t *local_backup(const struct local_backup *backup, struct err *err);

/* Writes when the home's last finished backup was made, as HOME/run/backup.json says, in microseconds since
 * 1970, and its folder; *made_us 0: none is known. Returns 0, or -1 when the file cannot be read. */
int local_backup_last(const char *home, int64_t *made_us, char folder[LOCAL_HOME_BYTES], struct err *err);

/* Checks the sums of all files, then makes the home, which must be missing or empty, or with 'config' fills
 * that server's database and folder of files, which must be empty. Nothing is started. Returns what
 * manifest.json says, new; NULL with an error, after which the home is as it was: ERR_CORRUPT and
 * ERR_NOT_FOUND (a damaged backup), ERR_CONFLICT (not empty, or a backup of the other kind). */
json_t *local_restore(const struct local_backup *backup, struct err *err);

#endif
