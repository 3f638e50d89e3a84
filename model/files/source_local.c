/* Opens files of this machine, mapped read-only, and decides which files of a folder are the model. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/array.h"
#include "common/file.h"
#include "model/files/hub_json.h"
#include "model/files/source.h"

enum { INDEX_BYTES_MAX = 64 << 20, PATH_BYTES = 4096 };

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

/* The files beside the weights that belong to a model. */
static const char *const side_names[] = {
    "config.json",           "generation_config.json",  "tokenizer.json",
    "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja",
    "chat_template.json",    "added_tokens.json",
};
/* The sub-folder of further chat templates; their names are MODEL_TEMPLATES_PREFIX and the file's name. */
static const char templates_folder[] = "additional_chat_templates";
/* The tokenizer's file in folders without a tokenizer.json. */
static const char pieces_name[] = "tokenizer.model";

/* Pages that were read stay in the process until 8 MiB were read, then they are given back to the kernel, so
 * that a worker's memory does not grow by a model that it only copied from. */
enum { GIVE_BACK_BYTES = 8 << 20 };

struct mapping {
    void *data;
    size_t size;
    _Atomic size_t read; /* bytes read since pages were last given back */
};

struct local {
    struct mapping *maps;
    uint32_t count;
};

static void source_local_destroy(void *self)
{
    struct local *local = self;
    for (uint32_t i = 0; i < local->count; i++)
        if (local->maps[i].data)
            munmap(local->maps[i].data, local->maps[i].size);
    free(local->maps);
    free(local);
}

static int source_local_read(void *self, uint32_t file, uint64_t offset, size_t size, void *dst,
                             struct err *err)
{
    (void)err;
    struct local *local = self;
    struct mapping *map = &local->maps[file];
    memcpy(dst, (const uint8_t *)map->data + offset, size);
    if (atomic_fetch_add_explicit(&map->read, size, memory_order_relaxed) + size >= GIVE_BACK_BYTES) {
        atomic_store_explicit(&map->read, 0, memory_order_relaxed);
        madvise(map->data, map->size, MADV_DONTNEED);
    }
    return 0;
}

static const struct model_source_ops local_ops = {.read = source_local_read, .destroy = source_local_destroy};

/* Maps one regular file; errors call it 'shown'. */
static int map_file(const char *path, const char *shown, struct mapping *map, struct err *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return err_errno(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "could not open file \"%s\"",
                         shown);
    int status = -1;
    if (fstat(fd, &st) < 0) {
        err_errno(err, ERR_IO, errno, "could not look at file \"%s\"", shown);
        goto out;
    }
    if (!S_ISREG(st.st_mode)) {
        err_set(err, ERR_INVALID, "\"%s\" is no regular file", shown);
        goto out;
    }
    map->size = (size_t)st.st_size;
    if (map->size > 0) {
        map->data = mmap(NULL, map->size, PROT_READ, MAP_PRIVATE, fd, 0);
        if (map->data == MAP_FAILED) {
            map->data = NULL;
            err_errno(err, ERR_IO, errno, "could not map file \"%s\"", shown);
            goto out;
        }
    }
    status = 0;
out:
    close(fd);
    return status;
}

/* A growing list of plain names. */
struct names {
    char (*names)[MODEL_FILE_NAME_MAX + 1];
    uint32_t count;
    size_t capacity;
};

static int source_local_names_add(struct names *list, const char *name, struct err *err)
{
    size_t length = strlen(name);
    for (uint32_t i = 0; i < list->count; i++)
        if (strcmp(list->names[i], name) == 0)
            return 0;
    if (length == 0 || length > MODEL_FILE_NAME_MAX || strchr(name, '/') || strcmp(name, ".") == 0 ||
        strcmp(name, "..") == 0)
        return err_set(err, ERR_INVALID, "\"%.80s\" is no plain file name", name);
    if (list->count == MODEL_FILES_MAX)
        return err_set(err, ERR_TOO_BIG, "a model of more than %d files", MODEL_FILES_MAX);
    if (ARRAY_RESERVE(list->names, list->capacity, (size_t)list->count + 1, err) < 0)
        return -1;
    memcpy(list->names[list->count++], name, length + 1);
    return 0;
}

static bool present(const char *dir, const char *name)
{
    char path[PATH_BYTES];
    struct err ignored;
    struct stat st;
    return file_path(path, sizeof(path), &ignored, "%s/%s", dir, name) == 0 && stat(path, &st) == 0 &&
           S_ISREG(st.st_mode);
}

/* What a folder holds: the names that were read from it, or those of a hub's repository, of which the folder
 * has some. */
struct folder_listing {
    const char *dir;
    const char *shown; /* what errors call it */
    char **names;      /* [count] paths with '/' */
    size_t count, capacity;
    bool remote; /* the names are borrowed, and of a repository */
};

static void listing_fini(struct folder_listing *listing)
{
    for (size_t i = 0; i < listing->count; i++)
        free(listing->names[i]);
    free(listing->names);
}

/* Adds what a folder, or the folder `below` it, holds. A folder that is not there holds nothing. */
static int listing_read(struct folder_listing *listing, const char *below, struct err *err)
{
    char path[PATH_BYTES];
    if (file_path(path, sizeof(path), err, "%s%s%s", listing->dir, below ? "/" : "", below ? below : "") < 0)
        return -1;
    DIR *folder = opendir(path);
    if (!folder)
        return below ? 0 : err_errno(err, ERR_IO, errno, "could not open folder \"%s\"", path);
    int status = 0;
    for (struct dirent *entry; status == 0 && (entry = readdir(folder));) {
        char *name = NULL;
        if (asprintf(&name, "%s%s%s", below ? below : "", below ? "/" : "", entry->d_name) < 0)
            status = err_set(err, ERR_NOMEM, "no memory for the names in a folder");
        else if (ARRAY_RESERVE(listing->names, listing->capacity, listing->count + 1, err) < 0) {
            free(name);
            status = -1;
        } else
            listing->names[listing->count++] = name;
    }
    closedir(folder);
    return status;
}

static bool source_local_listed(const struct folder_listing *listing, const char *name)
{
    for (size_t i = 0; i < listing->count; i++)
        if (strcmp(listing->names[i], name) == 0)
            return listing->remote || present(listing->dir, name);
    return false;
}

/* Adds the shards that the index names, in order of name. */
static int add_shards(const char *dir, struct names *list, struct err *err)
{
    char path[PATH_BYTES];
    struct buf text = {.limit = INDEX_BYTES_MAX};
    json_t *document = NULL;
    int status = -1;
    if (file_path(path, sizeof(path), err, "%s/%s", dir, index_name) < 0 ||
        file_read_all(path, INDEX_BYTES_MAX, &text, err) < 0)
        goto out;
    document = hub_json_parse((const char *)text.data, text.size, JSON_DEPTH_MAX, err);
    if (!document) {
        err_wrap(err, "%s", index_name);
        goto out;
    }
    json_t *map = json_object_get(document, "weight_map"), *value;
    const char *key;
    if (!json_is_object(map) || json_object_size(map) == 0) {
        err_set(err, ERR_INVALID, "%s: weight_map: missing, empty or no object", index_name);
        goto out;
    }
    json_object_foreach (map, key, value) {
        const char *name = json_string_value(value);
        if (!name) {
            err_set(err, ERR_INVALID, "%s: weight_map.%.100s: not a file name", index_name, key);
            goto out;
        }
        if (source_local_names_add(list, name, err) < 0) {
            err_wrap(err, "%s: weight_map.%.100s", index_name, key);
            goto out;
        }
    }
    status = 0;
out:
    json_decref(document);
    buf_fini(&text);
    return status;
}

/* Adds the only file of a folder whose name ends in 'end', in letters of either case; it is no error when
 * there is none. Names that belong to an adapter or to Mistral's own layout do not count as the model. */
static int add_only(const struct folder_listing *listing, const char *end, struct names *list,
                    struct err *err)
{
    static const char *const others[][2] = {
        {"adapter_model.safetensors",
         "an adapter: name it under method.start_from, and its base as the model"},
        {"consolidated.safetensors",
         "Mistral's own layout, which is not read: take the files model*.safetensors beside it"}};
    char all[160] = "";
    const char *found = NULL, *other = NULL;
    int count = 0;
    size_t tail = strlen(end);
    for (size_t at = 0; at < listing->count; at++) {
        const char *name = listing->names[at];
        size_t length = strlen(name);
        bool is_other = false;
        if (length <= tail || length > MODEL_FILE_NAME_MAX || name[0] == '.' || strchr(name, '/') ||
            strcasecmp(name + length - tail, end) != 0)
            continue;
        for (size_t i = 0; i < 2; i++)
            if (strcmp(name, others[i][0]) == 0) {
                is_other = true;
                other = others[i][1];
            }
        if (is_other)
            continue;
        found = name;
        if (strlen(all) + length + 3 < sizeof(all))
            snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", all[0] ? ", " : "", found);
        count++;
    }
    if (count > 1)
        return err_set(err, ERR_INVALID, "\"%s\" holds %d %s files (%s): name one of them%s%s%s%s",
                       listing->shown, count, end, all,
                       strcmp(end, ".gguf") == 0 ? "" : " model.safetensors, or give their index",
                       listing->remote ? ", as " : "", listing->remote ? listing->shown : "",
                       listing->remote ? ":FILE" : "");
    if (count == 1)
        return source_local_names_add(list, found, err);
    return other ? err_set(err, ERR_INVALID, "\"%s\" holds %s", listing->shown, other) : 0;
}

static int source_local_compare_names(const void *a, const void *b)
{
    return strcmp(a, b);
}

/* Refuses weights in a format that is not read; the error says how to convert them. */
static int refuse_other_weights(const struct folder_listing *listing, struct err *err)
{
    static const char *const others[] = {
        "pytorch_model.bin", "pytorch_model.bin.index.json", "consolidated.00.pth", "model.pth",
        "tf_model.h5",       "flax_model.msgpack",           "model.onnx"};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++)
        if (source_local_listed(listing, others[i]))
            return err_set(err, ERR_UNSUPPORTED,
                           "\"%s\" holds weights as %s alone, which is not read: make safetensors of it with "
                           "transformers, "
                           "AutoModelForCausalLM.from_pretrained(DIR).save_pretrained(NEW_DIR)",
                           listing->shown, others[i]);
    return 0;
}

/* Adds the .jinja files of the folder for further templates, if there is one. */
static int add_templates(const struct folder_listing *listing, struct names *list, struct err *err)
{
    char name[MODEL_FILE_NAME_MAX + 1];
    const size_t before = strlen(templates_folder);
    int status = 0;
    for (size_t i = 0; status == 0 && i < listing->count; i++) {
        const char *path = listing->names[i];
        size_t length = strlen(path);
        if (length <= before + 7 || strncmp(path, templates_folder, before) != 0 || path[before] != '/' ||
            strcmp(path + length - 6, ".jinja") != 0)
            continue;
        status = file_path(name, sizeof(name), err, "%s%s", MODEL_TEMPLATES_PREFIX, path + before + 1);
        if (status == 0)
            status = source_local_names_add(list, name, err);
    }
    return status;
}

int model_source_path(const char *dir, const char *name, char *path, size_t size, struct err *err)
{
    static const char prefix[] = MODEL_TEMPLATES_PREFIX;
    bool further = strncmp(name, prefix, sizeof(prefix) - 1) == 0;
    return further ? file_path(path, size, err, "%s/%s/%s", dir, templates_folder, name + sizeof(prefix) - 1)
                   : file_path(path, size, err, "%s/%s", dir, name);
}

/* Adds the weights' files. Of a repository whose index is not in the folder yet, *more becomes true. */
static int add_weights(const struct folder_listing *listing, struct names *list, bool *more, struct err *err)
{
    uint32_t before = list->count;
    if (source_local_listed(
            listing, single_name)) /* an index beside model.safetensors is ignored, as in transformers */
        return source_local_names_add(list, single_name, err);
    if (source_local_listed(listing, index_name)) {
        *more = !present(listing->dir, index_name);
        return source_local_names_add(list, index_name, err) < 0 ||
                       (!*more && add_shards(listing->dir, list, err) < 0)
                   ? -1
                   : 0;
    }
    return add_only(listing, ".gguf", list, err) < 0 ||
                   (list->count == before && add_only(listing, ".safetensors", list, err) < 0) ||
                   (list->count == before && refuse_other_weights(listing, err) < 0)
               ? -1
               : 0;
}

static int list_model(const struct folder_listing *listing, bool weights, struct names *list, bool *more,
                      struct err *err)
{
    *more = false;
    for (size_t i = 0; i < sizeof(side_names) / sizeof(side_names[0]); i++)
        if (source_local_listed(listing, side_names[i]) &&
            source_local_names_add(list, side_names[i], err) < 0)
            return -1;
    if (!source_local_listed(listing, "tokenizer.json") && source_local_listed(listing, pieces_name) &&
        source_local_names_add(list, pieces_name, err) < 0)
        return -1;
    if (add_templates(listing, list, err) < 0 || (weights && add_weights(listing, list, more, err) < 0))
        return -1;
    if (list->count == 0)
        return err_set(err, ERR_NOT_FOUND, "\"%s\" holds no model: neither a config.json nor weights",
                       listing->shown);
    qsort(list->names, list->count, sizeof(*list->names), source_local_compare_names);
    return 0;
}

static int list_folder(const char *dir, struct names *list, struct err *err)
{
    struct folder_listing listing = {.dir = dir, .shown = dir};
    bool more;
    int status = listing_read(&listing, NULL, err) < 0 || listing_read(&listing, templates_folder, err) < 0
                     ? -1
                     : list_model(&listing, true, list, &more, err);
    listing_fini(&listing);
    return status;
}

int model_source_choose(const struct model_repository *repository, bool weights, bool *wanted, bool *more,
                        struct err *err)
{
    static const char prefix[] = MODEL_TEMPLATES_PREFIX;
    struct folder_listing listing = {.dir = repository->folder,
                                     .shown = repository->name,
                                     .names = (char **)(uintptr_t)repository->files,
                                     .count = repository->file_count,
                                     .remote = true};
    struct names list = {0};
    char path[PATH_BYTES];
    /* without a config.json the weights describe the model */
    int status =
        list_model(&listing, weights || !source_local_listed(&listing, "config.json"), &list, more, err);
    memset(wanted, 0, repository->file_count * sizeof(*wanted));
    for (uint32_t n = 0; status == 0 && n < list.count; n++) {
        const char *name = list.names[n];
        const bool further = strncmp(name, prefix, sizeof(prefix) - 1) == 0;
        size_t at = 0;
        status = file_path(path, sizeof(path), err, "%s%s%s", further ? templates_folder : "",
                           further ? "/" : "", further ? name + sizeof(prefix) - 1 : name);
        while (at < listing.count && strcmp(listing.names[at], path) != 0)
            at++;
        if (status == 0 && at == listing.count)
            status = err_set(err, ERR_NOT_FOUND, "\"%s\": its index names %.100s, which is not there",
                             repository->name, name);
        else if (status == 0)
            wanted[at] = true;
    }
    free(list.names);
    return status;
}

int model_source_open_files(const struct model_path *paths, uint32_t count, struct model_source **source,
                            struct err *err)
{
    struct local *local = calloc(1, sizeof(*local));
    struct model_file *files = calloc(count, sizeof(*files));
    *source = NULL;
    if (local)
        local->maps = calloc(count, sizeof(*local->maps));
    if (!local || !files || !local->maps) {
        err_set(err, ERR_NOMEM, "no memory for a model's list of files");
        goto fail;
    }
    local->count = count;
    for (uint32_t i = 0; i < count; i++) {
        if (file_path(files[i].name, sizeof(files[i].name), err, "%s", paths[i].name) < 0 ||
            map_file(paths[i].path, paths[i].name, &local->maps[i], err) < 0)
            goto fail;
        files[i].size = local->maps[i].size;
    }
    int status = model_source_create(&local_ops, local, files, count, source, err);
    free(files);
    return status;
fail:
    free(files);
    if (local)
        source_local_destroy(local);
    return -1;
}

static int open_list(const char *dir, const struct names *list, struct model_source **source, struct err *err)
{
    struct model_path *paths = calloc(list->count, sizeof(*paths));
    char *text = malloc((size_t)list->count * PATH_BYTES);
    int status = paths && text ? 0 : err_set(err, ERR_NOMEM, "no memory for a model's list of files");
    for (uint32_t i = 0; status == 0 && i < list->count; i++) {
        paths[i] = (struct model_path){list->names[i], text + (size_t)i * PATH_BYTES};
        status = model_source_path(dir, list->names[i], text + (size_t)i * PATH_BYTES, PATH_BYTES, err);
    }
    if (status == 0 && model_source_open_files(paths, list->count, source, err) < 0)
        status = err_wrap(err, "%.300s", dir);
    free(text);
    free(paths);
    return status;
}

/* Opens a single file, whose path is split into folder and name. */
static int open_single(const char *path, struct model_source **source, struct err *err)
{
    const char *slash = strrchr(path, '/');
    struct names list = {0};
    char dir[PATH_BYTES];
    int length = slash ? (int)(slash - path) : 1;
    if (file_path(dir, sizeof(dir), err, "%.*s", length, slash ? path : ".") < 0)
        return -1;
    int status = source_local_names_add(&list, slash ? slash + 1 : path, err);
    if (status == 0)
        status = open_list(slash == path ? "/" : dir, &list, source, err);
    free(list.names);
    return status;
}

/* Writes the name that refs/main of a hub's cache contains to snapshot, or else the only folder below
 * "snapshots". */
static int snapshot_of(const char *path, char snapshot[256], struct err *err)
{
    char name[PATH_BYTES];
    struct buf text = {.limit = 256};
    struct err ignored;
    int count = 0;
    snapshot[0] = '\0';
    if (file_path(name, sizeof(name), err, "%s/refs/main", path) < 0)
        return -1;
    if (file_read_all(name, 255, &text, &ignored) == 0 && text.size > 0) {
        size_t size = strcspn(buf_str(&text), " \r\n/");
        snprintf(snapshot, 256, "%.*s", (int)size, buf_str(&text));
        count = 1;
    }
    buf_fini(&text);
    if (count == 0 && file_path(name, sizeof(name), err, "%s/snapshots", path) < 0)
        return -1;
    DIR *folder = count == 0 ? opendir(name) : NULL;
    for (struct dirent *entry; folder && (entry = readdir(folder));)
        if (entry->d_name[0] != '.') {
            snprintf(snapshot, 256, "%s", entry->d_name);
            count++;
        }
    if (folder)
        closedir(folder);
    if (count != 1)
        return err_set(err, ERR_INVALID,
                       "\"%s\" is a hub's cache with %d snapshots and no refs/main: name one folder of its "
                       "snapshots/",
                       path, count);
    return 0;
}

int model_source_folder(const char *path, char *out, size_t size, struct err *err)
{
    char snapshot[256], snapshots[PATH_BYTES];
    struct stat st;
    if (file_path(snapshots, sizeof(snapshots), err, "%s/snapshots", path) < 0)
        return -1;
    if (present(path, "config.json") || stat(snapshots, &st) < 0 || !S_ISDIR(st.st_mode))
        return file_path(out, size, err, "%s", path);
    if (snapshot_of(path, snapshot, err) < 0)
        return -1;
    return file_path(out, size, err, "%s/%s", snapshots, snapshot);
}

int model_source_open_local(const char *path, struct model_source **source, struct err *err)
{
    struct stat st;
    *source = NULL;
    if (stat(path, &st) < 0)
        return err_errno(err, errno == ENOENT ? ERR_NOT_FOUND : ERR_IO, errno, "could not open model \"%s\"",
                         path);
    if (!S_ISDIR(st.st_mode))
        return open_single(path, source, err);
    char folder[PATH_BYTES];
    if (model_source_folder(path, folder, sizeof(folder), err) < 0)
        return -1;
    struct names list = {0};
    int status = list_folder(folder, &list, err);
    if (status == 0)
        status = open_list(folder, &list, source, err);
    free(list.names);
    return status;
}
