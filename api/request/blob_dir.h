/* The content-addressed folder: every file under its SHA-256, complete or absent.
 *
 * DIR/xx/HEX is a file, DIR/tmp/ holds what is being written. Everything here blocks: pool threads
 * only. A struct blob_dir is immutable and shared; a struct blob_writer belongs to one thread at a time.
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

/* Makes the folder if need be and tidies it. */
int blob_dir_open(const char *path, struct blob_dir **dir, struct err *err);
void blob_dir_close(struct blob_dir *dir);
/* Removes what writers that died, and parts that nobody went on with, left behind over a day ago. */
void blob_dir_tidy(const struct blob_dir *dir);
/* Bytes free on its file system; 0 when it cannot be told. */
uint64_t blob_dir_free_bytes(const struct blob_dir *dir);

/* 64 lower-case hex digits? */
bool blob_name_valid(const char *sha256);
/* Where a blob lies (if it is there). */
void blob_path(const struct blob_dir *dir, const char *sha256, char path[BLOB_PATH_MAX]);

/* A file to be. ERR_TOO_BIG with "no space" (blob_is_full) when the disk is full: nothing is left behind
 * then. */
int blob_writer_create(const struct blob_dir *dir, struct blob_writer **writer, struct err *err);
/* The same for a file that an owner sends in parts: DIR/tmp/part-OWNER-HEX stays when the writer is destroyed
 * before it is finished, and is added to by the next. *received: its bytes so far. *writer is NULL while
 * another request adds to it. The bytes are hashed when it is finished. */
int blob_writer_resume(const struct blob_dir *dir, int64_t owner, const char *sha256,
                       struct blob_writer **writer, uint64_t *received, struct err *err);
/* Bytes that lie in all parts of an owner but those of 'sha256'. */
uint64_t blob_parts_bytes(const struct blob_dir *dir, int64_t owner, const char *sha256);
int blob_writer_add(struct blob_writer *writer, const void *data, size_t size, struct err *err);
/* Sync and make it visible. 'expected' (hex) or NULL: any. ERR_CORRUPT when the bytes hash otherwise.
 * *manifest (manifest_fini) is filled on success. The writer is empty afterwards; destroy it all the same. */
int blob_writer_finish(struct blob_writer *writer, const char *expected, struct manifest *manifest,
                       struct err *err);
void blob_writer_destroy(struct blob_writer *writer);

/* Remove a file that nothing refers to any more, unless it was sent again after 'before' (seconds since
 * 1970); one sent again meanwhile stays. Returns whether it is gone; a file that is not there is. */
bool blob_remove(const struct blob_dir *dir, const char *sha256, int64_t before);

/* True when 'err' came from a full disk or quota: HTTP 507. */
bool blob_is_full(const struct err *err);

/* Where a model's files lie: 'files' is [{"name","sha256","path"?}], borrowed as long as *model is used. */
struct blob_model {
    struct model_path *paths; /* with room for two more */
    uint32_t count;
    char *text; /* its own */
};
int blob_model_paths(const struct blob_dir *dir, const json_t *files, struct blob_model *model,
                     struct err *err);
void blob_model_fini(struct blob_model *model);

#endif
