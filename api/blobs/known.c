/* The list of known files: short, under a lock, newest first. */
#include "api/blobs/known.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>
#include <sys/stat.h>

enum { KNOWN_MAX = 1024, SIGNATURE_BYTES = 128 };

struct known_file {
    TAILQ_ENTRY(known_file) link;
    char *path;
    char signature[SIGNATURE_BYTES];
    struct manifest manifest;
};

struct known_files {
    pthread_mutex_t lock;
    TAILQ_HEAD(known_list, known_file) list;
    unsigned count;
};

static int64_t time_ns(const struct timespec *time)
{
    return (int64_t)time->tv_sec * 1000000000 + time->tv_nsec;
}

static bool known_sign(const char *path, char signature[SIGNATURE_BYTES], int64_t *changed_ns)
{
    struct stat st;
    if (stat(path, &st) < 0)
        return false;
    *changed_ns = time_ns(&st.st_ctim) > time_ns(&st.st_mtim) ? time_ns(&st.st_ctim) : time_ns(&st.st_mtim);
    snprintf(signature, SIGNATURE_BYTES, "%llx:%llx:%llx:%lld:%lld", (unsigned long long)st.st_dev,
             (unsigned long long)st.st_ino, (unsigned long long)st.st_size, (long long)time_ns(&st.st_mtim),
             (long long)time_ns(&st.st_ctim));
    return true;
}

static int known_copy(const struct manifest *from, struct manifest *to)
{
    *to = *from;
    to->chunks = malloc((size_t)from->chunk_count * sizeof(from->chunks[0]) + 1);
    if (!to->chunks)
        return -1;
    memcpy(to->chunks, from->chunks, (size_t)from->chunk_count * sizeof(from->chunks[0]));
    return 0;
}

struct known_files *known_files_create(struct err *err)
{
    struct known_files *known = calloc(1, sizeof(*known));
    if (!known) {
        err_set(err, ERR_NOMEM, "out of memory for known files");
        return NULL;
    }
    pthread_mutex_init(&known->lock, NULL);
    TAILQ_INIT(&known->list);
    return known;
}

static void known_forget(struct known_files *known, struct known_file *file)
{
    TAILQ_REMOVE(&known->list, file, link);
    known->count--;
    manifest_fini(&file->manifest);
    free(file->path);
    free(file);
}

void known_files_destroy(struct known_files *known)
{
    if (!known)
        return;
    for (struct known_file *file = TAILQ_FIRST(&known->list), *next; file; file = next) {
        next = TAILQ_NEXT(file, link);
        known_forget(known, file);
    }
    pthread_mutex_destroy(&known->lock);
    free(known);
}

static struct known_file *known_find(struct known_files *known, const char *path)
{
    struct known_file *file;
    TAILQ_FOREACH (file, &known->list, link)
        if (strcmp(file->path, path) == 0)
            return file;
    return NULL;
}

bool known_files_find(struct known_files *known, const char *path, struct manifest *manifest)
{
    char signature[SIGNATURE_BYTES];
    int64_t changed_ns;
    bool found = false;
    if (!known_sign(path, signature, &changed_ns))
        return false;
    pthread_mutex_lock(&known->lock);
    struct known_file *file = known_find(known, path);
    if (file && strcmp(file->signature, signature) == 0)
        found = known_copy(&file->manifest, manifest) == 0;
    else if (file)
        known_forget(known, file);
    pthread_mutex_unlock(&known->lock);
    return found;
}

void known_files_keep(struct known_files *known, const char *path, int64_t since_ns,
                      const struct manifest *manifest)
{
    struct known_file *file = calloc(1, sizeof(*file));
    int64_t changed_ns = 0;
    if (file)
        file->path = strdup(path);
    /* A file that changed less than a second before it was read is not remembered, since a change right after
     * could leave the same time stamp. */
    bool keep = file && file->path && known_sign(path, file->signature, &changed_ns) &&
                changed_ns < since_ns - 1000000000 && known_copy(manifest, &file->manifest) == 0;
    if (!keep) {
        if (file)
            free(file->path);
        free(file);
        return;
    }
    pthread_mutex_lock(&known->lock);
    struct known_file *old = known_find(known, path);
    if (old)
        known_forget(known, old);
    if (known->count == KNOWN_MAX)
        known_forget(known, TAILQ_LAST(&known->list, known_list));
    TAILQ_INSERT_HEAD(&known->list, file, link);
    known->count++;
    pthread_mutex_unlock(&known->lock);
}
