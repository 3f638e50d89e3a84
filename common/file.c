#include "common/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/digest.h"

enum { TREE_DEPTH_MAX = 64, CHUNK = 1 << 16 };

static enum err_code code_of_errno(int number)
{
    switch (number) {
    case ENOENT:
    case ENOTDIR:
        return ERR_NOT_FOUND;
    case EACCES:
    case EPERM:
        return ERR_DENIED;
    case ENOMEM:
        return ERR_NOMEM;
    default:
        return ERR_IO;
    }
}

static int file_open(const char *path, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, code_of_errno(errno), errno, "could not open file \"%s\"", path);
    return fd;
}

int file_read_all(const char *path, size_t bytes_max, struct buf *out, struct err *err)
{
    int fd = file_open(path, err);
    if (fd < 0)
        return -1;
    int result = -1;
    size_t total = 0;
    uint8_t chunk[CHUNK / 4];
    for (;;) {
        ssize_t got = read(fd, chunk, sizeof(chunk));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            err_errno(err, ERR_IO, errno, "could not read file \"%s\"", path);
            break;
        }
        if (got == 0) {
            result = 0;
            break;
        }
        if ((size_t)got > bytes_max - total) {
            err_set(err, ERR_TOO_BIG, "file \"%s\" has more than %zu bytes", path, bytes_max);
            break;
        }
        total += (size_t)got;
        if (buf_append(out, chunk, (size_t)got, err) < 0) {
            err_wrap(err, "file \"%s\"", path);
            break;
        }
    }
    close(fd);
    return result;
}

int file_read_line(const char *path, size_t bytes_max, struct buf *out, struct err *err)
{
    if (file_read_all(path, bytes_max, out, err) < 0)
        return -1;
    out->size = strcspn(buf_str(out), "\r\n");
    if (out->data)
        out->data[out->size] = '\0';
    return 0;
}

static int file_write_all(int fd, const uint8_t *data, size_t size)
{
    while (size > 0) {
        ssize_t wrote = write(fd, data, size);
        if (wrote < 0) {
            if (errno == EINTR)
                continue;
            return -1;
        }
        data += wrote;
        size -= (size_t)wrote;
    }
    return 0;
}

static void file_folder_of(const char *path, char *out, size_t size)
{
    snprintf(out, size, "%s", path);
    char *slash = strrchr(out, '/');
    if (!slash)
        snprintf(out, size, ".");
    else if (slash == out)
        out[1] = '\0';
    else
        *slash = '\0';
}

static int folder_sync(const char *path, struct err *err)
{
    char folder[4096];
    file_folder_of(path, folder, sizeof(folder));
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 || (fsync(fd) < 0 && errno != EINVAL)) {
        int number = errno;
        if (fd >= 0)
            close(fd);
        return err_errno(err, ERR_IO, number, "could not sync folder \"%s\"", folder);
    }
    close(fd);
    return 0;
}

int file_write_by(const char *path, mode_t mode,
                  int (*fill)(void *arg, int fd, const char *path, struct err *err), void *arg,
                  struct err *err)
{
    char beside[4096];
    if (file_path(beside, sizeof(beside), err, "%s.new-XXXXXX", path) < 0)
        return -1;
    int fd = mkostemp(beside, O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, code_of_errno(errno), errno, "could not create file \"%s\"", beside);
    int status = fill(arg, fd, path, err);
    if (status == 0 && (fchmod(fd, mode) < 0 || fsync(fd) < 0))
        status = err_errno(err, ERR_IO, errno, "could not write file \"%s\"", path);
    if ((close(fd) < 0 || (status == 0 && rename(beside, path) < 0)) && status == 0)
        status = err_errno(err, code_of_errno(errno), errno, "could not put file \"%s\" in place", path);
    if (status < 0) {
        unlink(beside);
        return -1;
    }
    return folder_sync(path, err);
}

struct bytes {
    const void *data;
    size_t size;
};

static int fill_bytes(void *arg, int fd, const char *path, struct err *err)
{
    const struct bytes *bytes = arg;
    if (file_write_all(fd, bytes->data, bytes->size) < 0)
        return err_errno(err, ERR_IO, errno, "could not write file \"%s\"", path);
    return 0;
}

int file_write_atomic(const char *path, const void *data, size_t size, mode_t mode, struct err *err)
{
    struct bytes bytes = {data, size};
    return file_write_by(path, mode, fill_bytes, &bytes, err);
}

int file_mkdirs(const char *path, mode_t mode, struct err *err)
{
    char work[4096];
    if (file_path(work, sizeof(work), err, "%s", path) < 0)
        return -1;
    for (char *at = work + 1; at[-1] != '\0'; at++) {
        if (*at != '/' && *at != '\0')
            continue;
        char kept = *at;
        *at = '\0';
        if (mkdir(work, mode) < 0 && errno != EEXIST)
            return err_errno(err, code_of_errno(errno), errno, "could not make folder \"%s\"", work);
        *at = kept;
    }
    struct stat status;
    if (stat(path, &status) < 0 || !S_ISDIR(status.st_mode))
        return err_set(err, ERR_IO, "\"%s\" exists and is no folder", path);
    return 0;
}

static int file_remove_at(int parent, const char *name, unsigned depth, struct err *err);

static int remove_inside(int fd, unsigned depth, struct err *err)
{
    DIR *folder = fdopendir(fd);
    if (!folder) {
        int number = errno;
        close(fd);
        return err_errno(err, ERR_IO, number, "could not list a folder");
    }
    int result = 0;
    struct dirent *entry;
    while (result == 0 && (entry = readdir(folder)))
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            result = file_remove_at(fd, entry->d_name, depth + 1, err);
    closedir(folder);
    return result;
}

static int file_remove_at(int parent, const char *name, unsigned depth, struct err *err)
{
    if (depth > TREE_DEPTH_MAX)
        return err_set(err, ERR_TOO_BIG, "folders more than %d deep", TREE_DEPTH_MAX);
    if (unlinkat(parent, name, 0) == 0 || errno == ENOENT)
        return 0;
    if (errno != EISDIR && errno != EPERM)
        return err_errno(err, code_of_errno(errno), errno, "could not remove \"%s\"", name);
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, code_of_errno(errno), errno, "could not open folder \"%s\"", name);
    if (remove_inside(fd, depth, err) < 0)
        return -1;
    if (unlinkat(parent, name, AT_REMOVEDIR) < 0 && errno != ENOENT)
        return err_errno(err, code_of_errno(errno), errno, "could not remove folder \"%s\"", name);
    return 0;
}

int file_remove_tree(const char *path, struct err *err)
{
    if (file_remove_at(AT_FDCWD, path, 0, err) < 0)
        return err_wrap(err, "removing \"%s\"", path);
    return 0;
}

static int without_slashes(const char *path)
{
    int length = (int)strlen(path);
    while (length > 1 && path[length - 1] == '/')
        length--;
    return length;
}

int file_folder_begin(const char *dir, char *made, size_t size, struct err *err)
{
    char random[17];
    if (random_hex(random, 8, err) < 0 ||
        file_path(made, size, err, "%.*s.%s.tmp", without_slashes(dir), dir, random) < 0) {
        return -1;
    }
    return file_mkdirs(made, 0755, err);
}

/* The old folder is moved aside first and removed after the rename. */
int file_folder_end(const char *made, const char *dir, struct err *err)
{
    struct err ignored;
    char aside[4096], random[17];
    if (random_hex(random, 8, err) < 0 ||
        file_path(aside, sizeof(aside), err, "%.*s.%s.old", without_slashes(dir), dir, random) < 0) {
        return -1;
    }
    bool moved = rename(dir, aside) == 0;
    if (!moved && errno != ENOENT)
        return err_errno(err, ERR_IO, errno, "could not replace folder \"%s\"", dir);
    if (rename(made, dir) < 0) {
        err_errno(err, ERR_IO, errno, "could not rename \"%s\" to \"%s\"", made, dir);
        if (moved && rename(aside, dir) < 0)
            err_wrap(err, "the old one is at \"%s\"", aside);
        return -1;
    }
    if (moved)
        file_remove_tree(aside, &ignored);
    return 0;
}

int file_path(char *out, size_t size, struct err *err, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    int length = vsnprintf(out, size, fmt, args);
    va_end(args);
    if (length < 0 || (size_t)length >= size)
        return err_set(err, ERR_TOO_BIG, "the path \"%.80s…\" is longer than %zu bytes", out, size - 1);
    return 0;
}

bool file_exists(const char *path)
{
    struct stat status;
    return stat(path, &status) == 0;
}

int file_pread_all(int fd, void *dst, size_t size, uint64_t offset, const char *path, struct err *err)
{
    uint8_t *at = dst;
    while (size > 0) {
        ssize_t got = pread(fd, at, size, (off_t)offset);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            return err_errno(err, ERR_IO, errno, "could not read file \"%s\" at %llu", path,
                             (unsigned long long)offset);
        }
        if (got == 0) {
            return err_set(err, ERR_CORRUPT, "file \"%s\" ends at %llu, %zu bytes before it should", path,
                           (unsigned long long)offset, size);
        }
        at += got;
        size -= (size_t)got;
        offset += (uint64_t)got;
    }
    return 0;
}

int file_pwrite_all(int fd, const void *src, size_t size, uint64_t offset, const char *path, struct err *err)
{
    const uint8_t *at = src;
    while (size > 0) {
        ssize_t wrote = pwrite(fd, at, size, (off_t)offset);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote < 0) {
            return err_errno(err, ERR_IO, errno, "could not write file \"%s\" at %llu", path,
                             (unsigned long long)offset);
        }
        at += wrote;
        size -= (size_t)wrote;
        offset += (uint64_t)wrote;
    }
    return 0;
}

/* Reads the file to its end: its SHA-256 in hex, its size, and with 'copy' a descriptor that gets its bytes.
 */
static int file_read_through(const char *path, int copy, char out[65], uint64_t *bytes, struct err *err)
{
    int fd = file_open(path, err);
    if (fd < 0)
        return -1;
    int result = -1;
    uint64_t total = 0;
    uint8_t *chunk = malloc(16 * CHUNK);
    struct digest *digest = !chunk ? NULL : digest_create(err);
    if (!digest) {
        if (!chunk)
            err_set(err, ERR_NOMEM, "no memory to hash file \"%s\"", path);
        goto out;
    }
    ssize_t got;
    while ((got = read(fd, chunk, 16 * CHUNK)) != 0) {
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0) {
            err_errno(err, ERR_IO, errno, "could not read file \"%s\"", path);
            goto out;
        }
        if (copy >= 0 && file_pwrite_all(copy, chunk, (size_t)got, total, path, err) < 0)
            goto out;
        total += (uint64_t)got;
        if (digest_update(digest, chunk, (size_t)got, err) < 0)
            goto out;
    }
    uint8_t sum[DIGEST_SIZE];
    if (digest_final(digest, sum, err) < 0)
        goto out;
    digest_hex(sum, sizeof(sum), out);
    if (bytes)
        *bytes = total;
    result = 0;
out:
    digest_destroy(digest);
    free(chunk);
    close(fd);
    return result;
}

int file_sha256_hex(const char *path, char out[65], uint64_t *bytes, struct err *err)
{
    return file_read_through(path, -1, out, bytes, err);
}

int file_copy(const char *from, const char *to, mode_t mode, char out[65], uint64_t *bytes, struct err *err)
{
    int fd = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);
    if (fd < 0) {
        return err_errno(err, errno == EEXIST ? ERR_CONFLICT : code_of_errno(errno), errno,
                         "could not make file \"%s\"", to);
    }
    int result = file_read_through(from, fd, out, bytes, err);
    if (result == 0 && fsync(fd) < 0)
        result = err_errno(err, ERR_IO, errno, "could not sync file \"%s\"", to);
    close(fd);
    if (result < 0)
        unlink(to);
    return result;
}

int file_lock(const char *path, struct err *err)
{
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return err_errno(err, code_of_errno(errno), errno, "could not open lock file \"%s\"", path);
    if (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        int number = errno;
        close(fd);
        return number == EWOULDBLOCK ? err_set(err, ERR_BUSY, "\"%s\" is locked by another process", path)
                                     : err_errno(err, ERR_IO, number, "could not lock \"%s\"", path);
    }
    return fd;
}
