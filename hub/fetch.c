/* Fetches what a repository's revision needs: its list of files by the Hub's API, then each file by ranges.
 */
#include "hub/hub.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/http.h"
#include "common/json.h"
#include "common/retry.h"
#include "common/units.h"
#include "hub/cache.h"
#include "hub/refusal.h"
#include "hub/rows_file.h"
#include "model/files/source.h"

enum {
    LIST_BYTES_MAX = 64 << 20,
    LIST_FILES_MAX = 200000,
    TURNS = 3,
    CONNECT_MS = 15000,
    LIST_MS = 60000,
    IDLE_MS = 60000,      /* a transfer on which nothing arrives is begun again */
    FIRST_PATIENCE_S = 3, /* before the hub has answered once */
    PATIENCE_S = 120,     /* without a byte, once it has */
    WAIT_MAX_S = 600,     /* a hub that asks for more, all waits together, is left for later */
    BEGINNINGS_MAX = 5,   /* of a file from a server that sends no ranges: after a cut it begins anew */
    SMALL_FILE_BYTES_MAX =
        1 << 28 /* of a file that is checked by Git's hash; the Hub has larger ones in LFS */
};

struct hub_file {
    char *path;
    uint64_t size;
    char etag[DIGEST_HEX_SIZE]; /* 64 digits: SHA-256; 40: Git's hash */
};

struct hub_session {
    const struct hub_place *place;
    const struct hub_name *name;
    const struct hub_watch *watch;
    struct hub_found *found;
    struct http *http;
    char folder[HUB_PATH_BYTES], snapshot[HUB_PATH_BYTES];
    char file[HUB_FILE_BYTES]; /* the only one to fetch; "": those that a model needs */
    struct hub_file *files;    /* [file_count] of the repository */
    bool *wanted, *there;      /* [file_count] */
    size_t file_count;
    struct retry retry;
    uint32_t waited_s;
    uint64_t done; /* bytes of wanted files that are there */
};

static bool hub_is_stopped(const void *arg)
{
    const struct hub_session *fetch = arg;
    return fetch->watch->stopped && fetch->watch->stopped(fetch->watch->arg);
}

static void fetch_note(const struct hub_session *fetch, const char *sentence)
{
    if (fetch->watch->note)
        fetch->watch->note(fetch->watch->arg, sentence);
}

/* Waits as long as the hub asks. */
static int wait_as_told(struct hub_session *fetch, uint32_t seconds, struct err *err)
{
    char sentence[160];
    if (seconds > WAIT_MAX_S - fetch->waited_s)
        return err_set(
            err, ERR_BUSY,
            "the Hub (%s) was asked too often from this address (429) and wants %u s without requests: "
            "try again then%s",
            fetch->place->endpoint, seconds,
            *fetch->place->token ? "" : ", or set HF_TOKEN, with which one may ask more often");
    snprintf(sentence, sizeof(sentence), "the Hub was asked too often (429): waiting the %u s that it wants",
             seconds);
    fetch_note(fetch, sentence);
    fetch->waited_s += seconds;
    for (uint32_t tenth = 0; tenth < seconds * 10; tenth++) {
        if (hub_is_stopped(fetch))
            return err_set(err, ERR_CANCELLED, "stopped while waiting for the Hub");
        nanosleep(&(struct timespec){.tv_nsec = 100000000L}, NULL);
    }
    retry_moved(&fetch->retry);
    return 0;
}

/* Decides after a failed request: 0 to ask again, else -1 with the sentence for people. */
static int ask_again(struct hub_session *fetch, const struct http_answer *answer, const char *file,
                     struct err *err)
{
    const bool busy = answer->status == 429 || answer->status == 503;
    if (err->code == ERR_CANCELLED)
        return -1;
    if (busy && answer->retry_s > 0)
        return wait_as_told(fetch, answer->retry_s, err);
    const bool passes = answer->status < 400 || busy || answer->status >= 500;
    if (answer->status >= 500)
        err->code = ERR_NET;
    if (passes && retry_pause(&fetch->retry, err) == 0)
        return 0;
    return err->code == ERR_CANCELLED ? -1 : refusal_say(fetch->place, fetch->name, answer, file, err);
}

/* ---- the list of files ---- */

static int fetch_take_file(struct hub_session *fetch, const json_t *item, struct err *err)
{
    const char *path = json_string_value(json_object_get(item, "rfilename"));
    const json_t *lfs = json_object_get(item, "lfs");
    const char *etag =
        json_string_value(lfs ? json_object_get(lfs, "sha256") : json_object_get(item, "blobId"));
    const json_t *size = json_object_get(lfs ? lfs : item, "size");
    struct hub_name checked;
    char text[HUB_ID_BYTES + HUB_FILE_BYTES];
    snprintf(text, sizeof(text), "hf:x:%s", path ? path : "");
    if (hub_name_parse(text, &checked, err) < 0)
        return 0; /* a path that cannot be a file of ours is none that a model needs */
    const size_t digits = etag ? strspn(etag, "0123456789abcdef") : 0;
    if (!etag || etag[digits] || digits != (lfs ? 64 : 40) || !json_is_integer(size) ||
        json_integer_value(size) < 0)
        return err_set(err, ERR_PEER, "%s tells neither the size nor the hash of %.200s: is it a Hub?",
                       fetch->place->endpoint, path);
    struct hub_file *file = &fetch->files[fetch->file_count];
    if (!(file->path = strdup(path)))
        return err_set(err, ERR_NOMEM, "no memory for a list of files");
    file->size = (uint64_t)json_integer_value(size);
    memcpy(file->etag, etag, digits + 1);
    fetch->file_count++;
    return 0;
}

static int take_list(struct hub_session *fetch, const json_t *document, struct err *err)
{
    const char *commit = json_string_value(json_object_get(document, "sha"));
    const char *id = json_string_value(json_object_get(document, "id"));
    const json_t *list = json_object_get(document, "siblings"), *item;
    const size_t count = json_array_size(list);
    size_t index;
    if (!commit || !cache_is_commit(commit) || !json_is_array(list) || count > LIST_FILES_MAX)
        return err_set(err, ERR_PEER, "%s answered with no list of the files of %s: is it a Hub?",
                       fetch->place->endpoint, fetch->name->id);
    snprintf(fetch->found->commit, sizeof(fetch->found->commit), "%s", commit);
    if (id && strcmp(id, fetch->name->id) != 0) {
        char sentence[HUB_ID_BYTES * 2 + 64];
        snprintf(sentence, sizeof(sentence), "%s is called %.*s by now", fetch->name->id, HUB_ID_BYTES, id);
        fetch_note(fetch, sentence);
    }
    fetch->files = calloc(count + 1, sizeof(*fetch->files));
    fetch->wanted = calloc(count + 1, sizeof(*fetch->wanted));
    fetch->there = calloc(count + 1, sizeof(*fetch->there));
    if (!fetch->files || !fetch->wanted || !fetch->there)
        return err_set(err, ERR_NOMEM, "no memory for a list of files");
    json_array_foreach (list, index, item)
        if (fetch_take_file(fetch, item, err) < 0)
            return -1;
    return file_path(fetch->snapshot, sizeof(fetch->snapshot), err, "%s/snapshots/%s", fetch->folder, commit);
}

static int ask_list(struct hub_session *fetch, struct err *err)
{
    char revision[HUB_REVISION_BYTES * 3], path[HUB_ID_BYTES + HUB_REVISION_BYTES * 3 + 64];
    struct buf text = {.limit = LIST_BYTES_MAX};
    struct http_answer answer;
    if (http_escape(fetch->name->revision, revision, sizeof(revision), err) < 0 ||
        file_path(path, sizeof(path), err, "/api/%s/%s/revision/%s?blobs=true",
                  fetch->name->dataset ? "datasets" : "models", fetch->name->id, revision) < 0)
        return -1;
    struct http_request request = {.method = "GET",
                                   .path = path,
                                   .response = &text,
                                   .timeout_ms = LIST_MS,
                                   .stopped = hub_is_stopped,
                                   .stopped_arg = fetch};
    int result;
    while ((result = http_perform(fetch->http, &request, &answer, err)) < 0 &&
           ask_again(fetch, &answer, NULL, err) == 0)
        buf_clear(&text);
    json_t *document =
        result == 0 ? json_parse_limited(buf_str(&text), text.size, JSON_DEPTH_MAX, err) : NULL;
    if (result == 0 && !document)
        err_set(err, ERR_PEER, "%s answered with no JSON: is it a Hub?", fetch->place->endpoint);
    result = document ? take_list(fetch, document, err) : -1;
    fetch->retry.patience_ns = (uint64_t)PATIENCE_S * 1000000000u;
    json_decref(document);
    buf_fini(&text);
    return result;
}

/* ---- one file ---- */

struct hub_partial {
    struct hub_session *fetch;
    const struct hub_file *file;
    int fd;
    uint64_t have; /* bytes in the file */
    unsigned beginnings;
    const char *path; /* for errors */
};

static void say_moved(const struct hub_session *fetch, const struct hub_file *file)
{
    if (fetch->watch->moved)
        fetch->watch->moved(fetch->watch->arg, file->path, fetch->done, fetch->found->bytes);
}

static int part_arrived(void *arg, const void *data, size_t size, struct err *err)
{
    struct hub_partial *part = arg;
    struct hub_session *fetch = part->fetch;
    if (hub_is_stopped(fetch))
        return err_set(err, ERR_CANCELLED, "stopped; what came of %s is kept", part->file->path);
    if (file_pwrite_all(part->fd, data, size, part->have, part->path, err) < 0)
        return -1;
    part->have += size;
    fetch->done += size;
    fetch->found->fetched_bytes += size;
    retry_moved(&fetch->retry);
    say_moved(fetch, part->file);
    return 0;
}

static int part_empty(struct hub_partial *part, struct err *err)
{
    if (part->beginnings++ == BEGINNINGS_MAX)
        return err_set(err, ERR_NET,
                       "%s of %s was cut %d times, and the server sends no part of a file, so that each time "
                       "it begins anew: try a better connection, or another HF_ENDPOINT than %s",
                       part->file->path, part->fetch->name->id, BEGINNINGS_MAX, part->fetch->place->endpoint);
    part->fetch->done -= part->have;
    part->have = 0;
    return ftruncate(part->fd, 0) == 0 ? 0
                                       : err_errno(err, ERR_IO, errno, "could not empty \"%s\"", part->path);
}

/* Writes the path of a file of the repository, escaped: its slashes stay. */
static int file_route(const struct hub_session *fetch, const char *file, struct buf *route, struct err *err)
{
    char escaped[HUB_FILE_BYTES * 3], part[HUB_FILE_BYTES];
    int result = buf_printf(route, err, "/%s%s/resolve/%s", fetch->name->dataset ? "datasets/" : "",
                            fetch->name->id, fetch->found->commit);
    while (result == 0 && file) {
        const char *slash = strchr(file, '/');
        result =
            file_path(part, sizeof(part), err, "%.*s", slash ? (int)(slash - file) : HUB_FILE_BYTES, file);
        if (result == 0 && (result = http_escape(part, escaped, sizeof(escaped), err)) == 0)
            result = buf_printf(route, err, "/%s", escaped);
        file = slash ? slash + 1 : NULL;
    }
    return result;
}

/* Fetches what the part lacks. */
static int fetch_part_fill(struct hub_partial *part, struct err *err)
{
    struct buf route = {.limit = 16384};
    struct http_answer answer;
    int result = file_route(part->fetch, part->file->path, &route, err);
    while (result == 0 && part->have < part->file->size) {
        struct http_request request = {.method = "GET",
                                       .path = buf_str(&route),
                                       .range_begin = part->have,
                                       .range_bytes = part->file->size - part->have,
                                       .sink = part_arrived,
                                       .sink_arg = part,
                                       .timeout_ms = UINT32_MAX,
                                       .idle_ms = IDLE_MS,
                                       .stopped = hub_is_stopped,
                                       .stopped_arg = part->fetch};
        const uint64_t before = part->have;
        result = http_perform(part->fetch->http, &request, &answer, err);
        if (result < 0 && answer.status == 200 && before > 0 && part->have == before)
            result = part_empty(part, err); /* a server without ranges: from the beginning */
        else if (result < 0 && err->code != ERR_IO)
            result = ask_again(part->fetch, &answer, part->file->path, err);
    }
    buf_fini(&route);
    return result;
}

static int fetch_etag_of(const struct hub_partial *part, char etag[DIGEST_HEX_SIZE], struct err *err)
{
    if (strlen(part->file->etag) == 64)
        return file_sha256_hex(part->path, etag, NULL, err);
    struct buf text = {.limit = SMALL_FILE_BYTES_MAX};
    int result = file_read_all(part->path, SMALL_FILE_BYTES_MAX, &text, err) < 0
                     ? -1
                     : digest_git_blob_hex(text.data, text.size, etag, err);
    buf_fini(&text);
    return result;
}

/* Fetches the bytes into the file at part->path and checks them. What an earlier fetch left there may be
 * damaged: then they are fetched once more, from the beginning. */
static int part_take(struct hub_partial *part, struct err *err)
{
    char etag[DIGEST_HEX_SIZE];
    bool resumed = part->have > 0;
    for (;;) {
        if (fetch_part_fill(part, err) < 0)
            return -1;
        if (fsync(part->fd) < 0)
            return err_errno(err, ERR_IO, errno, "could not write \"%s\"", part->path);
        if (fetch_etag_of(part, etag, err) < 0)
            return -1;
        if (strcmp(etag, part->file->etag) == 0)
            return 0;
        if (part_empty(part, err) < 0)
            return -1;
        if (!resumed)
            return err_set(
                err, ERR_CORRUPT,
                "%s of %s arrived with other bytes than the Hub says (hash %.12s…, not %.12s…): fetch "
                "it again; if that stays, something on the way from %s changes it",
                part->file->path, part->fetch->name->id, etag, part->file->etag,
                part->fetch->place->endpoint);
        resumed = false;
    }
}

static bool blob_is_there(const struct hub_file *file, const char *blob)
{
    struct stat status;
    return stat(blob, &status) == 0 && (uint64_t)status.st_size == file->size;
}

static int fetch_blob(struct hub_session *fetch, const struct hub_file *file, const char *blob,
                      struct err *err)
{
    char path[HUB_PATH_BYTES];
    struct hub_partial part = {.fetch = fetch, .file = file, .path = path};
    struct stat status;
    if (file_path(path, sizeof(path), err, "%s.incomplete", blob) < 0)
        return -1;
    part.fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (part.fd < 0 || fstat(part.fd, &status) < 0) {
        err_errno(err, ERR_IO, errno, "could not open \"%s\"", path);
        if (part.fd >= 0)
            close(part.fd);
        return -1;
    }
    part.have = (uint64_t)status.st_size;
    fetch->done += part.have;
    say_moved(fetch, file);
    int result = part.have > file->size ? part_empty(&part, err) : 0;
    if (result == 0 && (result = part_take(&part, err)) == 0 && rename(path, blob) < 0)
        result = err_errno(err, ERR_IO, errno, "could not rename \"%s\"", path);
    close(part.fd);
    return result;
}

static int fetch_file(struct hub_session *fetch, const struct hub_file *file, struct err *err)
{
    char blob[HUB_PATH_BYTES];
    if (file_path(blob, sizeof(blob), err, "%s/blobs/%s", fetch->folder, file->etag) < 0 ||
        cache_make_folder_of(blob, err) < 0)
        return -1;
    if (!blob_is_there(file, blob)) {
        int lock = cache_lock(fetch->place, fetch->folder, file->etag, fetch->watch, err);
        if (lock < 0)
            return -1;
        int result = 0;
        if (blob_is_there(file, blob))
            fetch->done += file->size;
        else
            result = fetch_blob(fetch, file, blob, err);
        close(lock);
        if (result < 0)
            return -1;
    } else {
        fetch->done += file->size;
    }
    return cache_link(fetch->folder, fetch->found->commit, file->path, file->etag, err);
}

/* ---- all of it ---- */

/* The bytes of a file that an earlier fetch left. */
static uint64_t bytes_before(const char *blob, uint64_t size)
{
    struct stat about;
    char part[HUB_PATH_BYTES];
    struct err none;
    const bool there =
        file_path(part, sizeof(part), &none, "%s.incomplete", blob) == 0 && stat(part, &about) == 0;
    return !there ? 0 : (uint64_t)about.st_size < size ? (uint64_t)about.st_size : size;
}

/* Refuses what the disk has no room for. */
static int has_room(const struct hub_session *fetch, struct err *err)
{
    struct statvfs disk;
    char needed[32], free_bytes[32];
    if (statvfs(fetch->folder, &disk) < 0)
        return 0;
    const uint64_t room = (uint64_t)disk.f_bavail * disk.f_frsize;
    uint64_t missing = 0;
    for (size_t i = 0; i < fetch->file_count; i++) {
        char blob[HUB_PATH_BYTES];
        if (fetch->wanted[i] && !fetch->there[i] &&
            (file_path(blob, sizeof(blob), err, "%s/blobs/%s", fetch->folder, fetch->files[i].etag) < 0 ||
             !blob_is_there(&fetch->files[i], blob)))
            missing += fetch->files[i].size - bytes_before(blob, fetch->files[i].size);
    }
    return missing <= room
               ? 0
               : err_set(err, ERR_IO,
                         "%s needs %s more and the disk of %s has %s: free some, or set HF_HOME to a "
                         "folder on another",
                         fetch->name->id, units_bytes(needed, missing), fetch->place->cache,
                         units_bytes(free_bytes, room));
}

static bool is_weights(const char *path)
{
    const char *dot = strrchr(path, '.');
    return dot && (strcmp(dot, ".safetensors") == 0 || strcasecmp(dot, ".gguf") == 0);
}

/* By a tokenizer hub_find() sees that a description is whole, and by weights that a model is: they come last.
 */
static int fetch_turn_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    return is_weights(path) ? 2 : strcmp(name, "tokenizer.json") == 0 || strcmp(name, "tokenizer.model") == 0;
}

/* Fetches the files that are wanted and were not fetched yet. */
static int fetch_wanted(struct hub_session *fetch, struct err *err)
{
    fetch->found->bytes = 0;
    fetch->found->files = 0;
    for (size_t i = 0; i < fetch->file_count; i++)
        if (fetch->wanted[i]) {
            fetch->found->bytes += fetch->files[i].size;
            fetch->found->files++;
        }
    const uint64_t most = fetch->place->bytes_max;
    if (most > 0 && fetch->found->bytes > most) {
        char is[32], may[32];
        return err_set(err, ERR_TOO_BIG, "%s has %s, and at most %s may be fetched", fetch->name->id,
                       units_bytes(is, fetch->found->bytes), units_bytes(may, most));
    }
    if (file_mkdirs(fetch->folder, 0755, err) < 0 || has_room(fetch, err) < 0)
        return -1;
    for (int turn = 0; turn < TURNS; turn++)
        for (size_t i = 0; i < fetch->file_count; i++) {
            if (!fetch->wanted[i] || fetch->there[i] || fetch_turn_of(fetch->files[i].path) != turn)
                continue;
            if (fetch_file(fetch, &fetch->files[i], err) < 0)
                return -1;
            fetch->there[i] = true;
        }
    return 0;
}

/* The paths of the files, new; NULL without memory. */
static const char **paths_of(const struct hub_session *fetch, struct err *err)
{
    const char **paths = calloc(fetch->file_count + 1, sizeof(*paths));
    if (!paths)
        err_set(err, ERR_NOMEM, "no memory for a list of files");
    for (size_t i = 0; paths && i < fetch->file_count; i++)
        paths[i] = fetch->files[i].path;
    return paths;
}

static int choose_model(struct hub_session *fetch, bool weights, bool *more, struct err *err)
{
    const char **paths = paths_of(fetch, err);
    int result = !paths ? -1
                        : model_source_choose(&(struct model_repository){.name = fetch->name->id,
                                                                         .files = paths,
                                                                         .file_count = fetch->file_count,
                                                                         .folder = fetch->snapshot},
                                              weights, fetch->wanted, more, err);
    free(paths);
    return result;
}

/* Sets the only file to the one with the rows. */
static int choose_rows(struct hub_session *fetch, enum hub_part part, struct err *err)
{
    const char **paths = paths_of(fetch, err);
    size_t file;
    int result = paths ? rows_file_choose(fetch->name->id, paths, fetch->file_count, part, &file, err) : -1;
    if (result == 0)
        snprintf(fetch->file, sizeof(fetch->file), "%s", paths[file]);
    free(paths);
    return result;
}

static bool has_weights(const struct hub_session *fetch)
{
    for (size_t i = 0; i < fetch->file_count; i++)
        if (fetch->there[i] && is_weights(fetch->files[i].path))
            return true;
    return false;
}

/* The weights come last, so that a snapshot with weights has all the rest. */
static int fetch_model(struct hub_session *fetch, enum hub_part part, struct err *err)
{
    for (int weights = 0; weights <= (part == HUB_WHOLE); weights++) {
        bool more = false;
        do
            if (choose_model(fetch, weights, &more, err) < 0 || fetch_wanted(fetch, err) < 0)
                return -1;
        while (more);
    }
    return part == HUB_DESCRIPTION || has_weights(fetch)
               ? 0
               : err_set(
                     err, ERR_INVALID,
                     "%s@%s holds no weights: neither safetensors nor a GGUF file; is it an adapter, or a "
                     "tokenizer alone?",
                     fetch->name->id, fetch->name->revision);
}

static int fetch_one(struct hub_session *fetch, struct err *err)
{
    char some[200] = "";
    for (size_t i = 0; i < fetch->file_count; i++) {
        const char *path = fetch->files[i].path;
        if (strcmp(path, fetch->file) == 0) {
            fetch->wanted[i] = true;
            return fetch_wanted(fetch, err);
        }
        if (strlen(some) + strlen(path) + 3 < sizeof(some))
            snprintf(some + strlen(some), sizeof(some) - strlen(some), "%s%s", *some ? ", " : "", path);
    }
    return err_set(err, ERR_NOT_FOUND, "%s@%s has no file %s; it has %s", fetch->name->id,
                   fetch->name->revision, fetch->file, *some ? some : "none");
}

static void fetch_fini(struct hub_session *fetch)
{
    http_destroy(fetch->http);
    for (size_t i = 0; i < fetch->file_count; i++)
        free(fetch->files[i].path);
    free(fetch->files);
    free(fetch->wanted);
    free(fetch->there);
}

int hub_fetch(const struct hub_place *place, const struct hub_name *name, enum hub_part part,
              const struct hub_watch *watch, struct hub_found *found, struct err *err)
{
    static const struct hub_watch nobody = {0};
    struct hub_session fetch = {
        .place = place, .name = name, .watch = watch ? watch : &nobody, .found = found};
    *found = (struct hub_found){0};
    if (place->offline)
        return err_set(err, ERR_NET,
                       "%s is not in the cache %s, and HF_HUB_OFFLINE forbids to fetch it: unset that",
                       name->id, place->cache);
    if (cache_folder(place, name, fetch.folder, err) < 0)
        return -1;
    fetch.http = http_create(&(struct http_options){.url = place->endpoint,
                                                    .bearer = *place->token ? place->token : NULL,
                                                    .ca_file = *place->ca_file ? place->ca_file : NULL,
                                                    .user_agent = "motley",
                                                    .connect_ms = CONNECT_MS,
                                                    .web = true},
                             err);
    fetch.retry = (struct retry){
        .patience_ns = (uint64_t)FIRST_PATIENCE_S * 1000000000u, .stopped = hub_is_stopped, .arg = &fetch};
    retry_moved(&fetch.retry);
    snprintf(fetch.file, sizeof(fetch.file), "%s", name->file);
    int result = fetch.http && ask_list(&fetch, err) == 0 ? 0 : -1;
    if (result == 0 && name->dataset && !*fetch.file)
        result = choose_rows(&fetch, part, err);
    if (result == 0)
        result = *fetch.file ? fetch_one(&fetch, err) : fetch_model(&fetch, part, err);
    if (result == 0)
        result = cache_keep_commit(fetch.folder, name->revision, found->commit, err);
    if (result == 0)
        result = file_path(found->path, sizeof(found->path), err, "%s%s%s", fetch.snapshot,
                           *fetch.file ? "/" : "", fetch.file);
    fetch_fini(&fetch);
    return result;
}
