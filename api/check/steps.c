/* The steps of a check, in their order, which check_next() at the end of the file lists. A step asks the
 * store or a pool thread, decides what the answer means for the specification, and ends by check_next() or
 * check_fail(). A function named after what has come (model_found) goes on where the step above it waits.
 */
#include "api/check/check_private.h"

#include "api/request/dataset.h"
#include "api/request/parsed.h"
#include "common/clock.h"
#include "model/job/spec_array.h"
#include "model/shape/config.h"
#include "store/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void fail(struct spec_check *check)
{
    check_fail(check, &check->err, NULL);
}

/* Reads the reference to an uploaded file into sha256[65] (NULL: not wanted). */
static int check_reference(struct spec_check *check, const char *reference, const char *what, char *sha256)
{
    return spec_blob_ref(reference, sha256)
               ? 0
               : err_set(&check->err, ERR_INVALID,
                         "%s: the server takes uploaded files (sha256:HEX), not the path \"%.80s\"", what,
                         reference);
}

/* ---- the model ---- */

/* Sets the name under which the model is fetched, or the error that says why it is not. */
static int fetch_name(struct spec_check *check)
{
    const struct principal *asker = &check->principal;
    struct hub_name name;
    struct err *err = &check->err;
    if (hub_name_parse(check->spec.model, &name, err) < 0)
        return -1;
    if (api_config_may_fetch(check->app->config, asker->admin, err) < 0)
        return -1;
    if (!asker->admin && !(asker->scopes & SCOPE_MODELS_WRITE))
        return err_set(err, ERR_DENIED, "this token lacks the scope models:write");
    if (check->depth != CHECK_SUBMIT)
        return err_set(err, ERR_INVALID,
                       "a plan needs the model: POST /v1/models with \"hub\" fetches it, or the job itself "
                       "(POST /v1/jobs)");
    snprintf(check->fetch, sizeof(check->fetch), "hf:%s@%s%s%s", name.id, name.revision,
             *name.file ? ":" : "", name.file);
    return 0;
}

/* What is not registered may be the Hub's: then the job is accepted, and the rest is checked when the model
 * is here (api/jobs/fetches.h). */
static void model_absent(struct spec_check *check)
{
    const struct spec_data_part *data = &check->spec.data;
    if (!hub_name_like(check->spec.model))
        err_set(&check->err, ERR_INVALID,
                "model: no model is registered as \"%.120s\" (motley model list), and no folder or .gguf of "
                "that name "
                "was sent",
                check->spec.model);
    else if (fetch_name(check) < 0)
        err_set(&check->err, ERR_INVALID,
                "model: no model is registered as \"%.120s\", and it is not fetched from the Hub: %.300s",
                check->spec.model, check->err.text);
    else if (check_reference(check, data->train, "data.train", NULL) == 0 &&
             (!data->eval || check_reference(check, data->eval, "data.eval", NULL) == 0)) {
        check_next(check);
        return;
    }
    fail(check);
}

static void model_found(void *arg, const struct err *err, json_t *doc)
{
    struct spec_check *check = arg;
    if (err && err->code == ERR_NOT_FOUND) {
        model_absent(check);
        return;
    }
    if (err) {
        check_fail(check, err, NULL);
        return;
    }
    check->model = json_incref(doc);
    struct model_config config;
    if (model_config_parse(json_object_get(doc, "config"), &config, &check->err) < 0 ||
        model_config_runnable(&config, &check->err) < 0) {
        err_wrap(&check->err, "model");
        fail(check);
        return;
    }
    json_t *whole = check->spec.array ? spec_to_json(&check->spec, &check->err) : NULL;
    if (spec_check_model(&check->spec, &config, &check->err) < 0 ||
        (whole && spec_array_check_model(whole, &config, &check->err) < 0) || (check->spec.array && !whole)) {
        json_decref(whole);
        fail(check);
        return;
    }
    json_decref(whole);
    check_next(check);
}

static void check_model(struct spec_check *check)
{
    if (spec_blob_ref(check->spec.model, NULL)) {
        err_set(&check->err, ERR_INVALID, "model: give the name of a registered model, not a file");
        fail(check);
    } else if (store_model_get(check->app->store, &check->principal, check->spec.model, model_found, check,
                               &check->err) < 0) {
        fail(check);
    }
}

/* ---- the adapter to start from ---- */

static const char *const adapter_files[] = {"adapter_config.json", "adapter_model.safetensors"};

static void adapter_config_work(struct pool_task *task)
{
    struct spec_check *check = (struct spec_check *)task;
    struct peft_config found = {0}, asked;
    struct model_config model;
    char weights[BLOB_PATH_MAX];
    blob_path(check->app->blobs, json_string_value(json_object_get(check->adapter, adapter_files[1])),
              weights);
    if (parsed_adapter(check->app, json_object_get(check->model, "files"), check->adapter_path, weights,
                       &found, &check->err) == 0 &&
        model_config_parse(json_object_get(check->model, "config"), &model, &check->err) == 0) {
        asked = peft_config_of(&check->spec, &model);
        peft_config_same(&found, &asked, &model, &check->err);
    }
    peft_config_fini(&found);
    if (check->err.code)
        err_wrap(&check->err, "method.start_from");
}

static void adapter_config_done(struct pool_task *task)
{
    struct spec_check *check = (struct spec_check *)task;
    pool_ran(task, &check->err);
    if (check->err.code)
        fail(check);
    else
        check_next(check);
}

static void adapter_read_config(struct spec_check *check)
{
    blob_path(check->app->blobs, json_string_value(json_object_get(check->adapter, "adapter_config.json")),
              check->adapter_path);
    check->task.work = adapter_config_work;
    check->task.done = adapter_config_done;
    if (pool_run(check->app->pool, &check->task, &check->err) < 0)
        fail(check);
}

static void adapter_file_found(void *arg, const struct err *err, json_t *doc);

static void adapter_look(struct spec_check *check)
{
    if (check->adapter_at == 2) {
        adapter_read_config(check);
        return;
    }
    const char *sha256 = json_string_value(json_object_get(check->adapter, adapter_files[check->adapter_at]));
    if (store_blob_get(check->app->store, &check->principal, sha256, adapter_file_found, check, &check->err) <
        0)
        fail(check);
}

static void adapter_file_found(void *arg, const struct err *err, json_t *doc)
{
    (void)doc;
    struct spec_check *check = arg;
    if (err && err->code == ERR_NOT_FOUND) {
        err_set(&check->err, ERR_INVALID, "method.start_from: its file %s was not uploaded",
                adapter_files[check->adapter_at]);
        fail(check);
    } else if (err) {
        check_fail(check, err, NULL);
    } else {
        check->adapter_at++;
        adapter_look(check);
    }
}

static void adapter_list_work(struct pool_task *task)
{
    struct spec_check *check = (struct spec_check *)task;
    if (parsed_adapter_files(check->app, check->adapter_path, &check->adapter, &check->err) < 0) {
        if (check->err.code == ERR_TOO_BIG)
            check->err.code = ERR_INVALID;
        err_wrap(&check->err, "method.start_from: the file is not a list of an adapter's two files");
    }
}

static void adapter_list_done(struct pool_task *task)
{
    struct spec_check *check = (struct spec_check *)task;
    pool_ran(task, &check->err);
    if (check->err.code)
        fail(check);
    else
        adapter_look(check);
}

static void adapter_list_found(void *arg, const struct err *err, json_t *doc)
{
    struct spec_check *check = arg;
    if (err && err->code == ERR_NOT_FOUND) {
        err_set(&check->err, ERR_INVALID, "method.start_from: %s was not uploaded",
                check->spec.method.start_from);
        fail(check);
        return;
    }
    if (err) {
        check_fail(check, err, NULL);
        return;
    }
    blob_path(check->app->blobs, json_string_value(json_object_get(doc, "sha256")), check->adapter_path);
    check->task.work = adapter_list_work;
    check->task.done = adapter_list_done;
    if (pool_run(check->app->pool, &check->task, &check->err) < 0)
        fail(check);
}

static void check_adapter(struct spec_check *check)
{
    char sha256[65];
    const char *from = check->spec.method.start_from;
    if (!from)
        check_next(check);
    else if (check_reference(check, from, "method.start_from", sha256) < 0 ||
             store_blob_get(check->app->store, &check->principal, sha256, adapter_list_found, check,
                            &check->err) < 0)
        fail(check);
}

/* ---- data ---- */

static int keep_dataset(struct spec_check *check, const struct store_dataset *dataset, bool train)
{
    json_t **stats = train ? &check->train_stats : &check->eval_stats;
    struct row_size **sizes = train ? &check->train_sizes : &check->eval_sizes;
    size_t rows = dataset->sizes_bytes / sizeof(**sizes);
    *stats = json_incref((json_t *)dataset->stats);
    *sizes = malloc(dataset->sizes_bytes + 1);
    if (!*sizes)
        return err_set(&check->err, ERR_NOMEM, "out of memory for row sizes");
    /* The stored little-endian uint32 pairs have the layout of struct row_size on this machine. */
    memcpy(*sizes, dataset->sizes, dataset->sizes_bytes);
    *(train ? &check->train_rows : &check->eval_rows) = (uint32_t)rows;
    snprintf(train ? check->train_key : check->eval_key, 65, "%s", dataset->key);
    return 0;
}

static void train_encoded(void *arg, const struct err *err, const struct store_dataset *dataset)
{
    struct spec_check *check = arg;
    if (err)
        check_fail(check, err, NULL);
    else if (keep_dataset(check, dataset, true) < 0)
        fail(check);
    else
        check_next(check);
}

static void eval_encoded(void *arg, const struct err *err, const struct store_dataset *dataset)
{
    struct spec_check *check = arg;
    if (err)
        check_fail(check, err, NULL);
    else if (keep_dataset(check, dataset, false) < 0)
        fail(check);
    else
        check_next(check);
}

static void want_dataset(struct spec_check *check, const char *reference, const char *what,
                         dataset_done_fn *done)
{
    char sha256[65];
    if (check_reference(check, reference, what, sha256) < 0) {
        fail(check);
        return;
    }
    struct dataset_want want = {.principal = &check->principal,
                                .sha256 = sha256,
                                .what = what,
                                .model = check->model,
                                .spec = &check->spec};
    if (dataset_get(check->app->datasets, &want, done, check, &check->err) < 0)
        fail(check);
}

/* Sets the day that the model's template asks for to today's, so that the job's record keeps it. */
static int set_day(struct spec_check *check)
{
    char now[32];
    if (check->spec.data.day ||
        !json_is_true(json_object_get(json_object_get(check->model, "info"), "dated")))
        return 0;
    check->spec.data.day = strndup(clock_rfc3339(clock_wall_us(), now), 10);
    return check->spec.data.day ? 0 : err_set(&check->err, ERR_NOMEM, "out of memory for a day");
}

static void check_train(struct spec_check *check)
{
    if (set_day(check) < 0) {
        fail(check);
        return;
    }
    want_dataset(check, check->spec.data.train, "data.train", train_encoded);
}

static void check_eval(struct spec_check *check)
{
    if (check->spec.data.eval)
        want_dataset(check, check->spec.data.eval, "data.eval", eval_encoded);
    else
        check_next(check);
}

/* ---- the samples' prompt, rendered to ids so that planner and workers need no tokenizer for it ---- */

static enum spec_format data_format(const struct spec_check *check)
{
    const char *name = json_string_value(json_object_get(check->train_stats, "format"));
    for (int f = SPEC_FORMAT_AUTO; name && f < SPEC_FORMAT_COUNT; f++)
        if (strcmp(spec_format_name((enum spec_format)f), name) == 0)
            return (enum spec_format)f;
    return SPEC_FORMAT_TEXT;
}

static void sample_work(struct pool_task *task)
{
    struct spec_check *check = (struct spec_check *)task;
    const struct parsed_text text = {.files = json_object_get(check->model, "files"),
                                     .chat = check->spec.data.chat_template,
                                     .day = check->spec.data.day,
                                     .format = check->sample_format,
                                     .learn = check->spec.data.learn,
                                     .sequence_tokens = check->spec.data.sequence_tokens};
    if (parsed_prompt(check->app, &text, check->spec.sample.prompt, &check->sample_ids, &check->err) < 0) {
        if (check->err.code == ERR_NOT_FOUND)
            check->err.code = ERR_INVALID;
        err_wrap(&check->err, "sample.prompt");
    }
}

static void sample_done(struct pool_task *task)
{
    struct spec_check *check = (struct spec_check *)task;
    pool_ran(task, &check->err);
    if (check->err.code)
        fail(check);
    else
        check_next(check);
}

static void check_sample(struct spec_check *check)
{
    if (!check->spec.sample.prompt) {
        check_next(check);
        return;
    }
    /* copied for the pool thread, since reference counts are not atomic */
    json_t *model = json_deep_copy(check->model);
    if (!model) {
        err_set(&check->err, ERR_NOMEM, "out of memory for a sample");
        fail(check);
        return;
    }
    json_decref(check->model);
    check->model = model;
    check->sample_format = data_format(check);
    check->task.work = sample_work;
    check->task.done = sample_done;
    if (pool_run(check->app->pool, &check->task, &check->err) < 0)
        fail(check);
}

/* ---- the right to read the files that the job uses ---- */

static void job_held(void *arg, const struct err *err)
{
    struct spec_check *check = arg;
    if (err)
        check_fail(check, err, NULL);
    else
        check_next(check);
}

static void check_hold(struct spec_check *check)
{
    if (check->depth != CHECK_SUBMIT) {
        check_next(check);
        return;
    }
    check->spec_json = spec_to_json(&check->spec, &check->err);
    json_t *inputs = check->spec_json ? check_inputs(check) : NULL;
    if (check->spec_json && !inputs)
        err_set(&check->err, ERR_NOMEM, "out of memory for a job's inputs");
    if (!inputs || (!*check->fetch && check_take_class(check, inputs) < 0) ||
        store_hold_job(check->app->store, &check->principal, check->spec_json, inputs, job_held, check,
                       &check->err) < 0)
        fail(check);
    json_decref(inputs);
}

/* ---- the order of the steps ---- */

static const struct {
    void (*run)(struct spec_check *check);
    bool needs_model;
} steps[] = {
    /* Looks up the model. */
    {.run = check_model},
    /* Checks that the adapter to start from was uploaded and has the form that this job trains. */
    {.run = check_adapter, .needs_model = true},
    /* Check the training and the held-out data, and encode them if they are not encoded yet. */
    {.run = check_train, .needs_model = true},
    {.run = check_eval, .needs_model = true},
    /* Renders the prompt of the job's samples, if it has one, to token ids. */
    {.run = check_sample, .needs_model = true},
    /* Lets the submitter keep reading all files that the job will use. */
    {.run = check_hold},
    /* Fetches the cluster's devices and their measurements, makes the plan, and ends the check (fit.c). */
    {.run = check_cluster, .needs_model = true},
};

/* The steps that need the model are left out while it is still to be fetched from the Hub. */
void check_next(struct spec_check *check)
{
    const size_t count = sizeof(steps) / sizeof(*steps);
    while (check->step < count && *check->fetch && steps[check->step].needs_model)
        check->step++;
    if (check->step < count)
        steps[check->step++].run(check);
    else
        check_finish(check);
}
