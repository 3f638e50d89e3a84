/* Reads the inputs of a plan, from files alone or from the server. */
#include "cli/cli.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

#include "common/buf.h"
#include "common/digest.h"
#include "common/document.h"
#include "common/file.h"
#include "common/json.h"
#include "common/yaml.h"
#include "model/files/hub_json.h"
#include "model/files/source.h"
#include "model/job/spec.h"
#include "model/shape/tensors.h"
#include "planner/given/inputs.h"
#include "profiles/profile_key.h"
#include "profiles/profiles.h"

enum { GIVEN_FILE_BYTES_MAX = 64 << 20, GIVEN_MS = 120000 };

/* A path that cannot be read, such as a folder's, is a wrong argument. */
static int path_refuse(struct err *err)
{
    if (err->code == ERR_NOT_FOUND || err->code == ERR_IO)
        err->code = ERR_INVALID;
    return -1;
}

int given_text(const char *path, size_t most, struct buf *text, struct err *err)
{
    text->limit = most;
    return file_read_all(path, most, text, err) < 0 ? path_refuse(err) : 0;
}

json_t *given_json(const char *path, size_t most, struct err *err)
{
    json_t *document = document_load(path, most, err);
    if (!document)
        path_refuse(err);
    return document;
}

/* Prints what else is wrong with a specification, beside the first mistake, which `first` names: who mends
 * one mistake after another asks once for each. */
static void say_others(const char *path, const json_t *document, const char *first)
{
    json_t *all = json_array(), *one;
    size_t i;
    spec_errors(document, all);
    json_array_foreach (all, i, one) {
        char key[256], text[1200];
        snprintf(key, sizeof(key), "%s", show_str(one, "pointer") + (*show_str(one, "pointer") == '/'));
        for (char *at = key; *at; at++)
            *at = *at == '/' ? '.' : *at;
        snprintf(text, sizeof(text), "%s%s%s", key, *key ? ": " : "", show_str(one, "detail"));
        if (strncmp(text, first, strlen(first)) != 0)
            fprintf(stderr, "motley: %s: %s\n", path, text);
    }
    json_decref(all);
}

/* Replaces `begin: 2h` by the time that it means now. spec_parse() refuses what is neither. */
static void begin_read(json_t *document)
{
    char at[32];
    const char *begin = json_string_value(json_object_get(document, "begin"));
    if (begin && cli_time_read(begin, 1, at) == 0)
        json_object_set_new(document, "begin", json_string(at));
}

/* Returns the document as written but for `begin`, after spec_parse has accepted it. */
json_t *given_spec(const char *path, struct err *err)
{
    json_t *document = given_json(path, YAML_BYTES_MAX, err);
    struct job_spec spec = {0};
    if (!document)
        return NULL;
    begin_read(document);
    if (!json_is_object(document)) {
        err_set(err, ERR_INVALID, "%s: a specification is a mapping of keys, such as \"model: smollm2\"",
                path);
    } else if (spec_parse(document, &spec, err) == 0) {
        spec_fini(&spec);
        return document;
    } else {
        say_others(path, document, err->text);
        err_wrap(err, "%s", path);
    }
    json_decref(document);
    return NULL;
}

json_t *given_document(const char *path, struct err *err)
{
    return given_json(path, GIVEN_FILE_BYTES_MAX, err);
}

int given_wrong(struct err *err)
{
    switch (err->code) {
    case ERR_CONFLICT:
    case ERR_NOT_FOUND:
    case ERR_TOO_BIG:
    case ERR_CORRUPT:
        err->code = ERR_INVALID;
        return -1;
    default:
        return -1;
    }
}

/* Resolves a path that a file contains: relative to that file's folder unless it is absolute. */
static int in_folder_of(const char *other, const char *name, char path[PATH_MAX], struct err *err)
{
    const char *slash = strrchr(other, '/');
    if (*name == '/' || !slash)
        return file_path(path, PATH_MAX, err, "%s", name);
    return file_path(path, PATH_MAX, err, "%.*s/%s", (int)(slash - other), other, name);
}

/* Resolves a file name: as it is if the file exists, else relative to the folder of `other`. */
static int beside(const char *name, const char *other, char path[PATH_MAX], struct err *err)
{
    struct stat status;
    const char *home = name[0] == '~' && name[1] == '/' ? getenv("HOME") : NULL;
    if (stat(name, &status) == 0)
        return file_path(path, PATH_MAX, err, "%s", name);
    if (home)
        return file_path(path, PATH_MAX, err, "%s%s", home, name + 1);
    return in_folder_of(other, name, path, err);
}

/* Reads a GGUF's header as a config.json. */
static json_t *gguf_config_of(const char *path, struct err *err)
{
    struct model_config config;
    return model_config_load(path, &config, err) < 0 ? NULL : model_config_to_json(&config, err);
}

/* Reads a config.json as the server does. */
static json_t *settings_of(const char *path, struct err *err)
{
    struct buf text = {.limit = MODEL_CONFIG_BYTES_MAX};
    json_t *document = NULL;
    if (file_read_all(path, MODEL_CONFIG_BYTES_MAX, &text, err) == 0 &&
        !(document = hub_json_parse_settings(buf_str(&text), text.size, JSON_DEPTH_MAX, err)))
        err_wrap(err, "%s", path);
    buf_fini(&text);
    return document;
}

/* Reads the config of a model folder as the server does, which examines the weights when the config does not
 * say whether the output head shares the embedding (tie_word_embeddings). Without readable weights it returns
 * the config.json as it is. */
static json_t *folder_config_of(const char *folder, const char *path, struct err *err)
{
    struct model *model = NULL;
    struct err none = {0};
    if (model_open_path(folder, &model, &none) < 0)
        return settings_of(path, err);
    json_t *config = model_config_to_json(model_get_config(model), err);
    model_close(model);
    return config;
}

json_t *given_config(const char *spec_path, const char *model, char *folder, char *path, struct err *err)
{
    struct stat status;
    struct hub_name name;
    if (beside(model, spec_path, folder, err) < 0)
        return NULL;
    if (stat(folder, &status) < 0 && hub_means(model) &&
        hub_path(model, HUB_DESCRIPTION, &name, folder, err) < 0) {
        err_wrap(err, "model: there is no path %s here, so it is read as a name on the Hub", model);
        return NULL;
    }
    if (stat(folder, &status) < 0) {
        err_set(
            err, ERR_INVALID,
            "model: without a server it is a folder with a config.json, a .gguf, or OWNER/NAME of the Hub; "
            "there is no %s",
            model);
        return NULL;
    }
    char within[PATH_MAX];
    if (S_ISDIR(status.st_mode) && (model_source_folder(folder, within, sizeof(within), err) < 0 ||
                                    file_path(folder, PATH_MAX, err, "%s", within) < 0))
        return NULL;
    if (file_path(path, PATH_MAX, err, S_ISDIR(status.st_mode) ? "%s/config.json" : "%s", folder) < 0)
        return NULL;
    if (!S_ISDIR(status.st_mode)) {
        char *slash = strrchr(folder, '/');
        if (slash)
            *slash = '\0';
        else
            snprintf(folder, PATH_MAX, ".");
    }
    size_t length = strlen(path);
    if (length > 5 && strcasecmp(path + length - 5, ".gguf") == 0)
        return gguf_config_of(path, err);
    return S_ISDIR(status.st_mode) ? folder_config_of(folder, path, err) : settings_of(path, err);
}

/* Replaces a device's `"profile": "FILE"` or `"FILE#DEVICE"` by the profile document. */
static int given_take_profile(json_t *device, const char *where, const char *cluster_path, const char *key,
                              struct err *err)
{
    const char *word = json_string_value(json_object_get(device, "profile"));
    const char *name = json_string_value(json_object_get(device, "name"));
    char file[PATH_MAX], path[PATH_MAX];
    const char *mark = strrchr(word, '#');
    snprintf(file, sizeof(file), "%.*s", mark ? (int)(mark - word) : (int)strlen(word), word);
    if (in_folder_of(cluster_path, file, path, err) < 0)
        return -1;
    json_t *document = given_document(path, err), *profile = NULL;
    if (!document)
        return err_wrap(err, "%s.profile", where);
    profile = profiles_pick(document, mark ? mark + 1 : name ? name : "", mark != NULL, key, err);
    if (!profile)
        err_wrap(err, "%s.profile: %s", where, file);
    else
        profiles_describe(document, mark ? mark + 1 : name, device);
    json_decref(document);
    if (!profile)
        return -1;
    json_object_set(profile, "device", json_object_get(device, "name"));
    return json_object_set_new(device, "profile", profile);
}

/* A table inside the file may say for which work it was measured; for other work it is refused. */
static int same_key(const json_t *profile, const char *where, const char *key, struct err *err)
{
    const char *measured = json_string_value(json_object_get(profile, "key"));
    return !measured || strcmp(measured, key) == 0
               ? 0
               : err_set(err, ERR_INVALID,
                         "%s.profile: it was measured for another model, method, dtype or sequence length",
                         where);
}

json_t *given_cluster(const char *path, const char *profile_key, struct err *err)
{
    json_t *cluster = given_document(path, err), *node, *device;
    size_t n, d;
    if (!cluster)
        return NULL;
    /* a file of `motley profile export` describes the cluster it was written on */
    if (profiles_is(cluster)) {
        json_t *made = profiles_cluster(cluster, profile_key, err);
        json_decref(cluster);
        if (!made)
            err_wrap(err, "%s", path);
        return made;
    }
    json_array_foreach (json_object_get(cluster, "nodes"), n, node) {
        json_array_foreach (json_object_get(node, "devices"), d, device) {
            char where[80];
            json_t *inside = json_object_get(device, "profile");
            if (json_is_object(inside) && !json_object_get(inside, "device"))
                json_object_set(inside, "device", json_object_get(device, "name"));
            snprintf(where, sizeof(where), "cluster: nodes[%zu].devices[%zu]", n, d);
            if ((json_is_string(inside) && given_take_profile(device, where, path, profile_key, err) < 0) ||
                (json_is_object(inside) && same_key(inside, where, profile_key, err) < 0)) {
                json_decref(cluster);
                return NULL;
            }
        }
    }
    return cluster;
}

/* Computes the key under which the profiles for this specification and model are stored. Like the server it
 * uses the parsed config. */
static int given_key_of(const json_t *spec_json, const json_t *config_json, char key[DIGEST_HEX_SIZE],
                        struct err *err)
{
    struct job_spec spec;
    struct model_config config;
    if (spec_parse(spec_json, &spec, err) < 0)
        return -1;
    json_t *full = spec_to_json(&spec, err), *understood = NULL;
    int result = full ? 0 : -1;
    if (result == 0 && model_config_parse(config_json, &config, err) < 0)
        result = err_wrap(err, "config.json");
    if (result == 0)
        result = (understood = model_config_to_json(&config, err)) ? 0 : -1;
    if (result == 0)
        result = profile_key(full, understood, key, err);
    json_decref(full);
    json_decref(understood);
    spec_fini(&spec);
    return result;
}

int given_data_file(const char *spec_path, const char *word, enum hub_part part, char *out, struct err *err)
{
    struct hub_name name;
    if (word && strncmp(word, "hf:", 3) == 0)
        return hub_path(word, part, &name, out, err) < 0
                   ? err_wrap(err, part == HUB_EVAL_ROWS ? "data.eval" : "data.train")
                   : 1;
    return word && beside(word, spec_path, out, err) == 0 && file_exists(out);
}

static json_t *given_read_rows(const char *spec_path, const json_t *spec_json, const json_t *config_json,
                               const char *model_path, struct given_rows *rows, struct err *err)
{
    struct job_spec spec;
    struct model_config config;
    char train[PATH_MAX], eval[PATH_MAX];
    *rows = (struct given_rows){0};
    if (spec_parse(spec_json, &spec, err) < 0)
        return NULL;
    if (model_config_parse(config_json, &config, err) < 0) {
        spec_fini(&spec);
        err_wrap(err, "config.json");
        return NULL;
    }
    const int has_train = given_data_file(spec_path, spec.data.train, HUB_TRAIN_ROWS, train, err);
    const int has_eval =
        has_train < 0 ? -1 : given_data_file(spec_path, spec.data.eval, HUB_EVAL_ROWS, eval, err);
    const char *from = has_train > 0 ? train : NULL;
    if (has_eval >= 0)
        given_rows_read(&spec, from, has_eval > 0 ? eval : NULL, model_path, config.vocab, rows);
    spec_fini(&spec);
    if (has_eval < 0)
        return NULL;
    json_t *told =
        json_pack("{s:I, s:s?}", "count", (json_int_t)rows->train_count, "from", rows->train ? from : NULL);
    if (told && *rows->why)
        json_object_set_new(told, "why", json_string(rows->why));
    if (told && rows->doubts)
        json_object_set(told, "doubts", rows->doubts);
    if (!told)
        err_set(err, ERR_NOMEM, "out of memory");
    return told;
}

/* Replaces the document's name at the start of an error by the file's path. */
static int name_file(struct err *err, const char *document, const char *path)
{
    size_t length = strlen(document);
    if (strncmp(err->text, document, length) != 0 || strncmp(err->text + length, ": ", 2) != 0)
        return -1;
    memmove(err->text, err->text + length + 2, strlen(err->text + length + 2) + 1);
    return err_wrap(err, "%s", path);
}

int given_of_spec(struct err *err, const char *path)
{
    /* each name stands for all keys below it */
    static const char *const of_spec[] = {"placement", "train", "data", "method"};
    for (size_t i = 0; i < sizeof(of_spec) / sizeof(of_spec[0]); i++) {
        size_t length = strlen(of_spec[i]);
        if (strncmp(err->text, of_spec[i], length) == 0 && strchr(".:", err->text[length]) &&
            err->text[length])
            return err_wrap(err, "%s", path);
    }
    return -1;
}

static void name_files(struct err *err, const char *spec_path, const char *config_path,
                       const char *cluster_path)
{
    (void)given_of_spec(err, spec_path);
    (void)name_file(err, "config.json", config_path);
    (void)name_file(err, "cluster", cluster_path);
}

/* What a specification file and a cluster file contain. */
struct files {
    json_t *spec, *config, *cluster, *rows;
    struct given_rows given;
    char config_path[PATH_MAX];
};

static int given_files_read(const char *spec_path, const char *cluster_path, struct files *files,
                            struct err *err)
{
    char key[DIGEST_HEX_SIZE] = "", folder[PATH_MAX] = "";
    *files = (struct files){.spec = given_spec(spec_path, err)};
    return files->spec &&
                   (files->config =
                        given_config(spec_path, json_string_value(json_object_get(files->spec, "model")),
                                     folder, files->config_path, err)) &&
                   given_key_of(files->spec, files->config, key, err) == 0 &&
                   (files->cluster = given_cluster(cluster_path, key, err)) &&
                   (files->rows = given_read_rows(spec_path, files->spec, files->config, files->config_path,
                                                  &files->given, err))
               ? 0
               : -1;
}

static void given_files_fini(struct files *files)
{
    given_rows_fini(&files->given);
    json_decref(files->spec);
    json_decref(files->config);
    json_decref(files->cluster);
    json_decref(files->rows);
}

int given_by_files(const char *spec_path, const char *cluster_path, const json_t *routing,
                   struct plan_inputs *inputs, json_t **rows, struct err *err)
{
    struct files files;
    *inputs = (struct plan_inputs){0};
    *rows = NULL;
    int result = given_files_read(spec_path, cluster_path, &files, err);
    if (result == 0)
        result = plan_inputs_from_files(files.spec, files.cluster, files.config,
                                        &(struct plan_rows){.train = files.given.train,
                                                            .train_count = files.given.train_count,
                                                            .eval = files.given.eval,
                                                            .eval_count = files.given.eval_count,
                                                            .prompt_tokens = files.given.prompt_tokens,
                                                            .expert_share = routing},
                                        inputs, err);
    *rows = json_incref(files.rows);
    if (result < 0)
        name_files(err, spec_path, files.config_path, cluster_path);
    given_files_fini(&files);
    return result < 0 ? given_wrong(err) : 0;
}

/* Returns the problem document of the files. Like the server it fills in every default of the specification
 * and the config. */
static json_t *problem_of(const struct files *files, struct err *err)
{
    struct job_spec spec;
    struct model_config config;
    if (spec_parse(files->spec, &spec, err) < 0)
        return NULL;
    json_t *full = spec_to_json(&spec, err), *understood = NULL, *problem = NULL;
    spec_fini(&spec);
    if (full && model_config_parse(files->config, &config, err) < 0)
        err_wrap(err, "config.json");
    else if (full && (understood = model_config_to_json(&config, err)) &&
             !(problem =
                   json_pack("{s:i, s:O, s:O, s:o, s:o, s:I, s:[], s:[], s:[]}", "version", INPUTS_VERSION,
                             "spec", full, "config", understood, "rows",
                             plan_rows_to_json(files->given.train, files->given.train_count), "eval_rows",
                             plan_rows_to_json(files->given.eval, files->given.eval_count), "prompt_tokens",
                             (json_int_t)files->given.prompt_tokens, "devices", "profiles", "links")))
        err_set(err, ERR_NOMEM, "out of memory for a problem document");
    json_decref(full);
    json_decref(understood);
    if (problem && plan_inputs_cluster(problem, files->cluster, err) < 0) {
        err_wrap(err, "cluster");
        json_decref(problem);
        problem = NULL;
    }
    return problem;
}

json_t *given_problem(const char *spec_path, const char *cluster_path, json_t **rows, struct err *err)
{
    struct files files;
    json_t *problem = NULL;
    *rows = NULL;
    if (given_files_read(spec_path, cluster_path, &files, err) == 0)
        problem = problem_of(&files, err);
    if (problem)
        *rows = json_incref(files.rows);
    else {
        name_files(err, spec_path, files.config_path, cluster_path);
        (void)given_wrong(err);
    }
    given_files_fini(&files);
    return problem;
}

json_t *given_by_server(struct cli *cli, const json_t *spec, json_t **answer, struct err *err)
{
    json_t *got = NULL;
    if (client_open(cli, err) < 0 ||
        http_json(cli->http, "POST", "/v1/jobs:validate?inputs=1", spec, GIVEN_MS, &got, err) < 0)
        return NULL;
    json_t *inputs = json_incref(json_object_get(got, "inputs"));
    if (!json_is_object(inputs)) {
        json_decref(inputs);
        inputs = NULL;
        err_set(err, ERR_PEER, "the server's answer says nothing of what the plan rests on");
    }
    json_object_del(got, "inputs");
    if (answer && inputs)
        *answer = json_incref(got);
    json_decref(got);
    return inputs;
}
