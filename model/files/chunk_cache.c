#include "model/files/chunk_cache.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/array.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/file.h"

enum { PATH_BYTES = 4096, LOCK_WAIT_MS = 5000, STALE_SECONDS = 3600 };

struct chunk_cache {
    char dir[PATH_BYTES];
    uint64_t limit;
};

/* One cached file, as listed to choose which files are removed. */
struct cached {
    char name[DIGEST_HEX_SIZE];
    uint64_t size;
    struct timespec used;
};

int chunk_cache_open(const char *dir, uint64_t limit, struct chunk_cache **cache, struct err *err)
{
    *cache = NULL;
    if (limit < 64u << 20)
        return err_set(err, ERR_INVALID, "a cache of %llu bytes is below the least, 64 MiB",
                       (unsigned long long)limit);
    struct chunk_cache *c = calloc(1, sizeof(*c));
    if (!c)
        return err_set(err, ERR_NOMEM, "no memory for a cache");
    c->limit = limit;
    if (file_path(c->dir, sizeof(c->dir), err, "%s", dir) < 0 || file_mkdirs(dir, 0700, err) < 0) {
        free(c);
        return -1;
    }
    *cache = c;
    return 0;
}

void chunk_cache_close(struct chunk_cache *cache)
{
    free(cache);
}

static bool chunk_path(const struct chunk_cache *c, const uint8_t hash[32], char *path, bool make_folder)
{
    char hex[DIGEST_HEX_SIZE];
    struct err ignored;
    digest_hex(hash, DIGEST_SIZE, hex);
    if (make_folder && (file_path(path, PATH_BYTES, &ignored, "%s/%.2s", c->dir, hex) < 0 ||
                        (mkdir(path, 0700) < 0 && errno != EEXIST)))
        return false;
    return file_path(path, PATH_BYTES, &ignored, "%s/%.2s/%s", c->dir, hex, hex) == 0;
}

bool chunk_cache_get(struct chunk_cache *cache, const uint8_t hash[32], void *dst, size_t size)
{
    char path[PATH_BYTES];
    struct err ignored;
    struct stat st;
    if (!chunk_path(cache, hash, path, false))
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    bool ok = fstat(fd, &st) == 0 && (uint64_t)st.st_size == size &&
              file_pread_all(fd, dst, size, 0, path, &ignored) == 0;
    if (ok)
        futimens(fd, NULL); /* a file's modification time is the time of its last use */
    close(fd);
    return ok;
}

void chunk_cache_drop(struct chunk_cache *cache, const uint8_t hash[32])
{
    char path[PATH_BYTES];
    if (chunk_path(cache, hash, path, false))
        unlink(path);
}

/* Takes the folder's lock. Returns -1 when it is not to be had within LOCK_WAIT_MS. */
static int lock_folder(const struct chunk_cache *c)
{
    char path[PATH_BYTES];
    struct err ignored;
    if (file_path(path, sizeof(path), &ignored, "%s/lock", c->dir) < 0)
        return -1;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return -1;
    uint64_t deadline = clock_mono_ns() + (uint64_t)LOCK_WAIT_MS * 1000000;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if ((errno != EWOULDBLOCK && errno != EINTR) || clock_mono_ns() >= deadline) {
            close(fd);
            return -1;
        }
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);
    }
    return fd;
}

static bool usage_read(const struct chunk_cache *c, uint64_t *bytes)
{
    char path[PATH_BYTES], text[32] = "";
    struct err ignored;
    if (file_path(path, sizeof(path), &ignored, "%s/usage", c->dir) < 0)
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return false;
    ssize_t n = read(fd, text, sizeof(text) - 1);
    close(fd);
    char *end;
    *bytes = strtoull(text, &end, 10);
    return n > 0 && end > text && *end == '\n';
}

static bool usage_write(const struct chunk_cache *c, uint64_t bytes)
{
    char path[PATH_BYTES], text[32];
    struct err ignored;
    if (file_path(path, sizeof(path), &ignored, "%s/usage", c->dir) < 0)
        return false;
    int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC | O_TRUNC, 0600);
    if (fd < 0)
        return false;
    int length = snprintf(text, sizeof(text), "%llu\n", (unsigned long long)bytes);
    bool ok = write(fd, text, (size_t)length) == length;
    return close(fd) == 0 && ok;
}

struct listing {
    struct cached *items;
    size_t count, capacity;
    uint64_t bytes;
};

static bool listing_add(struct listing *list, int folder, const char *name)
{
    struct stat st;
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) < 0 || !S_ISREG(st.st_mode))
        return true;
    if (strlen(name) != DIGEST_HEX_SIZE - 1) { /* a temporary file whose writer died */
        if (st.st_mtime + STALE_SECONDS < time(NULL))
            unlinkat(folder, name, 0);
        return true;
    }
    struct err ignored;
    if (ARRAY_RESERVE(list->items, list->capacity, list->count + 1, &ignored) < 0)
        return false;
    struct cached *item = &list->items[list->count++];
    memcpy(item->name, name, DIGEST_HEX_SIZE);
    item->size = (uint64_t)st.st_size;
    item->used = st.st_mtim;
    list->bytes += item->size;
    return true;
}

static bool listing_fill(const struct chunk_cache *c, struct listing *list)
{
    bool ok = true;
    for (unsigned i = 0; ok && i < 256; i++) {
        char path[PATH_BYTES];
        struct err ignored;
        if (file_path(path, sizeof(path), &ignored, "%s/%02x", c->dir, i) < 0)
            return false;
        DIR *folder = opendir(path);
        if (!folder)
            continue;
        for (struct dirent *entry; ok && (entry = readdir(folder));)
            if (entry->d_name[0] != '.')
                ok = listing_add(list, dirfd(folder), entry->d_name);
        closedir(folder);
    }
    return ok;
}

static int compare_used(const void *a, const void *b)
{
    const struct cached *x = a, *y = b;
    if (x->used.tv_sec != y->used.tv_sec)
        return x->used.tv_sec < y->used.tv_sec ? -1 : 1;
    return x->used.tv_nsec < y->used.tv_nsec ? -1 : x->used.tv_nsec > y->used.tv_nsec;
}

/* Makes room for 'size' more bytes while the lock is held; *used becomes the bytes that remain. A tenth of
 * the limit is freed at once, so that a full cache does not list its folder for every chunk. */
static bool chunk_cache_make_room(const struct chunk_cache *c, uint64_t size, uint64_t *used)
{
    struct listing list = {0};
    bool ok = listing_fill(c, &list);
    uint64_t keep = c->limit - size;
    if (ok && list.bytes > keep) {
        keep -= keep < c->limit / 10 ? keep : c->limit / 10;
        qsort(list.items, list.count, sizeof(*list.items), compare_used);
        for (size_t i = 0; i < list.count && list.bytes > keep; i++) {
            char path[PATH_BYTES];
            struct err ignored;
            if (file_path(path, sizeof(path), &ignored, "%s/%.2s/%s", c->dir, list.items[i].name,
                          list.items[i].name) == 0 &&
                unlink(path) == 0)
                list.bytes -= list.items[i].size;
        }
    }
    *used = list.bytes;
    free(list.items);
    return ok && *used + size <= c->limit;
}

static bool write_chunk(const char *path, const void *data, size_t size)
{
    char temporary[PATH_BYTES + 32], random[17];
    struct err ignored;
    if (random_hex(random, 8, &ignored) < 0 ||
        file_path(temporary, sizeof(temporary), &ignored, "%s.%s", path, random) < 0)
        return false;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return false;
    bool ok = file_pwrite_all(fd, data, size, 0, temporary, &ignored) == 0;
    ok = close(fd) == 0 && ok;
    ok = ok && rename(temporary, path) == 0;
    if (!ok)
        unlink(temporary);
    return ok;
}

bool chunk_cache_put(struct chunk_cache *cache, const uint8_t hash[32], const void *data, size_t size)
{
    char path[PATH_BYTES];
    uint64_t used;
    if (size > cache->limit || !chunk_path(cache, hash, path, true))
        return false;
    int lock = lock_folder(cache);
    if (lock < 0)
        return false;
    bool ok = access(path, F_OK) == 0;
    if (!ok) {
        ok = (usage_read(cache, &used) && used + size <= cache->limit) ||
             chunk_cache_make_room(cache, size, &used);
        /* The chunk is counted before it is written: a process that dies in between leaves a count that is
         * too high, never too low. */
        ok = ok && usage_write(cache, used + size) && write_chunk(path, data, size);
    }
    close(lock);
    return ok;
}
