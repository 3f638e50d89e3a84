/* Files: whole, atomic, bounded. Blocking: not for event-loop threads unless the file is small and local.
 * Thread: any. Errors name the path: ERR_NOT_FOUND, ERR_TOO_BIG, ERR_IO ("could not open file \"x\":
 * reason"). */
#ifndef MOTLEY_COMMON_FILE_H
#define MOTLEY_COMMON_FILE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#include "common/buf.h"
#include "common/err.h"

/* Append the file's bytes to 'out'; ERR_TOO_BIG over 'bytes_max'. Works on pipes and /proc too. */
int file_read_all(const char *path, size_t bytes_max, struct buf *out, struct err *err);

/* Write beside, fsync, rename over 'path', fsync the folder: complete or absent. */
int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode, struct err *err);
/* The same for what is written piece by piece: fill() writes to 'fd', from its beginning; path is for its
 * errors. */
int file_write_by(const char *path, mode_t mode,
                  int (*fill)(void *arg, int fd, const char *path, struct err *err), void *arg,
                  struct err *err);

/* Make the folder and its missing parents. An existing folder is success. */
int file_mkdirs(const char *path, mode_t mode, struct err *err);

/* Remove a file, or a folder and all in it, following no symbolic links. Absent is success. At most 64 deep.
 */
int file_remove_tree(const char *path, struct err *err);

/* A new folder beside 'dir' to put its files in, its path in made[size]; file_folder_end() then gives it the
 * name, in the place of what had it. So a folder is complete or absent. After an error the caller removes
 * 'made'. */
int file_folder_begin(const char *dir, char *made, size_t size, struct err *err);
int file_folder_end(const char *made, const char *dir, struct err *err);

/* "folder/name" by printf into out[size]; ERR_TOO_BIG when it does not fit. */
int file_path(char *out, size_t size, struct err *err, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));

/* Something of this name is there, following symbolic links. */
bool file_exists(const char *path);

/* Read or write exactly 'size' bytes at 'offset'. ERR_CORRUPT when the file ends before. */
int file_pread_all(int fd, void *dst, size_t size, uint64_t offset, const char *path, struct err *err);
int file_pwrite_all(int fd, const void *src, size_t size, uint64_t offset, const char *path, struct err *err);

/* SHA-256 of a whole file, hex, and its size in bytes (may be NULL). */
int file_sha256_hex(const char *path, char out[65], uint64_t *bytes, struct err *err);

/* Take an exclusive lock on 'path' (created with mode 0600) without waiting. Returns a descriptor that holds
 * it until closed, or -1: ERR_BUSY when another process holds it. */
int file_lock(const char *path, struct err *err);

#endif
