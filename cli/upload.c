/* Finds, hashes and uploads the files of a specification, and replaces them by references to their content.
 */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/document.h"
#include "common/units.h"
#include "common/buf.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/upload.h"
#include "model/files/source.h"
#include "model/job/spec.h"

enum {
    PLAN_BYTES_MAX = 15 << 20,       /* the server refuses a specification above 16 MiB */
    MODEL_CALL_MS = 6 * 3600 * 1000, /* the server hashes the whole model before it answers */
};

#define TOLD_BYTES ((uint64_t)64 << 20) /* files from this size on are told of before they are sent */
#define UPLOAD_PATIENCE_NS ((uint64_t)120 * 1000000000u)

/* Resolves a file name of the specification: as it is, else relative to the specification's folder; "" when
 * there is no such file. */
static void find_file(const char *spec_path, const char *word, char out[PATH_MAX])
{
    char folder[PATH_MAX], tried[PATH_MAX * 2];
    out[0] = '\0';
    if (realpath(word, out))
        return;
    const char *home = word[0] == '~' && word[1] == '/' ? getenv("HOME") : NULL;
    if (home) {
        snprintf(tried, sizeof(tried), "%s%s", home, word + 1);
        if (realpath(tried, out))
            return;
    }
    snprintf(folder, sizeof(folder), "%s", spec_path);
    if (*word != '/') {
        snprintf(tried, sizeof(tried), "%s/%s", dirname(folder), word);
        if (realpath(tried, out))
            return;
    }
    out[0] = '\0';
}

struct source {
    int fd;
    const char *path;
};

static int read_source(void *arg, uint64_t offset, void *dst, size_t size, struct err *err)
{
    const struct source *source = arg;
    return file_pread_all(source->fd, dst, size, offset, source->path, err);
}

int upload_file(struct cli *cli, const char *path, char hex[65], uint64_t *bytes, struct err *err)
{
    if (client_open(cli, err) < 0 || file_sha256_hex(path, hex, bytes, err) < 0)
        return -1;
    char route[96];
    snprintf(route, sizeof(route), "/v1/blobs/%s", hex);
    struct http_request there = {.method = "HEAD", .path = route};
    struct err absent = {0};
    if (http_perform(cli->http, &there, NULL, &absent) == 0)
        return 0;
    if (absent.code != ERR_NOT_FOUND) {
        *err = absent;
        return -1;
    }
    char size[32];
    if (*bytes >= TOLD_BYTES)
        fprintf(stderr, "sending %s (%s) to %s\n", path, units_bytes(size, *bytes), cli->address);
    struct source source = {open(path, O_RDONLY | O_CLOEXEC), path};
    if (source.fd < 0)
        return err_errno(err, ERR_IO, errno, "could not open %s", path);
    struct upload_file file = {.sha256 = hex,
                               .size = *bytes,
                               .read = read_source,
                               .arg = &source,
                               .patience_ns = UPLOAD_PATIENCE_NS};
    int result = upload_in_parts(cli->http, &file, err);
    close(source.fd);
    return result < 0 ? err_wrap(err, "uploading %s", path) : 0;
}

static int upload_text(struct cli *cli, const char *text, size_t size, char hex[65], struct err *err)
{
    char route[96];
    if (digest_sha256_hex(text, size, hex, err) < 0)
        return -1;
    snprintf(route, sizeof(route), "/v1/blobs/%s", hex);
    struct http_request put = {.method = "PUT",
                               .path = route,
                               .content_type = "application/octet-stream",
                               .body = text,
                               .body_bytes = size};
    return http_perform(cli->http, &put, NULL, err);
}

/* Uploads one file and appends {"name", "size", "sha256"} to files. */
static int add_file(struct cli *cli, const char *folder, const char *name, json_t *files, struct err *err)
{
    char path[PATH_MAX], hex[65];
    uint64_t bytes;
    if (model_source_path(folder, name, path, sizeof(path), err) < 0 ||
        upload_file(cli, path, hex, &bytes, err) < 0)
        return -1;
    json_t *file = json_pack("{s:s, s:I, s:s}", "name", name, "size", (json_int_t)bytes, "sha256", hex);
    return json_array_append_new(files, file) < 0 ? err_set(err, ERR_NOMEM, "no memory for a list of files")
                                                  : 0;
}

/* Uploads the files of a folder that belong to the model (model_source_open_local decides); other formats,
 * checkpoints, READMEs and caches are left out. */
static int upload_folder(struct cli *cli, const char *folder, json_t *files, struct err *err)
{
    struct model_source *source = NULL;
    if (model_source_open_local(folder, &source, err) < 0)
        return -1;
    int result = 0;
    for (uint32_t i = 0; result == 0 && i < model_source_file_count(source); i++)
        result = add_file(cli, folder, model_source_file(source, i)->name, files, err);
    model_source_close(source);
    return result;
}

static bool server_is_here(const struct cli *cli)
{
    return strncmp(cli->address, "http://127.", 11) == 0 ||
           strncmp(cli->address, "http://localhost", 16) == 0 ||
           strncmp(cli->address, "https://127.", 12) == 0 ||
           strncmp(cli->address, "https://localhost", 17) == 0;
}

/* Makes a model's name from its path: the last part, with other characters replaced by '-'. */
static void name_from_path(const char *path, char out[128])
{
    const char *last = strrchr(path, '/');
    last = last ? last + 1 : path;
    size_t at = 0;
    for (; *last && at < 100; last++)
        out[at++] =
            strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-", *last) ? *last : '-';
    out[at] = '\0';
}

/* Adds the --visibility and --group of a registration, and its base: --base, else the path (NULL: the server
 * knows). */
static void add_options(const struct cli *cli, const char *path, json_t *body)
{
    const char *said = cli_option(cli, "--base");
    const char *base = said ? said : path, *at = said ? strrchr(said, '@') : NULL;
    if (base)
        json_object_set_new(body, "base",
                            json_pack("{s:s%, s:s*}", "name", base, at ? (size_t)(at - base) : strlen(base),
                                      "revision", at ? at + 1 : NULL));
    const char *visibility = cli_option(cli, "--visibility"), *group = cli_option(cli, "--group");
    if (visibility)
        json_object_set_new(body, "visibility", json_string(visibility));
    if (group)
        json_object_set_new(body, "group", json_string(group));
}

int upload_model(struct cli *cli, const char *name, const char *path, json_t **answer, struct err *err)
{
    char own_name[128], folder[PATH_MAX];
    struct stat status;
    if (client_open(cli, err) < 0)
        return -1;
    if (stat(path, &status) < 0)
        return err_errno(err, ERR_INVALID, errno, "could not open the model %s", path);
    if (model_source_folder(path, folder, sizeof(folder), err) < 0)
        return -1;
    if (!name) {
        name_from_path(path, own_name);
        name = own_name;
    }
    if (server_is_here(cli)) {
        /* The server is on this machine and reads the file itself; an administrator needs no copy. */
        json_t *body = json_pack("{s:s, s:s}", "name", name, "path", path);
        add_options(cli, folder, body);
        int result = http_json(cli->http, "POST", "/v1/models", body, MODEL_CALL_MS, answer, err);
        json_decref(body);
        if (result == 0 || (err->code != ERR_DENIED && err->code != ERR_NOT_FOUND))
            return result;
    }
    json_t *files = json_array();
    char parent[PATH_MAX], last[PATH_MAX];
    snprintf(parent, sizeof(parent), "%s", path);
    snprintf(last, sizeof(last), "%s", path);
    int result = S_ISDIR(status.st_mode) ? upload_folder(cli, folder, files, err)
                                         : add_file(cli, dirname(parent), basename(last), files, err);
    if (result == 0) {
        json_t *body = json_pack("{s:s, s:O}", "name", name, "files", files);
        add_options(cli, folder, body);
        result = http_json(cli->http, "POST", "/v1/models", body, MODEL_CALL_MS, answer, err);
        json_decref(body);
    }
    json_decref(files);
    return result;
}

/* Uploads the file that data.train or data.eval names, and replaces it by its reference. */
static int replace_rows(struct cli *cli, json_t *spec, enum hub_part part, struct err *err)
{
    const char *key = part == HUB_EVAL_ROWS ? "eval" : "train";
    json_t *data = json_object_get(spec, "data");
    const char *word = json_string_value(json_object_get(data, key));
    char hex[65], reference[80], path[PATH_MAX];
    uint64_t bytes;
    if (!word || spec_blob_ref(word, NULL))
        return 0;
    const int found = given_data_file(cli->words[0], word, part, path, err);
    if (found <= 0)
        return found < 0 ? -1 : err_set(err, ERR_INVALID, "data.%s: there is no file %s", key, word);
    if (upload_file(cli, path, hex, &bytes, err) < 0)
        return err_wrap(err, "data.%s", key);
    snprintf(part == HUB_EVAL_ROWS ? cli->eval : cli->train, sizeof(cli->train), "%s", word);
    snprintf(reference, sizeof(reference), "sha256:%s", hex);
    return json_object_set_new(data, key, json_string(reference)) < 0
               ? err_set(err, ERR_NOMEM, "no memory for a specification")
               : 0;
}

/* Explains what a folder without an adapter's file contains instead, and what to do. */
static int no_adapter(const char *folder, const char *word, const char *name, struct err *err)
{
    char path[PATH_MAX + 64];
    snprintf(path, sizeof(path), "%s/adapter_model.bin", folder);
    if (strstr(name, "safetensors") && file_exists(path))
        return err_set(
            err, ERR_INVALID,
            "method.start_from: %s has adapter_model.bin alone, which runs what it likes when it is "
            "read; convert it to safetensors in Python: save_file(torch.load("
            "\"adapter_model.bin\", weights_only=True), \"adapter_model.safetensors\") of "
            "safetensors.torch",
            word);
    return err_set(err, ERR_INVALID, "method.start_from: %s has no %s, so it is no peft adapter's folder",
                   word, name);
}

/* Uploads method.start_from, a peft folder: its two files, and a small document that names them
 * (docs/CONTRACTS.md).
 */
static int replace_adapter(struct cli *cli, json_t *spec, struct err *err)
{
    static const char *const names[] = {"adapter_config.json", "adapter_model.safetensors"};
    json_t *method = json_object_get(spec, "method");
    const char *word = json_string_value(json_object_get(method, "start_from"));
    char folder[PATH_MAX], path[PATH_MAX + 64], hex[2][65], text[320], reference[80];
    uint64_t bytes;
    if (!word || spec_blob_ref(word, NULL))
        return 0;
    find_file(cli->words[0], word, folder);
    if (!*folder)
        return err_set(err, ERR_INVALID, "method.start_from: there is no folder %s", word);
    if (model_source_folder(folder, path, PATH_MAX, err) < 0)
        return err_wrap(err, "method.start_from");
    memcpy(folder, path, strlen(path) + 1);
    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof(path), "%s/%s", folder, names[i]);
        if (!file_exists(path))
            return no_adapter(folder, word, names[i], err);
        if (upload_file(cli, path, hex[i], &bytes, err) < 0)
            return err_wrap(err, "method.start_from");
    }
    snprintf(text, sizeof(text), "{\"%s\":\"%s\",\"%s\":\"%s\"}", names[0], hex[0], names[1], hex[1]);
    if (upload_text(cli, text, strlen(text), hex[0], err) < 0)
        return err_wrap(err, "method.start_from");
    snprintf(reference, sizeof(reference), "sha256:%s", hex[0]);
    json_object_set_new(method, "start_from", json_string(reference));
    return 0;
}

/* Sets placement.plan to the content of the plan file that --plan or placement.plan names. */
static int replace_plan(struct cli *cli, json_t *spec, struct err *err)
{
    json_t *placement = json_object_get(spec, "placement");
    const char *option = cli_option(cli, "--plan");
    const char *word = option ? option : json_string_value(json_object_get(placement, "plan"));
    char path[PATH_MAX];
    if (!word)
        return 0;
    find_file(cli->words[0], word, path);
    if (!*path)
        return err_set(err, ERR_INVALID, "placement.plan: there is no file %s", word);
    json_t *plan = document_load(path, PLAN_BYTES_MAX, err);
    if (!plan)
        return err_wrap(err, "placement.plan");
    if (json_is_object(json_object_get(plan, "plan"))) { /* as `motley get` writes it */
        json_t *inner = json_incref(json_object_get(plan, "plan"));
        json_decref(plan);
        plan = inner;
    }
    if (!placement && json_object_set_new(spec, "placement", placement = json_object()) < 0)
        placement = NULL;
    return json_object_set_new(placement, "plan", plan) < 0 ? err_set(err, ERR_NOMEM, "no memory for a plan")
                                                            : 0;
}

/* Whether the folder or file at `path` is meant by a word that is a registered model's name, too: where the
 * model was registered from there (it may have changed since), and where it is somebody else's own, which
 * administrators see. */
static bool means_path(struct cli *cli, const json_t *model, const char *path)
{
    struct err ignored;
    json_t *me = NULL;
    if (strcmp(show_str(json_object_get(model, "base"), "name"), path) == 0)
        return true;
    if (strcmp(show_str(model, "visibility"), "mine") != 0 ||
        client_call(cli, "GET", NULL, &me, &ignored, "/v1/whoami") < 0)
        return false;
    const bool foreign = strcmp(show_str(me, "name"), show_str(model, "owner")) != 0;
    json_decref(me);
    return foreign;
}

/* Whether the server has a model of this name, or may not tell with this token (then the job's submit does);
 * -1 when it does not say. `path`: a file or folder of this name, or NULL. */
static int is_registered(struct cli *cli, const char *model, const char *path, struct err *err)
{
    char name[3 * 256];
    struct err absent = {0};
    json_t *answer = NULL;
    if (http_escape(model, name, sizeof(name), err) < 0)
        return -1;
    if (client_call(cli, "GET", NULL, &answer, &absent, "/v1/models/%s", name) == 0) {
        const bool meant = !path || !means_path(cli, answer, path);
        json_decref(answer);
        return meant;
    }
    *err = absent;
    return absent.code == ERR_NOT_FOUND ? 0 : absent.code == ERR_DENIED ? 1 : -1;
}

/* The name under which a model of the Hub is registered: its own without the owner; NULL: the file's. */
static const char *upload_name_on_hub(const struct hub_name *name)
{
    const char *slash = strrchr(name->id, '/');
    return *name->file ? NULL : slash ? slash + 1 : name->id;
}

/* Has a server on another machine fetch a model of the Hub, and register it. *answer stays NULL when it may
 * not or cannot: then it is fetched here. */
static int fetch_there(struct cli *cli, const char *name, const char *word, json_t **answer, struct err *err)
{
    struct hub_name parsed;
    struct err why = {0};
    if (hub_name_parse(word, &parsed, err) < 0)
        return -1;
    const char *file = strrchr(parsed.file, '/');
    if (!name && !(name = upload_name_on_hub(&parsed)))
        name = file ? file + 1 : parsed.file;
    json_t *body = json_pack("{s:s, s:s}", "name", name, "hub", word);
    add_options(cli, NULL, body);
    fprintf(stderr, "asking %s to fetch %s\n", cli->address, word);
    int result = http_json(cli->http, "POST", "/v1/models", body, MODEL_CALL_MS, answer, &why);
    json_decref(body);
    if (result == 0)
        return 0;
    if (why.code != ERR_DENIED && why.code != ERR_NOT_FOUND && why.code != ERR_INVALID) {
        *err = why; /* what is sent from here would be refused, too */
        return -1;
    }
    fprintf(stderr, "  it does not, so it is fetched here and sent there: %s\n", why.text);
    return 0;
}

int upload_hub_model(struct cli *cli, const char *name, const char *word, json_t **answer, struct err *err)
{
    struct hub_name parsed;
    char path[PATH_MAX];
    *answer = NULL;
    if (client_open(cli, err) < 0 || (!server_is_here(cli) && fetch_there(cli, name, word, answer, err) < 0))
        return -1;
    if (*answer)
        return 0;
    return hub_path(word, HUB_WHOLE, &parsed, path, err) < 0
               ? -1
               : upload_model(cli, name ? name : upload_name_on_hub(&parsed), path, answer, err);
}

/* Registers the model of a specification: a path, else what the Hub calls so and the server does not. *answer
 * stays NULL for a registered name. */
static int register_model(struct cli *cli, const char *model, json_t **answer, struct err *err)
{
    char path[PATH_MAX];
    *answer = NULL;
    find_file(cli->words[0], model, path);
    if (*path && !strchr(model, '/') && !strstr(model, ".gguf")) { /* a plain word is a name first */
        const int registered = is_registered(cli, model, path, err);
        if (registered != 0)
            return registered < 0 ? -1 : 0;
    }
    if (*path)
        return upload_model(cli, NULL, path, answer, err) < 0 ? err_wrap(err, "model") : 0;
    if (hub_means(model)) {
        const bool prefixed = strncmp(model, "hf:", 3) == 0;
        const int registered = prefixed ? 0 : is_registered(cli, model, NULL, err);
        if (registered != 0)
            return registered < 0 ? -1 : 0;
        if (upload_hub_model(cli, NULL, model, answer, err) == 0)
            return 0;
        return prefixed ? err_wrap(err, "model")
                        : err_wrap(err,
                                   "model: %s is neither a path here nor registered, so it is read as a "
                                   "name on the Hub",
                                   model);
    }
    return strchr("/.~", *model) || strstr(model, ".gguf")
               ? err_set(err, ERR_INVALID, "model: there is no file or folder %s", model)
               : 0; /* a registered name */
}

int upload_spec_files(struct cli *cli, json_t *spec, struct err *err)
{
    json_t *answer;
    if (register_model(cli, json_string_value(json_object_get(spec, "model")), &answer, err) < 0)
        return -1;
    if (answer)
        json_object_set(spec, "model", json_object_get(answer, "content"));
    json_decref(answer);
    if (replace_plan(cli, spec, err) < 0 || replace_rows(cli, spec, HUB_TRAIN_ROWS, err) < 0 ||
        replace_rows(cli, spec, HUB_EVAL_ROWS, err) < 0)
        return -1;
    return replace_adapter(cli, spec, err);
}
