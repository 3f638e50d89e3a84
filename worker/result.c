/* Makes what the specification's `result` asks for, on rank 0, from the last checkpoint: the adapter as it
 * is, a merged or fully trained model, or an adapter for llama.cpp. The result/ room reads trained tensors by
 * ranges of rows, which are fetched from the artifact store, and writes into the worker's folder; it is
 * stored from there. */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/file.h"
#include "common/json.h"
#include "result/gguf_adapter.h"
#include "result/model_folder.h"
#include "worker/checkpoint/files.h"
#include "worker/checkpoint/state.h"
#include "worker/result.h"
#include "worker/start/start.h"

enum { PATH_BYTES = 1024, READ_PARTS = 8 };

struct result_maker {
    struct session *session;
    const json_t *blobs;
    char folder[PATH_BYTES]; /* in the worker's folder; removed at the end */
    struct checkpoint_files files;
    struct piece_reader *reader;
    struct lora_sites sites;
    bool full;
};

/* --- the checkpoint as the result/ room reads it --- */

static bool is_value(void *arg, const struct stored_piece *piece)
{
    (void)arg;
    return piece->state == STATE_VALUE;
}

static int reader_open(struct result_maker *maker, struct err *err)
{
    struct session *session = maker->session;
    const char *name;
    json_t *value;
    json_object_foreach ((json_t *)maker->blobs, name, value)
        if (strncmp(name, "pieces-", 7) == 0 &&
            blobs_await(session->blobs, json_text_of(value, "sha256"), err) < 0)
            return err_wrap(err, "%s", name);
    maker->files = (struct checkpoint_files){session->blobs, maker->blobs};
    if (piece_reader_create(checkpoint_fetch_range, &maker->files, READ_PARTS, &maker->reader, err) < 0)
        return -1;
    return state_read_indexes(session, maker->blobs, maker->reader, is_value, NULL, err);
}

static bool result_state_find(void *arg, const char *name, uint64_t *rows, uint64_t *columns)
{
    const struct stored_piece *piece =
        piece_reader_find(((struct result_maker *)arg)->reader, name, STATE_VALUE);
    if (!piece)
        return false;
    *rows = piece->whole_rows;
    *columns = piece->whole_columns;
    return true;
}

static int result_state_read(void *arg, const char *name, uint64_t row_begin, uint64_t row_end, float *dst,
                             struct err *err)
{
    struct result_maker *maker = arg;
    uint64_t rows, columns;
    if (!result_state_find(maker, name, &rows, &columns) || row_begin > row_end || row_end > rows)
        return err_set(err, ERR_INTERNAL, "no rows %llu..%llu of \"%.200s\"", (unsigned long long)row_begin,
                       (unsigned long long)row_end, name);
    struct piece_wanted wanted = {.tensor = name,
                                  .state = STATE_VALUE,
                                  .whole_rows = (uint32_t)rows,
                                  .whole_columns = (uint32_t)columns,
                                  .area = area_whole((uint32_t)rows, (uint32_t)columns)};
    wanted.area.first = row_begin * columns;
    wanted.area.count = (row_end - row_begin) * columns;
    return piece_reader_read(maker->reader, &wanted, dst, err);
}

static double state_scale(void *arg, const char *module)
{
    const struct result_maker *maker = arg;
    return maker->full ? 0 : result_lora_scale(&maker->sites, module);
}

/* --- files --- */

/* Stores a file of the folder as artifact `prefix` + `name`. */
static int output_store(struct result_maker *maker, const char *path, const char *prefix, const char *name,
                        json_t *artifacts, struct err *err)
{
    char artifact[320], sha256[65];
    uint64_t size = 0;
    snprintf(artifact, sizeof(artifact), "%s%s", prefix, name);
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
    while (result == 0 && (entry = readdir(dir))) {
        char path[PATH_BYTES + 320];
        snprintf(path, sizeof(path), "%s/%s", folder, entry->d_name);
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
    char out[PATH_BYTES + 16];
    if (reader_open(maker, err) < 0 || (!session->model && session_model_open(session, err) < 0))
        return -1;
    if (spec_lora_sites(&spec->method, &session->config, &maker->sites, err) < 0)
        return -1;
    struct result_state state = {
        .arg = maker, .find = result_state_find, .read = result_state_read, .scale = state_scale};
    snprintf(out, sizeof(out), "%s/out", maker->folder);
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
    for (size_t f = 0; f < sizeof(files) / sizeof(*files); f++) {
        char name[64];
        snprintf(name, sizeof(name), "adapter/%s", files[f]);
        if (json_object_set(artifacts, name, json_object_get(blobs, files[f])) < 0)
            return err_set(err, ERR_NOMEM, "no memory for a result");
    }
    return 0;
}

int result_store(struct session *session, const json_t *blobs, json_t **artifacts, struct err *err)
{
    const struct job_spec *spec = &session->assignment->spec;
    bool full = spec->method.kind == SPEC_METHOD_FULL;
    struct result_maker maker = {.session = session, .blobs = blobs, .full = full};
    *artifacts = json_object();
    int result = *artifacts ? 0 : err_set(err, ERR_NOMEM, "no memory for a result");
    if (result == 0 && !full)
        result = adapter_artifacts(blobs, *artifacts, err);
    if (result == 0 && (full || spec->result.kind != SPEC_RESULT_ADAPTER)) {
        result = file_path(maker.folder, sizeof(maker.folder), err, "%s/result", session->dir);
        result = result < 0 ? -1 : file_mkdirs(maker.folder, 0700, err);
        if (result == 0)
            result = files_make(&maker, *artifacts, err);
        struct err ignored; /* a leftover folder is removed with the worker's */
        piece_reader_destroy(maker.reader);
        (void)file_remove_tree(maker.folder, &ignored);
    }
    if (result == 0)
        return 0;
    if (full || json_object_size(*artifacts) == 0) {
        json_decref(*artifacts);
        *artifacts = NULL;
    }
    return err_wrap(err, "result.kind %s", spec_result_name(spec->result.kind));
}
