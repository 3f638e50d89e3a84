/* The database and the files that it names, copied into a folder while they are used, and put back from it.
 *
 * The folder gets database.dump (of pg_dump), blobs/xx/SHA256 and backup.json, which says what it is of and
 * what is missing. All files are as they were at the moment of the dump, for each is known by its content.
 * `motley backup` and `motley restore` (local/backup.c) start these, and keep and check the sums of all
 * files: nothing is checked here. pg_dump and pg_restore are those of PATH. Blocking.
 */
#ifndef MOTLEY_API_BACKUP_H
#define MOTLEY_API_BACKUP_H

#include "api/request/config.h"

/* 'by_reference': whether the files of models that were registered by their paths are copied, too. */
int api_backup(const struct api_config *config, const char *folder, bool by_reference, struct err *err);

/* Puts them into an empty database and an empty folder of files, brings the schema up to date and begins a
 * new incarnation. ERR_CONFLICT when one is not empty. After any other error the folder has no files again,
 * and the database no tables, unless what failed came after pg_restore. */
int api_restore(const struct api_config *config, const char *folder, struct err *err);

#endif
