/* Reads and writes files: as a whole, atomically, with limits. Blocking: not for event-loop threads unless
 * the file is small and local. Thread: any. Errors name the path: ERR_NOT_FOUND, ERR_TOO_BIG, ERR_IO ("could
 * not open file \"x\": reason"). */
#ifndef MOTLEY_COMMON_FILE_H
#define MOTLEY_COMMON_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/buf.h"
#include "common/err.h"

/* Appends the file's bytes to 'out'; ERR_TOO_BIG above 'bytes_max'. Also reads pipes and /proc. */
int file_read_all(const char *path, size_t bytes_max, struct buf *out, struct err *err);
/* As file_read_all, for a secret in a file of its own: keeps the first line, without its end. */
int file_read_line(const char *path, size_t bytes_max, struct buf *out, struct err *err);

/* Writes a temporary file beside 'path', syncs it, renames it over 'path' and syncs the folder: the file is
 * complete or absent. */
int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode, struct err *err);
/* As file_write_atomic, for content that is written piece by piece: fill() writes to 'fd' from its beginning
 * and uses 'path' for its errors. */
int file_write_by(const char *path, mode_t mode,
                  int (*fill)(void *arg, int fd, const char *path, struct err *err), void *arg,
                  struct err *err);

/* Makes the folder and its missing parents. An existing folder is a success. */
int file_mkdirs(const char *path, mode_t mode, struct err *err);

/* Removes a file, or a folder with everything in it, without following symbolic links. An absent path is a
 * success. At most 64 levels deep. */
int file_remove_tree(const char *path, struct err *err);

/* Makes a folder whose content appears at once. file_folder_begin() makes a new folder beside 'dir' and
 * writes its path to made[size]; the caller fills it, and file_folder_end() renames it to 'dir', in place of
 * what was there. So the folder is complete or absent. After an error the caller removes 'made'. */
int file_folder_begin(const char *dir, char *made, size_t size, struct err *err);
int file_folder_end(const char *made, const char *dir, struct err *err);

/* Bytes that must be free on the disk of a server or an agent: below that `motley up` starts nothing and
 * doctor, status and why warn. PostgreSQL refuses every change when its disk is full, and a start needs some
 * 100 MiB. */
#define FILE_SPACE_MIN ((uint64_t)300 << 20)

/* Formats a path such as "folder/name" into out[size]; ERR_TOO_BIG when it does not fit. */
int file_path(char *out, size_t size, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Whether the path exists, following symbolic links. */
bool file_exists(const char *path);

/* Reads or writes exactly 'size' bytes at 'offset'. ERR_CORRUPT when the file ends before that. */
int file_pread_all(int fd, void *dst, size_t size, uint64_t offset, const char *path, struct err *err);
int file_pwrite_all(int fd, const void *src, size_t size, uint64_t offset, const char *path, struct err *err);

/* Writes the SHA-256 of a whole file in hex, and its size in bytes to 'bytes' (may be NULL). */
int file_sha256_hex(const char *path, char out[65], uint64_t *bytes, struct err *err);

/* Copies a file to the new file 'to', syncs it, and writes the SHA-256 of what was copied in hex, and its
 * size in bytes. ERR_CONFLICT when 'to' is there; after another error 'to' is gone. */
int file_copy(const char *from, const char *to, mode_t mode, char out[65], uint64_t *bytes, struct err *err);

/* Takes an exclusive lock on 'path' (created with mode 0600) without waiting. Returns a descriptor that holds
 * the lock until it is closed, or -1: ERR_BUSY when another process holds it. */
int file_lock(const char *path, struct err *err);

#endif
