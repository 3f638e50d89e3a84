/* `motley get`: writes what a job made as files that other tools open. */
#include "cli/cli.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/json.h"

enum { GET_TEXT_MAX = 1 << 30, GET_IDLE_MS = 60000 };

static int get_line_add(struct buf *text, const json_t *document, struct err *err)
{
    return json_print(document, false, text, err) < 0 ? -1 : buf_text(text, "\n", err);
}

/* Checks the name of a file in a folder of results, a relative path such as
 * "adapter/adapter_model.safetensors", since neither the server nor a record of others is trusted. */
static bool name_is_safe(const char *name)
{
    return *name && *name != '/' && !strstr(name, "..") && strlen(name) < 256 && !strchr(name, '\\');
}

/* ---- whose results a folder holds ---- */

/* The folder's record says which job's results it holds and which files they are. */
#define RECORD "fetched.json"
enum { RECORD_BYTES_MAX = 16 << 20 };

/* A folder that takes the results of one job. */
struct results {
    const char *folder;
    json_t
        *record; /* owned: {"id", "name", "created", "files": [names below the folder]}, as RECORD has it */
};

/* Returns whether a record is of this job. Another server's jobs have the same numbers, at other times. */
static bool record_is_of(const json_t *record, const json_t *job)
{
    return show_num(record, "id", 0) == show_num(job, "id", -1) &&
           strcmp(show_str(record, "created"), show_str(job, "created")) == 0;
}

int get_check(const char *folder, const json_t *job, bool replace, json_t **record, struct err *err)
{
    char path[PATH_MAX], metrics[PATH_MAX], at[24];
    json_t *found = NULL;
    if (file_path(path, sizeof(path), err, "%s/" RECORD, folder) < 0 ||
        file_path(metrics, sizeof(metrics), err, "%s/metrics.jsonl", folder) < 0)
        return -1;
    if (file_exists(path)) {
        if (!(found = given_json(path, RECORD_BYTES_MAX, err)))
            return -1;
    } else if (file_exists(metrics)) { /* every job leaves it */
        return err_set(err, ERR_CONFLICT,
                       "%.200s holds results that do not say whose they are (there is no " RECORD
                       "): remove them, or name another folder",
                       folder);
    }
    if (found && !replace && !record_is_of(found, job)) {
        err_set(err, ERR_CONFLICT,
                "%.200s holds the results of job %.0f (%.60s, submitted at %s): name another folder, or "
                "--replace them",
                folder, show_num(found, "id", 0), show_str(found, "name"),
                clock_words(show_str(found, "created"), at));
        json_decref(found);
        return -1;
    }
    if (record)
        *record = found;
    else
        json_decref(found);
    return 0;
}

/* Removes the files that a record lists, and folders that become empty. */
static int results_remove(const char *folder, const json_t *record, struct err *err)
{
    char path[PATH_MAX];
    size_t index;
    json_t *name;
    json_array_foreach (json_object_get(record, "files"), index, name) {
        const char *text = json_is_string(name) ? json_string_value(name) : "";
        if (!name_is_safe(text))
            continue;
        if (file_path(path, sizeof(path), err, "%s/%s", folder, text) < 0)
            return -1;
        if (unlink(path) < 0 && errno != ENOENT)
            return err_errno(err, ERR_IO, errno, "could not remove %s", path);
        for (char *end; (end = strrchr(path, '/')) > path + strlen(folder);) {
            *end = '\0';
            if (rmdir(path) < 0)
                break;
        }
    }
    return 0;
}

static int results_save(const struct results *results, struct err *err)
{
    struct buf text = {.limit = RECORD_BYTES_MAX};
    char path[PATH_MAX];
    int result = get_line_add(&text, results->record, err);
    if (result == 0)
        result = file_path(path, sizeof(path), err, "%s/" RECORD, results->folder);
    if (result == 0)
        result = file_write_atomic(path, text.data, text.size, 0644, err);
    buf_fini(&text);
    return result;
}

/* Makes the folder ready for the results of a job. Files of the same job stay until they are written anew:
 * what the server no longer has may be there alone. */
static int results_open(struct results *results, const json_t *job, const char *folder, bool replace,
                        struct err *err)
{
    json_t *before = NULL;
    *results = (struct results){.folder = folder};
    if (get_check(folder, job, replace, &before, err) < 0)
        return -1;
    const bool same = before && record_is_of(before, job);
    int result = same ? 0 : results_remove(folder, before, err);
    const json_t *files = same ? json_object_get(before, "files") : NULL;
    results->record =
        json_pack("{s:O, s:O, s:O, s:o}", "id", json_object_get(job, "id"), "name",
                  json_object_get(job, "name"), "created", json_object_get(job, "created"), "files",
                  json_is_array(files) ? json_copy((json_t *)(uintptr_t)files) : json_array());
    json_decref(before);
    if (result == 0 && !results->record)
        result = err_set(err, ERR_CORRUPT, "the server's job has no id, name or time");
    if (result == 0)
        result = file_mkdirs(folder, 0755, err);
    return result == 0 ? results_save(results, err) : -1;
}

/* Writes the path of a file of the results, and enters it in the record before it is there. */
static int results_path(struct results *results, const char *name, char path[PATH_MAX], struct err *err)
{
    json_t *files = json_object_get(results->record, "files"), *known;
    size_t index;
    if (file_path(path, PATH_MAX, err, "%s/%s", results->folder, name) < 0)
        return -1;
    json_array_foreach (files, index, known)
        if (json_is_string(known) && strcmp(json_string_value(known), name) == 0)
            return 0;
    json_array_append_new(files, json_string(name));
    return results_save(results, err);
}

/* ---- its files ---- */

static int write_text(struct results *results, const char *name, const struct buf *text, struct err *err)
{
    char path[PATH_MAX];
    if (results_path(results, name, path, err) < 0)
        return -1;
    return file_write_atomic(path, text->data, text->size, 0644, err);
}

static int write_document(struct results *results, const char *name, const json_t *document, struct err *err)
{
    struct buf text = {.limit = GET_TEXT_MAX};
    int result = get_line_add(&text, document, err);
    if (result == 0)
        result = write_text(results, name, &text, err);
    buf_fini(&text);
    return result;
}

static int write_lines(struct results *results, const char *name, const json_t *lines, struct err *err)
{
    struct buf text = {.limit = GET_TEXT_MAX};
    size_t index;
    json_t *line;
    int result = 0;
    json_array_foreach (lines, index, line) {
        if (result == 0)
            result = get_line_add(&text, line, err);
    }
    if (result == 0)
        result = write_text(results, name, &text, err);
    buf_fini(&text);
    return result;
}

struct file_download {
    int fd;
    const char *path;
    struct digest *digest;
};

static int get_take_bytes(void *arg, const void *data, size_t size, struct err *err)
{
    struct file_download *download = arg;
    const char *at = data;
    if (digest_update(download->digest, data, size, err) < 0)
        return -1;
    while (size > 0) {
        ssize_t wrote = write(download->fd, at, size);
        if (wrote < 0)
            return err_errno(err, ERR_IO, errno, "could not write %s", download->path);
        at += wrote;
        size -= (size_t)wrote;
    }
    return 0;
}

/* Downloads a route's answer to a temporary file beside `path`, verifies it, then renames it, so the file is
 * complete or absent. */
static int get_fetch(struct cli *cli, const char *route, const char *name, const char *sha256,
                     const char *path, struct err *err)
{
    char part[PATH_MAX], hex[65];
    uint8_t hash[32];
    if (file_path(part, sizeof(part), err, "%s.%ld.part", path, (long)getpid()) < 0)
        return -1;
    struct file_download download = {open(part, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644), part,
                                     digest_create(err)};
    if (download.fd < 0)
        return err_errno(err, ERR_IO, errno, "could not write %s", part);
    struct http_request request = {.method = "GET",
                                   .path = route,
                                   .sink = get_take_bytes,
                                   .sink_arg = &download,
                                   .timeout_ms = UINT32_MAX,
                                   .idle_ms = GET_IDLE_MS};
    int result = download.digest ? http_perform(cli->http, &request, NULL, err) : -1;
    if (result == 0)
        result = digest_final(download.digest, hash, err);
    digest_destroy(download.digest);
    if (close(download.fd) < 0 && result == 0)
        result = err_errno(err, ERR_IO, errno, "could not write %s", part);
    if (result == 0) {
        digest_hex(hash, sizeof(hash), hex);
        if (*sha256 && strcmp(hex, sha256) != 0)
            result =
                err_set(err, ERR_CORRUPT, "%s: the bytes received do not have the hash %s", name, sha256);
        else if (rename(part, path) < 0)
            result = err_errno(err, ERR_IO, errno, "could not rename %s", part);
    }
    if (result < 0)
        unlink(part);
    return result;
}

static int fetch_artifact(struct cli *cli, int64_t id, const char *name, const char *sha256, const char *path,
                          struct err *err)
{
    char escaped[512], route[640];
    if (http_escape(name, escaped, sizeof(escaped), err) < 0)
        return -1;
    snprintf(route, sizeof(route), "/v1/jobs/%lld/artifacts/%s", (long long)id, escaped);
    return get_fetch(cli, route, name, sha256, path, err);
}

static int get_artifacts(struct cli *cli, int64_t id, struct results *results, struct err *err)
{
    json_t *answer = NULL, *artifact;
    size_t index;
    char route[64];
    snprintf(route, sizeof(route), "/v1/jobs/%lld/artifacts", (long long)id);
    int result = client_list(cli, route, "artifacts", &answer, err);
    json_array_foreach (json_object_get(answer, "artifacts"), index, artifact) {
        const char *name = show_str(artifact, "name");
        char place[300], path[PATH_MAX], parent[PATH_MAX];
        if (result < 0 || !name_is_safe(name))
            continue;
        snprintf(place, sizeof(place), "%s%s", strncmp(name, "adapter_", 8) == 0 ? "adapter/" : "", name);
        if ((result = results_path(results, place, path, err)) < 0)
            break;
        snprintf(parent, sizeof(parent), "%s", path);
        *strrchr(parent, '/') = '\0';
        result = file_mkdirs(parent, 0755, err);
        if (result == 0)
            result = fetch_artifact(cli, id, name, show_str(artifact, "sha256"), path, err);
    }
    json_decref(answer);
    return result;
}

/* --- checkpoints --- */

/* Finds the checkpoint that "best", "last" or a number of steps means; borrowed. */
static const json_t *pick_checkpoint(const json_t *job, const char *which, struct err *err)
{
    const json_t *checkpoint, *found = NULL;
    size_t index;
    char *end = NULL;
    long long step = strtoll(which, &end, 10);
    bool best = strcmp(which, "best") == 0, last = strcmp(which, "last") == 0;
    if (!best && !last && (end == which || *end)) {
        err_set(err, ERR_INVALID, "--checkpoint: \"%.40s\" is none of best, last and a number of steps",
                which);
        return NULL;
    }
    json_array_foreach (json_object_get(job, "checkpoints"), index, checkpoint) {
        bool same = best ? json_is_true(json_object_get(checkpoint, "best"))
                         : last || (long long)show_num(checkpoint, "step", -1) == step;
        if (same) /* steps rise, so "last" keeps the final one */
            found = checkpoint;
    }
    if (found)
        return found;
    struct buf kept = {.limit = 400};
    json_array_foreach (json_object_get(job, "checkpoints"), index, checkpoint)
        if (buf_printf(&kept, err, "%s%.0f", index ? ", " : "", show_num(checkpoint, "step", 0)) < 0)
            break;
    err_set(err, ERR_NOT_FOUND, "job %.0f keeps no checkpoint \"%.40s\"; it keeps those of steps: %s",
            show_num(job, "id", 0), which, kept.size ? buf_str(&kept) : "none");
    buf_fini(&kept);
    return NULL;
}

/* Writes all files of one checkpoint to DIR/checkpoint-STEP/: an adapter that peft loads, and the state that
 * a run needs to go on. */
static int get_checkpoint(struct cli *cli, const json_t *job, const char *which, struct results *results,
                          struct err *err)
{
    const json_t *checkpoint = pick_checkpoint(job, which, err);
    const char *name;
    json_t *blob;
    char parent[PATH_MAX], path[PATH_MAX], place[300], route[96];
    if (!checkpoint || file_path(parent, sizeof(parent), err, "%s/checkpoint-%.0f", results->folder,
                                 show_num(checkpoint, "step", 0)) < 0)
        return -1;
    int result = file_mkdirs(parent, 0755, err);
    json_object_foreach (json_object_get(checkpoint, "blobs"), name, blob) {
        const char *sha256 = json_is_string(blob) ? json_string_value(blob) : show_str(blob, "sha256");
        if (result < 0 || !name_is_safe(name) || strchr(name, '/') || strlen(sha256) != 64)
            continue;
        snprintf(route, sizeof(route), "/v1/blobs/%.64s", sha256);
        snprintf(place, sizeof(place), "%s/%s", strrchr(parent, '/') + 1, name);
        result = results_path(results, place, path, err);
        if (result == 0)
            result = get_fetch(cli, route, name, sha256, path, err);
    }
    return result;
}

/* Writes a document of the job unchanged. A job that never started has none, which is no error. */
static int get_document(struct cli *cli, int64_t id, const char *route, const char *member,
                        struct results *results, const char *name, struct err *err)
{
    json_t *answer = NULL;
    if (client_call(cli, "GET", NULL, &answer, err, "/v1/jobs/%lld/%s", (long long)id, route) < 0)
        return err->code == ERR_NOT_FOUND ? 0 : -1;
    const json_t *document =
        member && json_object_get(answer, member) ? json_object_get(answer, member) : answer;
    int result = write_document(results, name, document, err);
    json_decref(answer);
    return result;
}

static int get_metrics(struct cli *cli, int64_t id, struct results *results, struct err *err)
{
    json_t *lines = client_metrics(cli, id, err);
    int result = lines ? write_lines(results, "metrics.jsonl", lines, err) : -1;
    json_decref(lines);
    return result;
}

static int get_samples(struct cli *cli, int64_t id, struct results *results, struct err *err)
{
    char path[96];
    snprintf(path, sizeof(path), "/v1/jobs/%lld/metrics?limit=10000&kind=sample", (long long)id);
    json_t *lines = client_pages(cli, path, "lines", err);
    int result = lines ? write_lines(results, "samples.jsonl", lines, err) : -1;
    json_decref(lines);
    return result;
}

int get_job(struct cli *cli, const json_t *job, const char *folder, struct err *err)
{
    const char *which = cli_option(cli, "--checkpoint");
    const int64_t id = (int64_t)show_num(job, "id", 0);
    struct results results;
    int result = results_open(&results, job, folder, cli_option(cli, "--replace"), err);
    if (result == 0)
        result = get_artifacts(cli, id, &results, err);
    if (result == 0)
        result = get_document(cli, id, "plan", NULL, &results, "plan.json", err);
    if (result == 0)
        result = get_metrics(cli, id, &results, err);
    if (result == 0)
        result = get_samples(cli, id, &results, err);
    if (result == 0)
        result = get_document(cli, id, "trace", NULL, &results, "trace.json", err);
    if (result == 0 && which)
        result = get_checkpoint(cli, job, which, &results, err);
    json_decref(results.record);
    return result;
}

/* Says of a job that did not succeed, and so has no result, whether a checkpoint has what it learnt. */
static void tell_checkpoint(const json_t *job)
{
    const json_t *kept = json_object_get(job, "checkpoints");
    const char *state = show_str(job, "state");
    const double id = show_num(job, "id", 0);
    if (strcmp(state, "succeeded") == 0)
        return;
    if (json_array_size(kept) == 0)
        fprintf(stderr, "job %.0f is %s and keeps no checkpoint: there is no adapter and no model to fetch\n",
                id, state);
    else
        fprintf(
            stderr,
            "job %.0f is %s, so there is no result: --checkpoint last fetches what it had learnt after %.0f "
            "steps\n",
            id, state, show_num(json_array_get(kept, json_array_size(kept) - 1), "step", 0));
}

int command_get(struct cli *cli, struct err *err)
{
    int64_t id;
    json_t *job = NULL;
    if (client_job_id(cli->words[0], &id, err) < 0 ||
        client_call(cli, "GET", NULL, &job, err, "/v1/jobs/%lld", (long long)id) < 0)
        return -1;
    if (json_is_object(json_object_get(job, "array"))) {
        json_decref(job);
        return err_set(err, ERR_CONFLICT, "job %lld is an array: get its elements (motley jobs --array %lld)",
                       (long long)id, (long long)id);
    }
    char at[24];
    if (*show_str(job, "files_gone"))
        fprintf(stderr,
                "warning: the checkpoints and results of job %lld went at %s, as its group does not keep "
                "them longer\n",
                (long long)id, clock_words(show_str(job, "files_gone"), at));
    int result = get_job(cli, job, cli->words[1], err);
    if (result == 0 && !cli_option(cli, "--checkpoint"))
        tell_checkpoint(job);
    json_decref(job);
    if (result < 0)
        return -1;
    if (cli->json) {
        json_t *answer = json_pack("{s:I, s:s}", "id", (json_int_t)id, "folder", cli->words[1]);
        result = show_json(answer, err);
        json_decref(answer);
        return result;
    }
    printf("%s\n", cli->words[1]);
    return 0;
}
