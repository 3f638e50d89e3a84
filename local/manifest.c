#include "local/manifest.h"

#include <errno.h>
#include <fts.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "common/document.h"
#include "common/file.h"
#include "local/home.h"

enum { DOCUMENT_BYTES = 512 << 20, SUM_BYTES = 256 };

static const char list_name[] = "manifest.json";
static const char sum_name[] = "manifest.sha256";

static int file_list(json_t *files, const char *path, const char *name, struct err *err)
{
    char sum[65];
    uint64_t bytes;
    if (file_sha256_hex(path, sum, &bytes, err) < 0)
        return -1;
    json_t *file = json_pack("{s:s, s:I, s:s}", "path", name, "bytes", (json_int_t)bytes, "sha256", sum);
    return json_array_append_new(files, file) < 0 ? err_set(err, ERR_NOMEM, "no memory for the list of files")
                                                  : 0;
}

static int folder_list(json_t *files, const char *folder, struct err *err)
{
    char *const roots[] = {(char *)folder, NULL};
    int status = 0;
    FTS *tree = fts_open(roots, FTS_PHYSICAL | FTS_NOCHDIR, NULL);
    if (!tree)
        return err_errno(err, ERR_IO, errno, "could not read the folder \"%s\"", folder);
    for (const FTSENT *entry; status == 0 && (entry = fts_read(tree));)
        if (entry->fts_info == FTS_F)
            status = file_list(files, entry->fts_path, entry->fts_path + strlen(folder) + 1, err);
        else if (entry->fts_info != FTS_D && entry->fts_info != FTS_DP)
            status = err_set(err, ERR_IO, "\"%s\" is neither a file nor a folder that can be read",
                             entry->fts_path);
    fts_close(tree);
    return status;
}

int manifest_write(const char *folder, json_t *document, struct err *err)
{
    char path[HOME_PATH_BYTES], sum[65], line[SUM_BYTES];
    json_t *files = json_array();
    int status = folder_list(files, folder, err);
    if (json_object_set_new(document, "files", files) < 0)
        status = err_set(err, ERR_NOMEM, "no memory for the list of files");
    if (status == 0)
        status = file_path(path, sizeof(path), err, "%s/%s", folder, list_name);
    if (status == 0)
        status = document_save(path, document, false, 0600, err);
    json_decref(document);
    if (status < 0 || file_sha256_hex(path, sum, NULL, err) < 0 ||
        file_path(path, sizeof(path), err, "%s/%s", folder, sum_name) < 0)
        return -1;
    const int length = snprintf(line, sizeof(line), "%s  %s\n", sum, list_name);
    return file_write_atomic(path, line, (size_t)length, 0600, err);
}

/* Whether the list itself is as it was written. */
static int list_check(const char *folder, char path[HOME_PATH_BYTES], struct err *err)
{
    char sum[65];
    struct buf line = {.limit = SUM_BYTES};
    if (file_path(path, HOME_PATH_BYTES, err, "%s/%s", folder, sum_name) < 0)
        return -1;
    int status = file_read_all(path, SUM_BYTES, &line, err);
    if (status < 0 && err->code == ERR_NOT_FOUND)
        status = err_set(err, ERR_NOT_FOUND,
                         "\"%s\" is no backup, or one that was not finished: it has no %s", folder, sum_name);
    if (status == 0)
        status = file_path(path, HOME_PATH_BYTES, err, "%s/%s", folder, list_name);
    if (status == 0)
        status = file_sha256_hex(path, sum, NULL, err);
    if (status == 0 && (line.size < 64 || memcmp(line.data, sum, 64) != 0))
        status = err_set(err, ERR_CORRUPT, "\"%s\" is damaged: %s has another sum for it", path, sum_name);
    buf_fini(&line);
    return status;
}

static int file_check(const char *folder, const json_t *file, struct err *err)
{
    char path[HOME_PATH_BYTES], sum[65];
    struct stat info;
    const char *name = json_string_value(json_object_get(file, "path"));
    const char *wanted = json_string_value(json_object_get(file, "sha256"));
    const json_int_t bytes = json_integer_value(json_object_get(file, "bytes"));
    if (!name || !wanted || file_path(path, sizeof(path), err, "%s/%s", folder, name) < 0)
        return err_set(err, ERR_CORRUPT, "%s of \"%s\" names a file without path or sum", list_name, folder);
    if (lstat(path, &info) < 0)
        return err_errno(err, ERR_CORRUPT, errno, "the backup is damaged: \"%s\"", path);
    if (!S_ISREG(info.st_mode) || info.st_size != bytes) {
        return err_set(err, ERR_CORRUPT, "the backup is damaged: \"%s\" has %lld bytes, not %lld", path,
                       (long long)info.st_size, (long long)bytes);
    }
    if (file_sha256_hex(path, sum, NULL, err) < 0)
        return -1;
    return strcmp(sum, wanted) == 0
               ? 0
               : err_set(err, ERR_CORRUPT, "the backup is damaged: \"%s\" has another content than it had",
                         path);
}

json_t *manifest_check(const char *folder, struct err *err)
{
    char path[HOME_PATH_BYTES];
    if (list_check(folder, path, err) < 0)
        return NULL;
    json_t *document = document_load(path, DOCUMENT_BYTES, err);
    const json_t *files = json_object_get(document, "files");
    int status = document ? 0 : -1;
    for (size_t i = 0; status == 0 && i < json_array_size(files); i++)
        status = file_check(folder, json_array_get(files, i), err);
    if (status == 0)
        return document;
    json_decref(document);
    return NULL;
}
