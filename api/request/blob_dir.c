/* Stores files by content: a file is written and hashed under a temporary name, synced, and then renamed. */
#include "api/request/blob_dir.h"

#include "common/digest.h"
#include "common/file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

enum { LEFTOVER_SECONDS = 24 * 3600, READ_BYTES = 1 << 20 };
static const char full_mark[] = "no space left for files on the server";

struct blob_dir {
    char path[BLOB_PATH_MAX - 256];
};

struct blob_writer {
    const struct blob_dir *dir;
    int fd; /* -1: no file is open */
    /* in_parts: the bytes are hashed when the file is finished; keep: the file remains for the next part */
    bool in_parts, keep;
    char temp[BLOB_PATH_MAX];
    struct digest *whole, *chunk;
    uint64_t chunk_fill;
    struct manifest manifest; /* the manifest, whose chunks are added as they are completed */
    uint32_t chunk_capacity;
};

void blob_dir_tidy(const struct blob_dir *dir)
{
    char path[BLOB_PATH_MAX];
    snprintf(path, sizeof(path), "%s/tmp", dir->path);
    DIR *listing = opendir(path);
    if (!listing)
        return;
    time_t before = time(NULL) - LEFTOVER_SECONDS;
    for (struct dirent *entry; (entry = readdir(listing));) {
        struct stat st;
        if (entry->d_name[0] != '.' &&
            fstatat(dirfd(listing), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode) &&
            st.st_mtime < before)
            unlinkat(dirfd(listing), entry->d_name, 0);
    }
    closedir(listing);
}

int blob_dir_open(const char *path, struct blob_dir **dir, struct err *err)
{
    char part[BLOB_PATH_MAX];
    struct blob_dir *made = calloc(1, sizeof(*made));
    if (!made)
        return err_set(err, ERR_NOMEM, "out of memory for the blob folder");
    if ((size_t)snprintf(made->path, sizeof(made->path), "%s", path) >= sizeof(made->path)) {
        free(made);
        return err_set(err, ERR_INVALID, "blobs: the path is longer than %zu bytes", sizeof(made->path) - 1);
    }
    for (int i = -1; i < 256; i++) {
        if (i < 0)
            snprintf(part, sizeof(part), "%s/tmp", made->path);
        else
            snprintf(part, sizeof(part), "%s/%02x", made->path, i);
        if (file_mkdirs(part, 0700, err) < 0) {
            free(made);
            return err_wrap(err, "blobs");
        }
    }
    blob_dir_tidy(made);
    *dir = made;
    return 0;
}

void blob_dir_close(struct blob_dir *dir)
{
    free(dir);
}

uint64_t blob_dir_free_bytes(const struct blob_dir *dir)
{
    struct statvfs st;
    return statvfs(dir->path, &st) == 0 ? (uint64_t)st.f_bavail * st.f_frsize : 0;
}

uint64_t blob_dir_bytes(const struct blob_dir *dir)
{
    struct statvfs st;
    return statvfs(dir->path, &st) == 0 ? (uint64_t)st.f_blocks * st.f_frsize : 0;
}

bool blob_name_valid(const char *sha256)
{
    return strlen(sha256) == 64 && strspn(sha256, "0123456789abcdef") == 64;
}

void blob_path(const struct blob_dir *dir, const char *sha256, char path[BLOB_PATH_MAX])
{
    snprintf(path, BLOB_PATH_MAX, "%s/%.2s/%.64s", dir->path, sha256, sha256);
}

bool blob_is_full(const struct err *err)
{
    return strstr(err->text, full_mark) != NULL;
}

static int write_failed(int error, struct err *err)
{
    if (error == ENOSPC || error == EDQUOT)
        return err_set(err, ERR_IO, "%s", full_mark);
    return err_set(err, ERR_IO, "could not write a file on the server: %s", strerror(error));
}

static int writer_make(const struct blob_dir *dir, struct blob_writer **writer, struct err *err)
{
    struct blob_writer *made = calloc(1, sizeof(*made));
    *writer = NULL;
    if (!made)
        return err_set(err, ERR_NOMEM, "out of memory for an upload");
    made->dir = dir;
    made->fd = -1;
    made->whole = digest_create(err);
    made->chunk = made->whole ? digest_create(err) : NULL;
    if (!made->chunk) {
        blob_writer_destroy(made);
        return -1;
    }
    *writer = made;
    return 0;
}

int blob_writer_create(const struct blob_dir *dir, struct blob_writer **writer, struct err *err)
{
    if (writer_make(dir, writer, err) < 0)
        return -1;
    struct blob_writer *made = *writer;
    snprintf(made->temp, sizeof(made->temp), "%s/tmp/XXXXXX", dir->path);
    made->fd = mkostemp(made->temp, O_CLOEXEC);
    if (made->fd < 0) {
        write_failed(errno, err);
        blob_writer_destroy(made);
        *writer = NULL;
        return -1;
    }
    return 0;
}

int blob_writer_resume(const struct blob_dir *dir, int64_t owner, const char *sha256,
                       struct blob_writer **writer, uint64_t *received, struct err *err)
{
    struct stat opened, named;
    *received = 0;
    if (writer_make(dir, writer, err) < 0)
        return -1;
    struct blob_writer *made = *writer;
    made->in_parts = made->keep = true;
    snprintf(made->temp, sizeof(made->temp), "%s/tmp/part-%lld-%.64s", dir->path, (long long)owner, sha256);
    made->fd = open(made->temp, O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600);
    bool good = made->fd >= 0 && fstat(made->fd, &opened) == 0;
    if (!good)
        write_failed(errno, err);
    else
        *received = (uint64_t)opened.st_size;
    /* If the lock is taken, another request is writing to the file. If the name now has another inode or is
     * gone, another request has just finished the file. */
    if (!good || flock(made->fd, LOCK_EX | LOCK_NB) < 0 || stat(made->temp, &named) < 0 ||
        named.st_ino != opened.st_ino || fstat(made->fd, &opened) < 0) {
        blob_writer_destroy(made);
        *writer = NULL;
        return good ? 0 : -1;
    }
    *received = (uint64_t)opened.st_size;
    return 0;
}

uint64_t blob_parts_bytes(const struct blob_dir *dir, int64_t owner, const char *sha256)
{
    char path[BLOB_PATH_MAX], prefix[40];
    uint64_t bytes = 0;
    snprintf(path, sizeof(path), "%s/tmp", dir->path);
    int size = snprintf(prefix, sizeof(prefix), "part-%lld-", (long long)owner);
    DIR *folder = opendir(path);
    for (const struct dirent *entry; folder && (entry = readdir(folder));) {
        struct stat st;
        if (strncmp(entry->d_name, prefix, (size_t)size) == 0 && strcmp(entry->d_name + size, sha256) != 0 &&
            fstatat(dirfd(folder), entry->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0)
            bytes += (uint64_t)st.st_size;
    }
    if (folder)
        closedir(folder);
    return bytes;
}

static int blob_dir_chunk_end(struct blob_writer *writer, struct err *err)
{
    struct manifest *manifest = &writer->manifest;
    if (manifest->chunk_count == writer->chunk_capacity) {
        uint32_t capacity = writer->chunk_capacity ? writer->chunk_capacity * 2 : 16;
        if (manifest->chunk_count >= MANIFEST_CHUNKS_MAX)
            return err_set(err, ERR_TOO_BIG, "a file has more than %d chunks", MANIFEST_CHUNKS_MAX);
        void *grown = realloc(manifest->chunks, (size_t)capacity * sizeof(manifest->chunks[0]));
        if (!grown)
            return err_set(err, ERR_NOMEM, "out of memory for an upload");
        manifest->chunks = grown;
        writer->chunk_capacity = capacity;
    }
    writer->chunk_fill = 0;
    return digest_final(writer->chunk, manifest->chunks[manifest->chunk_count++], err);
}

static int hash_add(struct blob_writer *writer, const uint8_t *data, size_t size, struct err *err)
{
    if (digest_update(writer->whole, data, size, err) < 0)
        return -1;
    while (size) {
        size_t part = MANIFEST_CHUNK_BYTES - (size_t)writer->chunk_fill;
        if (part > size)
            part = size;
        if (digest_update(writer->chunk, data, part, err) < 0)
            return -1;
        writer->chunk_fill += part;
        data += part;
        size -= part;
        if (writer->chunk_fill == MANIFEST_CHUNK_BYTES && blob_dir_chunk_end(writer, err) < 0)
            return -1;
    }
    return 0;
}

int blob_writer_add(struct blob_writer *writer, const void *data, size_t size, struct err *err)
{
    for (size_t done = 0; done < size;) {
        ssize_t n = write(writer->fd, (const char *)data + done, size - done);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0) {
            writer->keep = false;
            return write_failed(n < 0 ? errno : ENOSPC, err);
        }
        done += (size_t)n;
    }
    if (writer->in_parts)
        return 0;
    writer->manifest.size += size;
    return hash_add(writer, data, size, err);
}

/* Hashes the whole file, after its last part was received. */
static int hash_all(struct blob_writer *writer, struct err *err)
{
    uint8_t *piece = malloc(READ_BYTES);
    if (!piece)
        return err_set(err, ERR_NOMEM, "out of memory for an upload");
    int rc = 0;
    while (rc == 0) {
        ssize_t n = pread(writer->fd, piece, READ_BYTES, (off_t)writer->manifest.size);
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            rc = err_set(err, ERR_IO, "could not read an upload's parts: %s", strerror(errno));
        if (n <= 0)
            break;
        writer->manifest.size += (uint64_t)n;
        rc = hash_add(writer, piece, (size_t)n, err);
    }
    free(piece);
    return rc;
}

static int make_visible(struct blob_writer *writer, const char *name, struct err *err)
{
    char path[BLOB_PATH_MAX], folder[BLOB_PATH_MAX];
    blob_path(writer->dir, name, path);
    /* blob_remove spares what is newer than its look; the last byte of an upload in parts may be older. */
    if (fsync(writer->fd) < 0 || fchmod(writer->fd, 0400) < 0 || futimens(writer->fd, NULL) < 0 ||
        rename(writer->temp, path) < 0)
        return write_failed(errno, err);
    writer->temp[0] = '\0';
    snprintf(folder, sizeof(folder), "%s/%.2s", writer->dir->path, name);
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int rc = fd >= 0 ? fsync(fd) : -1;
    int saved = errno;
    if (fd >= 0)
        close(fd);
    return rc < 0 ? write_failed(saved, err) : 0;
}

int blob_writer_finish(struct blob_writer *writer, const char *expected, struct manifest *manifest,
                       struct err *err)
{
    char name[DIGEST_HEX_SIZE];
    if (writer->in_parts && hash_all(writer, err) < 0)
        return -1;
    writer->keep = false;
    if (writer->chunk_fill && blob_dir_chunk_end(writer, err) < 0)
        return -1;
    if (digest_final(writer->whole, writer->manifest.sha256, err) < 0)
        return -1;
    digest_hex(writer->manifest.sha256, 32, name);
    if (expected && strcmp(name, expected) != 0)
        return err_set(err, ERR_CORRUPT, "the %llu bytes received hash to %s, not to %s",
                       (unsigned long long)writer->manifest.size, name, expected);
    if (make_visible(writer, name, err) < 0)
        return -1;
    *manifest = writer->manifest;
    memset(&writer->manifest, 0, sizeof(writer->manifest));
    return 0;
}

void blob_writer_destroy(struct blob_writer *writer)
{
    if (!writer)
        return;
    if (writer->temp[0] && writer->fd >= 0 && !writer->keep)
        unlink(writer->temp);
    if (writer->fd >= 0)
        close(writer->fd);
    digest_destroy(writer->whole);
    digest_destroy(writer->chunk);
    free(writer->manifest.chunks);
    free(writer);
}

bool blob_remove(const struct blob_dir *dir, const char *sha256, int64_t before)
{
    char path[BLOB_PATH_MAX], aside[BLOB_PATH_MAX];
    struct stat found, taken;
    blob_path(dir, sha256, path);
    snprintf(aside, sizeof(aside), "%s/tmp/dropped-%.64s", dir->path, sha256);
    if (lstat(path, &found) < 0)
        return errno == ENOENT;
    if (found.st_mtime >= before || rename(path, aside) < 0)
        return false;
    if (lstat(aside, &taken) == 0 && taken.st_ino != found.st_ino) {
        /* Another request uploaded the file between the two calls. Its bytes are the same, as the name is
         * their hash. */
        rename(aside, path);
        return false;
    }
    return unlink(aside) == 0;
}

int blob_model_paths(const struct blob_dir *dir, const json_t *files, struct blob_model *model,
                     struct err *err)
{
    const size_t count = json_array_size(files);
    *model = (struct blob_model){.paths = calloc(count + 2, sizeof(*model->paths)),
                                 .text = malloc(count * BLOB_PATH_MAX + 1)};
    if (!model->paths || !model->text) {
        blob_model_fini(model);
        return err_set(err, ERR_NOMEM, "out of memory for a model's files");
    }
    for (; model->count < count; model->count++) {
        const json_t *file = json_array_get(files, model->count);
        const char *name = json_string_value(json_object_get(file, "name"));
        const char *sha256 = json_string_value(json_object_get(file, "sha256"));
        const char *path = json_string_value(json_object_get(file, "path"));
        char *target = model->text + (size_t)model->count * BLOB_PATH_MAX;
        if (!name || !sha256 || !blob_name_valid(sha256) || strchr(name, '/') || name[0] == '.' || !name[0]) {
            blob_model_fini(model);
            return err_set(err, ERR_CORRUPT, "a registered model has a file without a proper name or hash");
        }
        if (path)
            snprintf(target, BLOB_PATH_MAX, "%s", path);
        else
            blob_path(dir, sha256, target);
        model->paths[model->count] = (struct model_path){name, target};
    }
    return 0;
}

void blob_model_fini(struct blob_model *model)
{
    free(model->paths);
    free(model->text);
    *model = (struct blob_model){0};
}
