/* Makes what the specification's `result` asks for, on rank 0, from the files of the last checkpoint: the
 * adapter as it is, a merged or fully trained model, or an adapter for llama.cpp. The result/ room writes it
 * into the node's cache and it is stored from there. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"
#include "result/gguf_adapter.h"
#include "result/model_folder.h"
#include "worker/checkpoint/state.h"
#include "worker/result.h"
#include "worker/start/start.h"

enum { PATH_BYTES = 1024, INPUTS_MAX = 1 << 14 };
#define INPUT_BYTES_MAX ((uint64_t)2 << 30)

struct result_maker {
    struct session *session;
    const json_t *blobs;
    char folder[PATH_BYTES]; /* folder of this run in the cache; removed at the end */
    struct safetensors **inputs;
    uint32_t input_count;
    struct lora_sites sites;
};

/* Copies a file of the checkpoint into the folder and opens it. */
static int input_open(struct result_maker *maker, const char *name, struct err *err)
{
    const char *sha256 = json_string_value(json_object_get(json_object_get(maker->blobs, name), "sha256"));
    char path[PATH_BYTES + 96];
    struct buf bytes;
    if (sha256 == NULL || maker->input_count == INPUTS_MAX)
        return err_set(err, ERR_INTERNAL, "the last checkpoint has no %s", name);
    snprintf(path, sizeof path, "%s/%s", maker->folder, name);
    buf_init(&bytes, INPUT_BYTES_MAX);
    int result = blobs_get(maker->session->blobs, sha256, &bytes, err);
    if (result == 0)
        result = file_write_atomic(path, bytes.data, bytes.size, 0600, err);
    buf_fini(&bytes);
    if (result < 0 || safetensors_open_path(path, &maker->inputs[maker->input_count], err) < 0)
        return err_wrap(err, "%s", name);
    maker->input_count++;
    return 0;
}

static int inputs_open(struct result_maker *maker, bool full, struct err *err)
{
    const char *name;
    json_t *value;
    maker->inputs = calloc(INPUTS_MAX, sizeof *maker->inputs);
    if (maker->inputs == NULL)
        return err_set(err, ERR_NOMEM, "no memory for a result");
    if (!full)
        return input_open(maker, "adapter_model.safetensors", err);
    json_object_foreach((json_t *)maker->blobs, name, value)
    {
        if (strncmp(name, "model-", 6) == 0 && input_open(maker, name, err) < 0)
            return -1;
    }
    return 0;
}

/* Stores a file of the folder as artifact `prefix` + `name`. */
static int output_store(struct result_maker *maker, const char *path, const char *prefix, const char *name,
                        json_t *artifacts, struct err *err)
{
    char artifact[320], sha256[65];
    uint64_t size = 0;
    snprintf(artifact, sizeof artifact, "%s%s", prefix, name);
    if (blobs_put_file(maker->session->blobs, path, sha256, &size, err) < 0)
        return err_wrap(err, "%s", artifact);
    if (json_object_set_new(artifacts, artifact,
                            json_pack("{s:s, s:I}", "sha256", sha256, "size", (json_int_t)size)) < 0)
        return err_set(err, ERR_NOMEM, "no memory for a result");
    return 0;
}

static int outputs_store(struct result_maker *maker, const char *folder, json_t *artifacts, struct err *err)
{
    DIR *dir = opendir(folder);
    int result = dir ? 0 : err_set(err, ERR_IO, "%s cannot be read", folder);
    struct dirent *entry;
    while (result == 0 && (entry = readdir(dir)) != NULL) {
        char path[PATH_BYTES + 320];
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (entry->d_name[0] != '.')
            result = output_store(maker, path, "model/", entry->d_name, artifacts, err);
    }
    if (dir)
        closedir(dir);
    return result;
}

static int files_make(struct result_maker *maker, json_t *artifacts, struct err *err)
{
    struct session *session = maker->session;
    const struct job_spec *spec = &session->assignment->spec;
    bool full = spec->method.kind == SPEC_METHOD_FULL;
    char out[PATH_BYTES + 16];
    if (inputs_open(maker, full, err) < 0 || (session->model == NULL && session_model_open(session, err) < 0))
        return -1;
    if (spec_lora_sites(&spec->method, &session->config, &maker->sites, err) < 0)
        return -1;
    struct result_files files = {.files = maker->inputs,
                                 .count = maker->input_count,
                                 .prefix = full ? "" : "base_model.model.",
                                 .sites = full ? NULL : &maker->sites};
    struct result_state state = result_state_of_files(&files);
    snprintf(out, sizeof out, "%s/out", maker->folder);
    if (spec->result.kind == SPEC_RESULT_GGUF) {
        if (result_gguf_adapter(out, session->model, &state, spec->result.dtype, err) < 0)
            return -1;
        return output_store(maker, out, "", "adapter.gguf", artifacts, err);
    }
    struct result_folder_options options = {.dir = out, .dtype = spec->result.dtype};
    if (result_model_folder(session->model, &state, &options, err) < 0)
        return -1;
    return outputs_store(maker, out, artifacts, err);
}

static int adapter_artifacts(const json_t *blobs, json_t *artifacts, struct err *err)
{
    static const char *const files[] = {"adapter_config.json", "adapter_model.safetensors"};
    for (size_t f = 0; f < sizeof files / sizeof *files; f++) {
        char name[64];
        snprintf(name, sizeof name, "adapter/%s", files[f]);
        if (json_object_set(artifacts, name, json_object_get(blobs, files[f])) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a result");
    }
    return 0;
}

int result_store(struct session *session, const json_t *blobs, json_t **artifacts, struct err *err)
{
    const struct job_spec *spec = &session->assignment->spec;
    bool full = spec->method.kind == SPEC_METHOD_FULL;
    struct result_maker maker = {.session = session, .blobs = blobs};
    *artifacts = json_object();
    int result = *artifacts ? 0 : err_set(err, ERR_NOMEM, "no memory for a result");
    if (result == 0 && !full)
        result = adapter_artifacts(blobs, *artifacts, err);
    if (result == 0 && (full || spec->result.kind != SPEC_RESULT_ADAPTER)) {
        snprintf(maker.folder, sizeof maker.folder, "%s/result-%ld", session->assignment->local.cache,
                 (long)getpid());
        result = file_mkdirs(maker.folder, 0700, err);
        if (result == 0)
            result = files_make(&maker, *artifacts, err);
        struct err ignored; /* the cache removes leftovers later */
        for (uint32_t i = 0; i < maker.input_count; i++)
            safetensors_close(maker.inputs[i]);
        free(maker.inputs);
        (void)file_remove_tree(maker.folder, &ignored);
    }
    if (result == 0)
        return 0;
    json_decref(*artifacts);
    *artifacts = NULL;
    return err_wrap(err, "result");
}
