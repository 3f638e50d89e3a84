#include "api/backup.h"

#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/request/blob_dir.h"
#include "common/document.h"
#include "common/file.h"
#include "common/log.h"
#include "common/pg.h"
#include "common/process.h"
#include "common/release.h"
#include "store/backup.h"
#include "store/store.h"

/* TRIES: how often the database is dumped again because a file that it named was dropped before it was
 * copied. */
enum { TRIES = 3, TOOL_SECONDS = 86400, FORMAT = 1, DOCUMENT_BYTES = 64 << 20, ARGUMENTS_MAX = 12 };

/* Runs pg_dump or pg_restore with these arguments and our database, whose password no command line shows. */
static int tool_run(const struct api_config *config, const char *const *arguments, struct err *err)
{
    const char *argv[ARGUMENTS_MAX + 3] = {0};
    char variable[64];
    int count = 0;
    char *service = pg_service_file(config->postgres, "motley", err);
    const int fd = service ? memfd_create("motley-service", MFD_CLOEXEC) : -1;
    int status = service ? 0 : -1;
    if (status == 0 && fd < 0)
        status = err_errno(err, ERR_IO, errno, "could not make a file in memory");
    if (status == 0)
        status = file_pwrite_all(fd, service, strlen(service), 0, "the connection's", err);
    for (; count < ARGUMENTS_MAX && arguments[count]; count++)
        argv[count] = arguments[count];
    argv[count++] = "--dbname=service=motley";
    snprintf(variable, sizeof(variable), "PGSERVICEFILE=/proc/self/fd/%d", fd);
    const char *const env[] = {variable, NULL};
    const struct process_options options = {.argv = argv,
                                            .env = env,
                                            .stdout_path = "-",
                                            .stderr_path = "-",
                                            .pass_fd = fd,
                                            .own_group = true,
                                            .die_with_parent = true};
    if (status == 0)
        status = process_run(&options, TOOL_SECONDS, err);
    if (service)
        explicit_bzero(service, strlen(service));
    free(service);
    if (fd >= 0)
        close(fd);
    return status;
}

/* ---- the backup ---- */

struct copying {
    const char *folder;
    const struct blob_dir *from;
    struct blob_dir *to;
    bool by_reference;
    json_t *missing, *left_out; /* [{"sha256", "path"?, "why"}], [sha256] */
    bool vanished;              /* a file of our own folder is not there */
    uint64_t files, bytes;
};

/* Copies a file under its hash, unless that was done before. */
static int blob_copy(const struct blob_dir *to, const char *from, const char *sha256, uint64_t *bytes,
                     struct err *err)
{
    char path[BLOB_PATH_MAX], sum[65];
    blob_path(to, sha256, path);
    char *slash = strrchr(path, '/');
    *slash = '\0';
    if (file_mkdirs(path, 0700, err) < 0)
        return -1;
    *slash = '/';
    if (file_copy(from, path, 0600, sum, bytes, err) < 0) {
        struct stat info;
        if (err->code != ERR_CONFLICT || stat(path, &info) < 0)
            return -1;
        *bytes = (uint64_t)info.st_size;
        return 0;
    }
    if (strcmp(sum, sha256) == 0)
        return 0;
    unlink(path);
    return err_set(err, ERR_CORRUPT, "\"%s\" does not have the content that the database knows", from);
}

static int file_found(void *arg, const char *sha256, uint64_t bytes, const char *path, struct err *err)
{
    struct copying *copying = arg;
    char own[BLOB_PATH_MAX];
    struct err why;
    uint64_t copied = 0;
    (void)bytes;
    if (!blob_name_valid(sha256))
        return err_set(err, ERR_CORRUPT, "the database names a file \"%.80s\", which is no hash", sha256);
    if (path && !copying->by_reference)
        return json_array_append_new(copying->left_out, json_string(sha256));
    blob_path(copying->from, sha256, own);
    if (blob_copy(copying->to, path ? path : own, sha256, &copied, &why) == 0) {
        copying->files++;
        copying->bytes += copied;
        return 0;
    }
    if (why.code != ERR_NOT_FOUND && why.code != ERR_CORRUPT) {
        *err = why;
        return -1;
    }
    /* A model's file that is gone cannot be had; it is left out by name and the rest is worth having. */
    copying->vanished = copying->vanished || !path;
    json_t *lost = json_pack("{s:s, s:s?, s:s}", "sha256", sha256, "path", path, "why", why.text);
    return json_array_append_new(copying->missing, lost) < 0
               ? err_set(err, ERR_NOMEM, "no memory for a backup")
               : 0;
}

/* Dumps the database and copies the files of the same moment. */
static int copy_moment(const struct api_config *config, struct copying *copying, struct err *err)
{
    char dump[BLOB_PATH_MAX], to[BLOB_PATH_MAX + 16], of[160];
    copying->vanished = false;
    copying->files = copying->bytes = 0;
    json_array_clear(copying->missing);
    json_array_clear(copying->left_out);
    if (file_path(dump, sizeof(dump), err, "%s/database.dump", copying->folder) < 0)
        return -1;
    struct store_snapshot *snapshot =
        store_snapshot_create(config->postgres, config->start_seconds * 1000, err);
    if (!snapshot)
        return -1;
    snprintf(to, sizeof(to), "--file=%s", dump);
    snprintf(of, sizeof(of), "--snapshot=%s", store_snapshot_name(snapshot));
    const char *const arguments[] = {"pg_dump", "--format=custom", "--no-owner", "--no-acl", of, to, NULL};
    int status = tool_run(config, arguments, err);
    if (status == 0)
        status = store_snapshot_files(snapshot, file_found, copying, err);
    store_snapshot_destroy(snapshot);
    return status;
}

static int backup_describe(const struct copying *copying, struct err *err)
{
    char path[BLOB_PATH_MAX];
    json_t *document = json_pack(
        "{s:i, s:s, s:i, s:I, s:I, s:b, s:O, s:O}", "format", FORMAT, "release", motley_version, "schema",
        (int)store_schema_version(), "files", (json_int_t)copying->files, "bytes", (json_int_t)copying->bytes,
        "by_reference", copying->by_reference, "left_out", copying->left_out, "missing", copying->missing);
    int status = file_path(path, sizeof(path), err, "%s/backup.json", copying->folder) < 0
                     ? -1
                     : document_save(path, document, false, 0600, err);
    json_decref(document);
    return status;
}

int api_backup(const struct api_config *config, const char *folder, bool by_reference, struct err *err)
{
    char path[BLOB_PATH_MAX];
    struct blob_dir *from = NULL;
    struct copying copying = {
        .folder = folder, .by_reference = by_reference, .missing = json_array(), .left_out = json_array()};
    int status = file_path(path, sizeof(path), err, "%s/blobs", folder);
    if (status == 0)
        status = blob_dir_open(config->blobs, &from, err);
    if (status == 0)
        status = blob_dir_open(path, &copying.to, err);
    copying.from = from;
    for (int i = 0; status == 0 && i < TRIES && (i == 0 || copying.vanished); i++)
        status = copy_moment(config, &copying, err);
    if (status == 0)
        status = backup_describe(&copying, err);
    blob_dir_close(from);
    blob_dir_close(copying.to);
    json_decref(copying.missing);
    json_decref(copying.left_out);
    return status;
}

/* ---- the way back ---- */

/* What is done with the files of a folder. */
enum files_do { WALK_COUNT, WALK_COPY, WALK_REMOVE };

/* Walks through a folder: counts whatever is no folder, copies the files that are named by their hashes to
 * 'to', or removes those. *files is how many there were. */
static int files_walk(const char *folder, enum files_do walk, const struct blob_dir *to, uint64_t *files,
                      struct err *err)
{
    char *const roots[] = {(char *)folder, NULL};
    int status = 0;
    uint64_t bytes;
    *files = 0;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!tree)
        return err_errno(err, ERR_IO, errno, "could not read the folder \"%s\"", folder);
    for (const FTSENT *entry; status == 0 && (entry = fts_read(tree));) {
        const bool stored = entry->fts_info == FTS_F && blob_name_valid(entry->fts_name);
        if (entry->fts_info == FTS_DNR || entry->fts_info == FTS_ERR)
            status = err_errno(err, ERR_IO, entry->fts_errno, "could not read \"%s\"", entry->fts_path);
        else if (walk == WALK_COPY && stored)
            status = blob_copy(to, entry->fts_path, entry->fts_name, &bytes, err);
        else if (walk == WALK_REMOVE && stored && unlink(entry->fts_path) < 0)
            status = err_errno(err, ERR_IO, errno, "could not remove \"%s\"", entry->fts_path);
        *files += walk == WALK_COUNT ? entry->fts_info != FTS_D && entry->fts_info != FTS_DP : stored;
    }
    fts_close(tree);
    return status;
}

/* The hashes under "left_out" and those of "missing", borrowed from the document; new (free). */
static const char **not_here(const json_t *document, size_t *count)
{
    const json_t *left_out = json_object_get(document, "left_out"),
                 *missing = json_object_get(document, "missing");
    const char **names = calloc(json_array_size(left_out) + json_array_size(missing) + 1, sizeof(*names));
    *count = 0;
    for (size_t i = 0; names && i < json_array_size(left_out); i++)
        names[(*count)++] = json_string_value(json_array_get(left_out, i));
    for (size_t i = 0; names && i < json_array_size(missing); i++)
        names[(*count)++] = json_string_value(json_object_get(json_array_get(missing, i), "sha256"));
    return names;
}

static int database_put(const struct api_config *config, const char *folder, const json_t *document,
                        struct err *err)
{
    char dump[BLOB_PATH_MAX];
    unsigned applied = 0;
    size_t count = 0;
    struct store_restored done;
    if (file_path(dump, sizeof(dump), err, "%s/database.dump", folder) < 0)
        return -1;
    const char **names = not_here(document, &count);
    if (!names)
        return err_set(err, ERR_NOMEM, "no memory for a restore");
    const char *const arguments[] = {"pg_restore",      "--no-owner", "--no-acl", "--single-transaction",
                                     "--exit-on-error", dump,         NULL};
    int status = tool_run(config, arguments, err);
    if (status == 0)
        status = store_migrate(config->postgres, 0, &applied, err);
    if (status == 0)
        status = store_take_files_in(config->postgres, names, count, err);
    if (status == 0)
        status = store_restore(config->postgres, &done, err);
    if (status == 0) {
        log_event(LOG_LEVEL_INFO, "restored", "incarnation=%s age_s=%lld jobs_queued_again=%lld",
                  done.incarnation, (long long)done.seconds, (long long)done.jobs);
    }
    free((void *)names);
    return status;
}

int api_restore(const struct api_config *config, const char *folder, struct err *err)
{
    char path[BLOB_PATH_MAX];
    bool empty = false;
    uint64_t files = 0;
    struct blob_dir *to = NULL;
    if (file_path(path, sizeof(path), err, "%s/backup.json", folder) < 0)
        return -1;
    json_t *document = document_load(path, DOCUMENT_BYTES, err);
    int status = document ? 0 : -1;
    if (status == 0 && json_integer_value(json_object_get(document, "format")) != FORMAT)
        status = err_set(err, ERR_UNSUPPORTED, "\"%s\" is of another format than %d", path, FORMAT);
    if (status == 0 && json_integer_value(json_object_get(document, "schema")) > store_schema_version()) {
        status = err_set(err, ERR_UNSUPPORTED, "\"%s\" is of release %s, which is newer than this one, %s",
                         path, json_string_value(json_object_get(document, "release")), motley_version);
    }
    if (status == 0)
        status = store_is_empty(config->postgres, config->start_seconds * 1000, &empty, err);
    if (status == 0 && !empty)
        status = err_set(err, ERR_CONFLICT, "the database is not empty: restore into one that was just made");
    if (status == 0)
        status = blob_dir_open(config->blobs, &to, err);
    if (status == 0)
        status = files_walk(config->blobs, WALK_COUNT, NULL, &files, err);
    if (status == 0 && files > 0)
        status = err_set(err, ERR_CONFLICT, "the folder of files \"%s\" is not empty", config->blobs);
    if (status == 0) {
        snprintf(path, sizeof(path), "%s/blobs", folder);
        status = files_walk(path, WALK_COPY, to, &files, err);
        if (status == 0)
            status = database_put(config, folder, document, err);
        struct err ignored;
        if (status < 0)
            files_walk(config->blobs, WALK_REMOVE, NULL, &files, &ignored);
    }
    blob_dir_close(to);
    json_decref(document);
    return status;
}
