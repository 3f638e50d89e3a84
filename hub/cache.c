#include "hub/cache.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/file.h"
#include "model/files/source.h"

enum { LOCK_WAIT_S = 600, LOCK_ASK_MS = 200, REF_BYTES_MAX = 128, TOKEN_FILE_BYTES_MAX = 4096 };

/* ---- the environment ---- */

/* The value of the first variable that is set and not empty; NULL. */
static const char *first_set(const char *const *names)
{
    for (; *names; names++) {
        const char *value = getenv(*names);
        if (value && *value)
            return value;
    }
    return NULL;
}

/* Writes a folder that a variable names, with "~/" read as the home. */
static int cache_folder_of(const char *value, char *out, struct err *err)
{
    const char *home = getenv("HOME");
    return value[0] == '~' && value[1] == '/' && home
               ? file_path(out, HUB_PATH_BYTES, err, "%s%s", home, value + 1)
               : file_path(out, HUB_PATH_BYTES, err, "%s", value);
}

static int read_home(char *home, struct err *err)
{
    const char *named = getenv("HF_HOME"), *caches = getenv("XDG_CACHE_HOME"), *user = getenv("HOME");
    if (named && *named)
        return cache_folder_of(named, home, err);
    if (caches && *caches)
        return file_path(home, HUB_PATH_BYTES, err, "%s/huggingface", caches);
    return user && *user ? file_path(home, HUB_PATH_BYTES, err, "%s/.cache/huggingface", user)
                         : err_set(err, ERR_INVALID,
                                   "neither HF_HOME nor HOME is set, so there is no folder for "
                                   "models of the Hub: set HF_HOME to one");
}

/* Reads the token: of HF_TOKEN, else of the file that `hf auth login` writes. */
static int read_token(const char *home, struct hub_place *place, struct err *err)
{
    static const char *const names[] = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", NULL};
    const char *value = first_set(names), *file = getenv("HF_TOKEN_PATH");
    struct buf text = {.limit = TOKEN_FILE_BYTES_MAX};
    struct err none = {0};
    int result = 0;
    snprintf(place->token_from, sizeof(place->token_from), "HF_TOKEN");
    if (!value) {
        result = file && *file ? cache_folder_of(file, place->token_from, err)
                               : file_path(place->token_from, HUB_PATH_BYTES, err, "%s/token", home);
        value = result == 0 && file_read_all(place->token_from, TOKEN_FILE_BYTES_MAX, &text, &none) == 0
                    ? buf_str(&text)
                    : "";
    }
    while (*value == ' ' || *value == '\n')
        value++;
    const size_t size = strcspn(value, " \r\n\t");
    if (result == 0 && size >= sizeof(place->token))
        result =
            err_set(err, ERR_INVALID, "%s: it holds no token of the Hub: those have fewer than %d characters",
                    place->token_from, HUB_TOKEN_BYTES);
    if (result == 0)
        snprintf(place->token, sizeof(place->token), "%.*s", (int)size, value);
    if (text.data)
        explicit_bzero(text.data, text.size);
    buf_fini(&text);
    return result;
}

int hub_place_read(struct hub_place *place, struct err *err)
{
    static const char *const caches[] = {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", NULL};
    static const char *const offline[] = {"HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", NULL};
    static const char *const yes[] = {"1", "ON", "on", "YES", "yes", "TRUE", "true", "True"};
    char home[HUB_PATH_BYTES];
    *place = (struct hub_place){0};
    const char *endpoint = getenv("HF_ENDPOINT"), *cache = first_set(caches), *off = first_set(offline);
    const char *ca_file = getenv("SSL_CERT_FILE");
    snprintf(place->endpoint, sizeof(place->endpoint), "%s",
             endpoint && *endpoint ? endpoint : "https://huggingface.co");
    for (size_t end = strlen(place->endpoint); end > 0 && place->endpoint[end - 1] == '/';)
        place->endpoint[--end] = '\0';
    if (strncmp(place->endpoint, "http://", 7) != 0 && strncmp(place->endpoint, "https://", 8) != 0)
        return err_set(err, ERR_INVALID, "HF_ENDPOINT: \"%.200s\" is no http:// or https:// address",
                       place->endpoint);
    for (size_t i = 0; off && i < sizeof(yes) / sizeof(yes[0]); i++)
        place->offline |= strcmp(off, yes[i]) == 0;
    if (ca_file && file_path(place->ca_file, sizeof(place->ca_file), err, "%s", ca_file) < 0)
        return -1;
    return read_home(home, err) < 0 ||
                   (cache ? cache_folder_of(cache, place->cache, err)
                          : file_path(place->cache, sizeof(place->cache), err, "%s/hub", home)) < 0
               ? -1
               : read_token(home, place, err);
}

/* ---- the layout ---- */

int cache_folder(const struct hub_place *place, const struct hub_name *name, char out[HUB_PATH_BYTES],
                 struct err *err)
{
    const char *slash = strchr(name->id, '/');
    return file_path(out, HUB_PATH_BYTES, err, "%s/%s--%.*s%s%s", place->cache,
                     name->dataset ? "datasets" : "models", slash ? (int)(slash - name->id) : 0, name->id,
                     slash ? "--" : "", slash ? slash + 1 : name->id);
}

bool cache_is_commit(const char *text)
{
    const size_t size = strlen(text);
    return (size == 40 || size == 64) && strspn(text, "0123456789abcdef") == size;
}

int cache_commit(const char *folder, const char *revision, char out[HUB_COMMIT_BYTES], struct err *err)
{
    char path[HUB_PATH_BYTES];
    struct buf text = {.limit = REF_BYTES_MAX};
    if (cache_is_commit(revision)) {
        snprintf(out, HUB_COMMIT_BYTES, "%s", revision);
        return 0;
    }
    int result = file_path(path, sizeof(path), err, "%s/refs/%s", folder, revision) < 0 ||
                         file_read_all(path, REF_BYTES_MAX, &text, err) < 0
                     ? -1
                     : 0;
    if (result == 0) {
        snprintf(out, HUB_COMMIT_BYTES, "%.*s", (int)strcspn(buf_str(&text), " \r\n"), buf_str(&text));
        if (!cache_is_commit(out))
            result = err_set(err, ERR_NOT_FOUND, "%s holds no commit", path);
    }
    buf_fini(&text);
    return result;
}

int cache_make_folder_of(const char *path, struct err *err)
{
    char folder[HUB_PATH_BYTES];
    const char *slash = strrchr(path, '/');
    return file_path(folder, sizeof(folder), err, "%.*s", (int)(slash - path), path) < 0
               ? -1
               : file_mkdirs(folder, 0755, err);
}

int cache_keep_commit(const char *folder, const char *revision, const char *commit, struct err *err)
{
    char path[HUB_PATH_BYTES];
    if (strcmp(revision, commit) == 0)
        return 0;
    return file_path(path, sizeof(path), err, "%s/refs/%s", folder, revision) < 0 ||
                   cache_make_folder_of(path, err) < 0
               ? -1
               : file_write_atomic(path, commit, strlen(commit), 0644, err);
}

int cache_link(const char *folder, const char *commit, const char *file, const char *etag, struct err *err)
{
    char path[HUB_PATH_BYTES], target[HUB_PATH_BYTES] = "../..", now[HUB_PATH_BYTES];
    size_t at = strlen(target);
    for (const char *slash = strchr(file, '/'); slash && at + 4 < sizeof(target);
         slash = strchr(slash + 1, '/'))
        at += (size_t)snprintf(target + at, sizeof(target) - at, "/..");
    snprintf(target + at, sizeof(target) - at, "/blobs/%s", etag);
    if (file_path(path, sizeof(path), err, "%s/snapshots/%s/%s", folder, commit, file) < 0 ||
        cache_make_folder_of(path, err) < 0)
        return -1;
    ssize_t size = readlink(path, now, sizeof(now) - 1);
    if (size >= 0 && (size_t)size == strlen(target) && memcmp(now, target, (size_t)size) == 0)
        return 0;
    if (size >= 0 || errno == EINVAL)
        unlink(path);
    return symlink(target, path) == 0 || errno == EEXIST
               ? 0
               : err_errno(err, ERR_IO, errno, "could not link \"%s\"", path);
}

int cache_lock(const struct hub_place *place, const char *folder, const char *etag,
               const struct hub_watch *watch, struct err *err)
{
    char path[HUB_PATH_BYTES];
    if (file_path(path, sizeof(path), err, "%s/.locks/%s/%s.lock", place->cache, strrchr(folder, '/') + 1,
                  etag) < 0 ||
        cache_make_folder_of(path, err) < 0)
        return -1;
    /* whoever shares the cache may wait for the lock, too */
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0664);
    if (fd < 0)
        return err_errno(err, ERR_IO, errno, "could not open lock file \"%s\"", path);
    const uint64_t until_ns = clock_mono_ns() + (uint64_t)LOCK_WAIT_S * 1000000000u;
    bool told = false;
    while (flock(fd, LOCK_EX | LOCK_NB) < 0) {
        if (errno != EWOULDBLOCK)
            err_errno(err, ERR_IO, errno, "could not lock \"%s\"", path);
        else if (clock_mono_ns() > until_ns)
            err_set(err, ERR_BUSY,
                    "another process has been fetching \"%s\" for %d minutes: wait for it, or end it", etag,
                    LOCK_WAIT_S / 60);
        else if (watch->stopped && watch->stopped(watch->arg))
            err_set(err, ERR_CANCELLED, "stopped while another process was fetching \"%s\"", etag);
        else {
            if (!told && watch->note)
                watch->note(watch->arg, "another process fetches a file of it, too: waiting for that");
            told = true;
            nanosleep(&(struct timespec){.tv_nsec = LOCK_ASK_MS * 1000000L}, NULL);
            continue;
        }
        close(fd);
        return -1;
    }
    return fd;
}

/* ---- what is there ---- */

static bool has(const char *folder, const char *name)
{
    char path[HUB_PATH_BYTES];
    struct err none = {0};
    return file_path(path, sizeof(path), &none, "%s/%s", folder, name) == 0 && file_exists(path);
}

static bool cache_ends_with(const char *name, const char *end)
{
    const size_t size = strlen(name), tail = strlen(end);
    return size > tail && strcmp(name + size - tail, end) == 0;
}

/* Whether a snapshot has all that the part needs, as far as its files tell. */
static bool cache_is_complete(const char *snapshot, enum hub_part part)
{
    struct model_source *source;
    struct err none = {0};
    bool described =
        has(snapshot, "config.json") && (has(snapshot, "tokenizer.json") || has(snapshot, "tokenizer.model"));
    bool weights = false, packed = false;
    if (described && part == HUB_DESCRIPTION)
        return true;
    if (model_source_open_local(snapshot, &source, &none) < 0)
        return false;
    for (uint32_t i = 0; i < model_source_file_count(source); i++) {
        weights |= cache_ends_with(model_source_file(source, i)->name, ".safetensors");
        packed |= cache_ends_with(model_source_file(source, i)->name, ".gguf");
    }
    model_source_close(source);
    return packed || (described && weights);
}

int hub_find(const struct hub_place *place, const struct hub_name *name, enum hub_part part,
             struct hub_found *found, struct err *err)
{
    char folder[HUB_PATH_BYTES], snapshot[HUB_PATH_BYTES];
    *found = (struct hub_found){0};
    if (cache_folder(place, name, folder, err) < 0)
        return -1;
    struct err none = {0};
    const bool known = cache_commit(folder, name->revision, found->commit, &none) == 0;
    if (file_path(snapshot, sizeof(snapshot), err, "%s/snapshots/%s", folder, found->commit) < 0 ||
        file_path(found->path, sizeof(found->path), err, "%s%s%s", snapshot, *name->file ? "/" : "",
                  name->file) < 0)
        return -1;
    if (known &&
        (*name->file ? file_exists(found->path) : !name->dataset && cache_is_complete(snapshot, part)))
        return 0;
    return err_set(err, ERR_NOT_FOUND, "%s@%s is not in the cache %s, or not all of it", name->id,
                   name->revision, place->cache);
}
