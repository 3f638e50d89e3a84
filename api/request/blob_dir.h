/* The content-addressed folder: every file is stored under its SHA-256, and is complete or absent.
 *
 * DIR/xx/HEX is a file; DIR/tmp/ holds files that are being written. All functions block: call them on pool
 * threads only. A struct blob_dir is immutable and shared; a struct blob_writer belongs to one thread at a
 * time.
 */
#ifndef MOTLEY_API_REQUEST_BLOB_DIR_H
#define MOTLEY_API_REQUEST_BLOB_DIR_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"
#include "model/files/manifest.h"
#include "model/files/source.h"

struct blob_dir;
struct blob_writer;

enum { BLOB_PATH_MAX = 4096 };

/* Opens the folder, and makes it if needed. Removes old temporary files (blob_dir_tidy). */
int blob_dir_open(const char *path, struct blob_dir **dir, struct err *err);
void blob_dir_close(struct blob_dir *dir);
/* Removes temporary files and parts of uploads to which nothing was written for a day. */
void blob_dir_tidy(const struct blob_dir *dir);
/* Returns the free bytes of the folder's file system; 0 when unknown. */
uint64_t blob_dir_free_bytes(const struct blob_dir *dir);
/* Returns the size of the disk on which the folder lies. */
uint64_t blob_dir_bytes(const struct blob_dir *dir);

/* Whether the name is 64 lower-case hex digits. */
bool blob_name_valid(const char *sha256);
/* Writes the path of a blob, whether or not it exists. */
void blob_path(const struct blob_dir *dir, const char *sha256, char path[BLOB_PATH_MAX]);

/* Begins a new file. If the disk is full, it fails with ERR_IO (blob_is_full) and leaves nothing behind. */
int blob_writer_create(const struct blob_dir *dir, struct blob_writer **writer, struct err *err);
/* Begins or continues a file that an owner uploads in parts. The file DIR/tmp/part-OWNER-HEX remains when the
 * writer is destroyed before it is finished, and the next writer appends to it. *received is the number of
 * bytes that the file has so far. *writer is NULL while another request writes to the file. The bytes are
 * hashed when the file is finished. */
int blob_writer_resume(const struct blob_dir *dir, int64_t owner, const char *sha256,
                       struct blob_writer **writer, uint64_t *received, struct err *err);
/* Returns the bytes of all partly uploaded files of an owner except the file 'sha256'. */
uint64_t blob_parts_bytes(const struct blob_dir *dir, int64_t owner, const char *sha256);
int blob_writer_add(struct blob_writer *writer, const void *data, size_t size, struct err *err);
/* Syncs the file and makes it visible. 'expected' is the SHA-256 that it must have, in hex, or NULL for any;
 * ERR_CORRUPT when it differs. *manifest is filled on success (release it with manifest_fini). Destroy the
 * writer afterwards in any case. */
int blob_writer_finish(struct blob_writer *writer, const char *expected, struct manifest *manifest,
                       struct err *err);
void blob_writer_destroy(struct blob_writer *writer);

/* Removes a file that nothing refers to any more, unless it was uploaded again after 'before' (seconds since
 * 1970) or during the call. Returns whether the file is gone, also when it did not exist. */
bool blob_remove(const struct blob_dir *dir, const char *sha256, int64_t before);

/* Returns true when 'err' came from a full disk or quota, which is answered with HTTP 507. */
bool blob_is_full(const struct err *err);

/* The paths of a model's files, from 'files' ([{"name","sha256","path"?}]), which are borrowed as long as the
 * paths are used. */
struct blob_model {
    struct model_path *paths; /* has room for two further paths */
    uint32_t count;
    char *text; /* the memory in which the paths are */
};
int blob_model_paths(const struct blob_dir *dir, const json_t *files, struct blob_model *model,
                     struct err *err);
void blob_model_fini(struct blob_model *model);

#endif
