/* Models: names that stand for contents. A model is registered from uploaded files, or by an administrator
 * from a path on this host without a copy.
 */
#include "api/blobs/models.h"

#include "api/request/route.h"
#include "api/request/wait.h"

#include "api/people/access.h"
#include "api/request/blob_dir.h"
#include "api/check/check.h"
#include "api/blobs/known.h"
#include "api/request/parsed.h"
#include "common/file.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/json.h"
#include "common/units.h"
#include "hub/hub.h"
#include "model/files/manifest.h"
#include "store/jobs.h"
#include "store/models.h"

#include <errno.h>
#include <stdio.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { FILES_MAX = 512, BASE_NAME_MAX = 4095, BASE_REVISION_MAX = 255 /* bytes */ };

struct registration {
    struct app *app;
    struct principal principal;
    registration_done_fn *fetched; /* called at the end of registration_fetch; NULL: a request waits */
    void *arg;
    char name[STORE_NAME_MAX + 1];
    struct sharing sharing; /* the group's name is borrowed from the call's body */
    char *path;             /* path of a model registered by reference, else NULL */
    struct hub_name hub;    /* a model to fetch, which then is registered by reference; "": none */
    uint64_t sent_bytes;    /* that the person has here besides */
    pthread_mutex_t seen_lock;
    struct registration_seen seen; /* how far the fetch is, under the lock */
    atomic_bool stopped;           /* the fetch is not wanted any more */
    json_t *files;                 /* [{"name","size","sha256","path"?}] */
    json_t *manifests;             /* the files' manifests, in order */
    json_t *config, *info;
    json_t *base; /* {"name","revision"?}, or NULL */
    char content[DIGEST_HEX_SIZE];
};

static void registration_free(struct registration *r)
{
    free(r->path);
    json_decref(r->files);
    json_decref(r->manifests);
    json_decref(r->config);
    json_decref(r->info);
    json_decref(r->base);
    pthread_mutex_destroy(&r->seen_lock);
    free(r);
}

static struct registration *registration_create(struct app *app, const struct principal *principal)
{
    struct registration *r = calloc(1, sizeof(*r));
    if (!r)
        return NULL;
    r->app = app;
    r->principal = *principal;
    r->files = json_array();
    r->manifests = json_array();
    pthread_mutex_init(&r->seen_lock, NULL);
    if (r->files && r->manifests)
        return r;
    registration_free(r);
    return NULL;
}

/* ---- on a pool thread ---- */

/* Makes the manifest of one local file, or reuses the known one if the file is unchanged. */
static int hash_file(struct known_files *known, struct model_source *source, uint32_t index, const char *path,
                     struct manifest *manifest, struct err *err)
{
    if (known_files_find(known, path, manifest))
        return 0;
    int64_t since_ns = clock_wall_us() * 1000;
    if (manifest_make(source, index, manifest, err) < 0)
        return -1;
    known_files_keep(known, path, since_ns, manifest);
    return 0;
}

static int take_local(struct registration *r, struct model_source *source, uint32_t index, bool folder,
                      struct err *err)
{
    const struct model_file *file = model_source_file(source, index);
    struct manifest manifest = {0};
    char path[BLOB_PATH_MAX], within[BLOB_PATH_MAX], real[PATH_MAX], sha256[DIGEST_HEX_SIZE];
    if ((folder ? (model_source_folder(r->path, within, sizeof(within), err) < 0
                       ? -1
                       : model_source_path(within, file->name, path, sizeof(path), err))
                : file_path(path, sizeof(path), err, "%s", r->path)) < 0 ||
        hash_file(r->app->known, source, index, path, &manifest, err) < 0)
        return -1;
    /* Workers follow no link: in a hub's cache each file is one. */
    if (!realpath(path, real) || strlen(real) >= sizeof(path)) {
        manifest_fini(&manifest);
        return err_set(err, ERR_INVALID, "path: %s leads to no file that can be used in place", path);
    }
    digest_hex(manifest.sha256, 32, sha256);
    json_array_append_new(r->files, json_pack("{s:s, s:I, s:s, s:s}", "name", file->name, "size",
                                              (json_int_t)file->size, "sha256", sha256, "path", real));
    json_array_append_new(r->manifests, manifest_to_json(&manifest, err));
    manifest_fini(&manifest);
    return 0;
}

/* Hashes every file of the model at r->path. Fills r->files and r->manifests. */
static int hash_local(struct registration *r, uint64_t bytes_max, struct err *err)
{
    struct model_source *source = NULL;
    struct stat st;
    if (stat(r->path, &st) < 0)
        return err_set(err, ERR_NOT_FOUND, "path: %s: %s", r->path, strerror(errno));
    if (model_source_open_local(r->path, &source, err) < 0)
        return -1;
    uint64_t total = 0;
    int rc = 0;
    for (uint32_t i = 0; i < model_source_file_count(source); i++)
        total += model_source_file(source, i)->size;
    if (total > bytes_max)
        rc = err_set(err, ERR_TOO_BIG, "the model has %llu bytes, the limit is %llu",
                     (unsigned long long)total, (unsigned long long)bytes_max);
    for (uint32_t i = 0; rc == 0 && i < model_source_file_count(source); i++)
        rc = take_local(r, source, i, S_ISDIR(st.st_mode), err);
    model_source_close(source);
    return rc;
}

static int content_of(struct registration *r, struct err *err)
{
    size_t count = json_array_size(r->files), made = 0;
    const char **names = calloc(count, sizeof(*names));
    struct manifest *manifests = calloc(count, sizeof(*manifests));
    uint8_t content[32];
    int rc = names && manifests ? 0 : err_set(err, ERR_NOMEM, "out of memory for a model's files");
    for (; rc == 0 && made < count; made++) {
        names[made] = json_string_value(json_object_get(json_array_get(r->files, made), "name"));
        rc = manifest_parse(json_array_get(r->manifests, made), &manifests[made], err);
    }
    if (rc == 0)
        rc = manifest_content_id(names, manifests, (uint32_t)count, content, err);
    if (rc == 0)
        digest_hex(content, 32, r->content);
    for (size_t i = 0; manifests && i < made; i++)
        manifest_fini(&manifests[i]);
    free(manifests);
    free(names);
    return rc;
}

/* Makes what adapters name as their base of an absolute path: OWNER/NAME and revision of a snapshot in a
 * hub's cache (".../models--OWNER--NAME/snapshots/REVISION"), else the path itself. */
static json_t *base_of_path(const char *path)
{
    static const char models[] = "models--", snapshots[] = "/snapshots/";
    const char *revision = strrchr(path, '/') + 1;
    size_t before = (size_t)(revision - path), tail = strlen(snapshots);
    const char *end = before > tail ? revision - tail : path, *name = end;
    while (name > path && name[-1] != '/')
        name--;
    if (name == path || !*revision || strncmp(end, snapshots, tail) != 0 ||
        strncmp(name, models, strlen(models)) != 0)
        return json_pack("{s:s}", "name", path);
    name += strlen(models);
    const char *dashes = strstr(name, "--"); /* none: a model of the hub without an owner */
    int owner = dashes && dashes < end ? (int)(dashes - name) : 0, skipped = owner ? owner + 2 : 0;
    return json_pack("{s:o, s:s}", "name",
                     json_sprintf("%.*s%s%.*s", owner, name, owner ? "/" : "", (int)(end - name) - skipped,
                                  name + skipped),
                     "revision", revision);
}

static bool fetch_is_stopped(const void *arg)
{
    const struct registration *r = arg;
    return atomic_load(&r->stopped) || atomic_load(&r->app->fetches_stopped);
}

static void fetch_moved(void *arg, const char *file, uint64_t done, uint64_t total)
{
    struct registration *r = arg;
    (void)file;
    pthread_mutex_lock(&r->seen_lock);
    r->seen = (struct registration_seen){.done_bytes = done, .total_bytes = total};
    pthread_mutex_unlock(&r->seen_lock);
}

static void fetch_noted(void *arg, const char *sentence)
{
    struct registration *r = arg;
    pthread_mutex_lock(&r->seen_lock);
    snprintf(r->seen.note, sizeof(r->seen.note), "%s", sentence);
    pthread_mutex_unlock(&r->seen_lock);
}

void registration_look(struct registration *r, struct registration_seen *seen)
{
    pthread_mutex_lock(&r->seen_lock);
    *seen = r->seen;
    pthread_mutex_unlock(&r->seen_lock);
}

void registration_stop(struct registration *r)
{
    atomic_store(&r->stopped, true);
}

/* Fetches the model, whose path in the cache becomes r->path. */
static int models_fetch_model(struct registration *r, struct err *err)
{
    const struct api_config *config = r->app->config;
    struct hub_watch watch = {
        .moved = fetch_moved, .note = fetch_noted, .stopped = fetch_is_stopped, .arg = r};
    const uint64_t left = config->user_bytes_max > r->sent_bytes ? config->user_bytes_max - r->sent_bytes : 1;
    char may[32], has[32];
    struct hub_place place;
    struct hub_found found;
    if (hub_place_read(&place, err) < 0 ||
        (config->hub.cache && file_path(place.cache, sizeof(place.cache), err, "%s", config->hub.cache) < 0))
        return -1;
    place.bytes_max = left < config->model_bytes_max ? left : config->model_bytes_max;
    if (hub_fetch(&place, &r->hub, HUB_WHOLE, &watch, &found, err) < 0)
        return err->code != ERR_TOO_BIG || place.bytes_max != left
                   ? -1
                   : err_wrap(err, "%s may have %s of files here, and has %s", r->principal.name,
                              units_bytes(may, config->user_bytes_max), units_bytes(has, r->sent_bytes));
    r->path = strdup(found.path);
    return r->path ? 0 : err_set(err, ERR_NOMEM, "out of memory for a model");
}

static int register_work(void *arg, struct err *err)
{
    struct registration *r = arg;
    char folder[BLOB_PATH_MAX];
    if (*r->hub.id && models_fetch_model(r, err) < 0)
        return r->fetched ? -1 : err_wrap(err, "hub");
    if (r->path && !r->base && model_source_folder(r->path, folder, sizeof(folder), err) == 0)
        r->base = base_of_path(folder);
    if ((r->path && hash_local(r, r->app->config->model_bytes_max, err) < 0) || content_of(r, err) < 0)
        return -1;
    return parsed_model(r->app, r->files, &r->config, &r->info, err);
}

/* ---- on the loop's thread ---- */

static json_t *models_answer_of(const struct registration *r)
{
    json_t *files = json_array();
    size_t index;
    json_t *file;
    json_array_foreach (r->files, index, file)
        json_array_append_new(files, json_pack("{s:O, s:O, s:O}", "name", json_object_get(file, "name"),
                                               "size", json_object_get(file, "size"), "sha256",
                                               json_object_get(file, "sha256")));
    return json_pack("{s:s, s:s, s:s, s:s?, s:s, s:O, s:O, s:O?, s:o}", "name", r->name, "owner",
                     r->principal.name, "visibility", visibility_name(r->sharing.visibility), "group",
                     r->sharing.group, "content", r->content, "config", r->config, "info", r->info, "base",
                     r->base, "files", files);
}

/* Looks up an uploaded file of the model, and takes its size and manifest. */
static int take_uploaded(struct registration *r, size_t index, struct err *err)
{
    struct wait wait = wait_of(r->app);
    json_t *file = json_array_get(r->files, index), *size = json_object_get(file, "size");
    const char *sha256 = json_string_value(json_object_get(file, "sha256"));
    if (wait_end(&wait, store_blob_get(r->app->store, &r->principal, sha256, wait_doc, &wait, err), err) < 0)
        return err->code != ERR_NOT_FOUND
                   ? -1
                   : err_set(err, ERR_INVALID, "files[%zu]: %s (%s) was not uploaded", index,
                             json_string_value(json_object_get(file, "name")), sha256);
    json_t *manifest = json_object_get(wait.doc, "manifest"), *bytes = json_object_get(wait.doc, "size");
    int rc = 0;
    if (!json_is_object(manifest))
        rc = err_set(err, ERR_INTERNAL, "files[%zu]: the uploaded file has no manifest", index);
    else if (size && json_integer_value(size) != json_integer_value(bytes))
        rc = err_set(err, ERR_INVALID, "files[%zu].size: it is %lld, the uploaded file has %lld bytes", index,
                     (long long)json_integer_value(size), (long long)json_integer_value(bytes));
    if (rc == 0) {
        json_object_set(file, "size", bytes);
        if (json_is_string(json_object_get(wait.doc, "path")))
            json_object_set(file, "path", json_object_get(wait.doc, "path"));
        json_array_append(r->manifests, manifest);
    }
    json_decref(wait.doc);
    return rc;
}

/* Records a file of a model that is registered by reference, as a blob with a path. */
static int file_record(struct registration *r, size_t index, struct err *err)
{
    struct wait wait = wait_of(r->app);
    const json_t *file = json_array_get(r->files, index);
    const struct store_blob blob = {.sha256 = json_string_value(json_object_get(file, "sha256")),
                                    .size = json_integer_value(json_object_get(file, "size")),
                                    .path = json_string_value(json_object_get(file, "path")),
                                    .manifest = json_array_get(r->manifests, index)};
    return wait_end(&wait, store_blob_put(r->app->store, &r->principal, &blob, wait_done, &wait, err), err);
}

struct sent_wait {
    struct wait wait; /* must come first, since wait_done takes its address */
    int64_t bytes;
};

static void sent_counted(void *arg, const struct err *err, int64_t bytes)
{
    ((struct sent_wait *)arg)->bytes = bytes;
    wait_done(arg, err);
}

/* Registers a model: uploaded files are looked up; a model of the Hub is fetched, after what the person has
 * here without it was counted, since it may be here already; then the files are hashed and read, and the
 * model is recorded. */
static int registration_run(struct registration *r, struct err *err)
{
    struct app *app = r->app;
    struct wait wait = wait_of(app);
    if (*r->hub.id) {
        struct sent_wait sent = {.wait = wait};
        if (wait_end(&sent.wait,
                     store_sent_bytes(app->store, r->principal.id, r->hub.id, sent_counted, &sent, err),
                     err) < 0)
            return -1;
        r->sent_bytes = (uint64_t)sent.bytes;
    }
    for (size_t i = 0; !r->path && !*r->hub.id && i < json_array_size(r->files); i++)
        if (take_uploaded(r, i, err) < 0)
            return -1;
    if (wait_work(app, *r->hub.id ? app->fetches : app->pool, register_work, r, err) < 0)
        return -1;
    for (size_t i = 0; r->path && i < json_array_size(r->files); i++)
        if (file_record(r, i, err) < 0)
            return -1;
    const struct store_model_new model = {.name = r->name,
                                          .content = r->content,
                                          .config = r->config,
                                          .files = r->files,
                                          .info = r->info,
                                          .base = r->base,
                                          .fetched = *r->hub.id != '\0',
                                          .sharing = r->sharing};
    if (wait_end(&wait, store_model_put(app->store, &r->principal, &model, wait_done, &wait, err), err) < 0)
        return -1;
    submits_forget(app->submits);
    return 0;
}

/* The name under which a model of the Hub is registered: its own without the owner, or the file's. */
static const char *models_name_on_hub(const struct hub_name *hub)
{
    const char *path = *hub->file ? hub->file : hub->id, *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static void fetch_run(void *arg)
{
    struct registration *r = arg;
    struct err err = {0};
    const int rc = registration_run(r, &err);
    r->fetched(r->arg, rc < 0 ? &err : NULL, rc < 0 ? NULL : r->content);
    registration_free(r);
}

int registration_fetch(struct app *app, const struct principal *principal, const char *word,
                       registration_done_fn *done, void *arg, struct registration **out, struct err *err)
{
    struct registration *r = registration_create(app, principal);
    if (!r)
        return err_set(err, ERR_NOMEM, "out of memory for a model");
    r->fetched = done;
    r->arg = arg;
    r->sharing.visibility = VISIBLE_MINE;
    if (hub_name_parse(word, &r->hub, err) < 0) {
        registration_free(r);
        return -1;
    }
    snprintf(r->name, sizeof(r->name), "%.*s", STORE_NAME_MAX, models_name_on_hub(&r->hub));
    *out = r;
    if (wait_run(app, fetch_run, r, err) == 0)
        return 0;
    registration_free(r);
    *out = NULL;
    return -1;
}

static int models_take_file(struct json_reader *reader, const json_t *list, size_t index, json_t *files)
{
    struct json_reader item;
    const char *name = NULL, *sha256 = NULL;
    int64_t size = -1;
    if (jr_item(reader, "files", list, index, &item) < 0)
        return -1;
    jr_str(&item, "name", JR_REQUIRED, 1, MODEL_FILE_NAME_MAX, &name);
    jr_str(&item, "sha256", JR_REQUIRED, 64, 64, &sha256);
    jr_i64(&item, "size", JR_OPTIONAL, 0, INT64_MAX, &size);
    if (sha256 && !blob_name_valid(sha256))
        return jr_fail(&item, "sha256", "it is not 64 lower-case hex digits");
    if (name && (strchr(name, '/') || name[0] == '.'))
        return jr_fail(&item, "name", "\"%.80s\" is not a plain file name", name);
    if (jr_finish(&item) < 0)
        return -1;
    json_t *file = json_pack("{s:s, s:s}", "name", name, "sha256", sha256);
    if (size >= 0)
        json_object_set_new(file, "size", json_integer(size));
    return json_array_append_new(files, file);
}

/* Reads `base`: a model of the hub, perhaps with its revision, or an absolute path. */
static void take_base(struct json_reader *reader, struct registration *r)
{
    static const char letters[] = "/abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    struct json_reader item;
    const json_t *given = NULL;
    const char *name = NULL, *revision = NULL;
    if (jr_object(reader, "base", JR_OPTIONAL, &given) <= 0 || jr_sub(reader, "base", JR_REQUIRED, &item) < 0)
        return;
    jr_str(&item, "name", JR_REQUIRED, 1, BASE_NAME_MAX, &name);
    jr_str(&item, "revision", JR_OPTIONAL, 1, BASE_REVISION_MAX, &revision);
    size_t owner = name ? strspn(name, letters + 1) : 0;
    size_t all = owner && name[owner] == '/' ? owner + 1 + strspn(name + owner + 1, letters + 1) : owner;
    if (name && name[0] != '/' && (!owner || name[0] == '.' || name[all] || name[all - 1] == '/'))
        jr_fail(&item, "name", "\"%.120s\" is neither OWNER/NAME of the hub nor an absolute path", name);
    if (name && revision && (name[0] == '/' || revision[strspn(revision, letters)]))
        jr_fail(&item, "revision", "\"%.120s\" is no revision of a model of the hub", revision);
    if (jr_finish(&item) == 0 && name)
        r->base = name[0] == '/' ? base_of_path(name)
                                 : json_pack("{s:s, s:s*}", "name", name, "revision", revision);
}

static int take_registration(struct call *call, struct registration *r, struct err *err)
{
    struct json_reader reader;
    const char *name = NULL, *path = NULL, *hub = NULL;
    const json_t *files = NULL;
    call_reader(call, &reader, err);
    jr_str(&reader, "name", JR_REQUIRED, 1, STORE_NAME_MAX, &name);
    jr_str(&reader, "path", JR_OPTIONAL, 1, BLOB_PATH_MAX - 1 - MODEL_FILE_NAME_MAX - 1, &path);
    jr_str(&reader, "hub", JR_OPTIONAL, 1, HUB_ID_BYTES + HUB_REVISION_BYTES + HUB_FILE_BYTES, &hub);
    jr_array(&reader, "files", JR_OPTIONAL, 1, FILES_MAX, &files);
    call_plain(&reader, "name", name);
    for (size_t i = 0; !reader.failed && i < json_array_size(files); i++)
        if (models_take_file(&reader, files, i, r->files) < 0)
            return -1;
    if (name && strchr(name, '/'))
        jr_fail(&reader, "name", "\"%.80s\" holds a '/': a model is yours, and others say OWNER/NAME", name);
    /* Unless the body says otherwise, a model that is registered by reference is visible to everybody, and an
     * uploaded one to its uploader. */
    take_base(&reader, r);
    call_sharing(&reader, path ? VISIBLE_EVERYONE : VISIBLE_MINE, &r->sharing);
    if (jr_finish(&reader) < 0)
        return -1;
    if ((path != NULL) + (files != NULL) + (hub != NULL) != 1)
        return err_set(
            err, ERR_INVALID,
            "give one of files (uploaded before), hub (a name on the Hub) and path (administrators)");
    if (hub && hub_name_parse(hub, &r->hub, err) < 0)
        return err_wrap(err, "hub");
    snprintf(r->name, sizeof(r->name), "%s", name);
    if (path && path[0] != '/')
        return err_set(err, ERR_INVALID, "path: \"%.120s\" is not absolute", path);
    if (path && !(r->path = strdup(path)))
        return err_set(err, ERR_NOMEM, "out of memory for a model");
    return 0;
}

/* Answers why a registration that was allowed has failed. */
static void answer_failure(struct call *call, const struct registration *r, const struct err *err)
{
    /* of a hub's refusals: it is the server's token that may not, not the caller's */
    const bool not_ours = *r->hub.id && (err->code == ERR_AUTH || err->code == ERR_DENIED);
    if (not_ours || err->code == ERR_NOT_FOUND || err->code == ERR_INVALID)
        call_problem(call, 422, err_code_name(not_ours ? ERR_INVALID : err->code), NULL, "%s", err->text);
    else
        call_refuse(call, err);
}

void models_add(struct call *call)
{
    struct err err = {0};
    struct registration *r = registration_create(call->app, &call->principal);
    if (!r) {
        err_set(&err, ERR_NOMEM, "out of memory for a model");
        call_fail(call, &err);
        return;
    }
    if (take_registration(call, r, &err) < 0)
        call_refuse(call, &err);
    else if ((r->path && access_admin(&call->principal,
                                      "path: only an administrator may register by reference", &err) < 0) ||
             (*r->hub.id && api_config_may_fetch(call->app->config, call->principal.admin, &err) < 0 &&
              err_wrap(&err, "hub") < 0))
        call_fail(call, &err);
    else if (registration_run(r, &err) < 0)
        answer_failure(call, r, &err);
    else
        call_json(call, 201, models_answer_of(r), NULL);
    registration_free(r);
}

void models_list(struct call *call)
{
    struct err err = {0};
    if (call_list(call, "models name owner") == 0 &&
        store_model_list(call->app->store, &call->principal, call_answer_list, call, &err) < 0)
        call_fail(call, &err);
}

static void model_found(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err) {
        call_fail(call, err);
        return;
    }
    json_t *answer = json_deep_copy(doc); /* a copy without the paths of its files */
    size_t index;
    json_t *file;
    json_array_foreach (json_object_get(answer, "files"), index, file)
        json_object_del(file, "path");
    call_json(call, 200, answer, NULL);
}

void models_get(struct call *call)
{
    struct err err = {0};
    if (store_model_get(call->app->store, &call->principal, call->params[0], model_found, call, &err) < 0)
        call_fail(call, &err);
}

static void model_removed(void *arg, const struct err *err, json_t *doc)
{
    (void)doc;
    struct call *call = arg;
    submits_forget(call->app->submits);
    if (err)
        call_fail(call, err);
    else
        call_empty(call, 204);
}

void models_remove(struct call *call)
{
    struct err err = {0};
    if (store_model_remove(call->app->store, &call->principal, call->params[0], model_removed, call, &err) <
        0)
        call_fail(call, &err);
}
