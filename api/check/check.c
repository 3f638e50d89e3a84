/* Checks a specification step by step: its model, the adapter it starts from, its data, the prompt of its
 * samples, the right to its files, and whether it fits (fit.c). check_run, the first function, has them in
 * their order; the others follow in the same order. Each waits for the store or for a pool's thread. */
#include "api/check/check_private.h"

#include "api/request/blob_dir.h"
#include "api/request/parsed.h"
#include "common/clock.h"
#include "model/job/order.h"
#include "model/job/plan_class.h"
#include "model/job/spec_array.h"
#include "model/shape/config.h"
#include "store/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_notify(const struct spec_check *check, struct err *err);
static int check_model(struct spec_check *check, struct err *err);
static int check_adapter(struct spec_check *check, struct err *err);
static int check_day(struct spec_check *check, struct err *err);
static int api_check_rows(struct spec_check *check, const char *reference, const char *what,
                          struct dataset *dataset, struct err *err);
static int check_sample(struct spec_check *check, struct err *err);
static int check_files(struct spec_check *check, struct err *err);
static int check_result(struct spec_check *check, struct err *err);

int check_run(struct spec_check *check, struct err *err)
{
    const struct spec_data_part *data = &check->spec.data;
    if (check_notify(check, err) < 0 || check_model(check, err) < 0)
        return -1;
    /* While the model is still to be fetched from the Hub, what needs it is left for later
     * (api/jobs/fetches.h). */
    const bool model_is_here = *check->fetch == '\0';
    if (model_is_here &&
        (check_adapter(check, err) < 0 || check_day(check, err) < 0 ||
         api_check_rows(check, data->train, "data.train", &check->train, err) < 0 ||
         (data->eval && api_check_rows(check, data->eval, "data.eval", &check->eval, err) < 0) ||
         check_sample(check, err) < 0))
        return -1;
    if (check_files(check, err) < 0 || (model_is_here && check_fit(check, err) < 0))
        return -1;
    return check_result(check, err);
}

/* Reads the reference to an uploaded file into sha256[65] (NULL: not wanted). */
static int file_reference(const char *reference, const char *what, char *sha256, struct err *err)
{
    return spec_blob_ref(reference, sha256)
               ? 0
               : err_set(err, ERR_INVALID,
                         "%s: the server takes uploaded files (sha256:HEX), not the path \"%.80s\"", what,
                         reference);
}

/* ---- whom its end is told ---- */

static int check_notify(const struct spec_check *check, struct err *err)
{
    struct outside_url url;
    bool inside;
    if (!check->spec.notify || strcmp(check->spec.notify, SPEC_NOTIFY_NONE) == 0)
        return 0;
    if (outside_url_read(check->spec.notify, &url, err) == 0 &&
        api_config_may_notify(check->app->config, &url, &inside, err) == 0)
        return 0;
    return err_set(err, ERR_INVALID, "notify: %s", err->text);
}

/* ---- the model ---- */

/* Sets the name under which the model is fetched, or the error that says why it is not. */
static int fetch_name(struct spec_check *check, struct err *err)
{
    const struct principal *asker = &check->principal;
    struct hub_name name;
    if (hub_name_parse(check->spec.model, &name, err) < 0 ||
        api_config_may_fetch(check->app->config, asker->admin, err) < 0)
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
 * is here. */
static int model_absent(struct spec_check *check, struct err *err)
{
    const struct spec_data_part *data = &check->spec.data;
    if (!hub_name_like(check->spec.model))
        return err_set(err, ERR_INVALID,
                       "model: no model is registered as \"%.120s\" (motley model list), and no folder or "
                       ".gguf of that name was sent",
                       check->spec.model);
    if (fetch_name(check, err) < 0)
        return err_set(err, ERR_INVALID,
                       "model: no model is registered as \"%.120s\", and it is not fetched from the Hub: "
                       "%.300s",
                       check->spec.model, err->text);
    return file_reference(data->train, "data.train", NULL, err) < 0 ||
                   (data->eval && file_reference(data->eval, "data.eval", NULL, err) < 0)
               ? -1
               : 0;
}

static int check_model(struct spec_check *check, struct err *err)
{
    struct wait wait = wait_of(check->app);
    struct model_config config;
    if (spec_blob_ref(check->spec.model, NULL))
        return err_set(err, ERR_INVALID, "model: give the name of a registered model, not a file");
    if (wait_end(
            &wait,
            store_model_get(check->app->store, &check->principal, check->spec.model, wait_doc, &wait, err),
            err) < 0)
        return err->code == ERR_NOT_FOUND ? model_absent(check, err) : -1;
    check->model = wait.doc;
    if (model_config_parse(json_object_get(check->model, "config"), &config, err) < 0 ||
        model_config_runnable(&config, err) < 0)
        return err_wrap(err, "model");
    if (!model_config_doubt(&config, check->model_doubt))
        *check->model_doubt = '\0';
    if (spec_check_model(&check->spec, &config, err) < 0)
        return -1;
    if (!check->spec.array)
        return 0;
    json_t *whole = spec_to_json(&check->spec, err);
    const int rc = whole ? spec_array_check_model(whole, &config, err) : -1;
    json_decref(whole);
    return rc;
}

/* ---- the adapter to start from: an uploaded list of its two files, in the form that this job trains ---- */

struct adapter_work {
    struct spec_check *check;
    char path[BLOB_PATH_MAX];    /* of the list, later of adapter_config.json */
    char weights[BLOB_PATH_MAX]; /* of adapter_model.safetensors */
};

static int adapter_list_work(void *arg, struct err *err)
{
    struct adapter_work *work = arg;
    if (parsed_adapter_files(work->check->app, work->path, &work->check->adapter, err) == 0)
        return 0;
    if (err->code == ERR_TOO_BIG)
        err->code = ERR_INVALID;
    return err_wrap(err, "method.start_from: the file is not a list of an adapter's two files");
}

static int adapter_config_work(void *arg, struct err *err)
{
    struct adapter_work *work = arg;
    const struct spec_check *check = work->check;
    struct peft_config found = {0}, asked;
    struct model_config model;
    int rc = parsed_adapter(check->app, json_object_get(check->model, "files"), work->path, work->weights,
                            &found, err);
    if (rc == 0)
        rc = model_config_parse(json_object_get(check->model, "config"), &model, err);
    if (rc == 0) {
        asked = peft_config_of(&check->spec, &model);
        rc = peft_config_same(&found, &asked, &model, err);
    }
    peft_config_fini(&found);
    return rc < 0 ? err_wrap(err, "method.start_from") : 0;
}

/* Looks whether the asker may read an uploaded file, and gives its path. */
static int adapter_file(struct spec_check *check, const char *sha256, const char *what,
                        char path[BLOB_PATH_MAX], struct err *err)
{
    struct wait wait = wait_of(check->app);
    if (wait_end(&wait, store_blob_get(check->app->store, &check->principal, sha256, wait_doc, &wait, err),
                 err) < 0)
        return err->code == ERR_NOT_FOUND
                   ? err_set(err, ERR_INVALID, "method.start_from: %s was not uploaded", what)
                   : -1;
    json_decref(wait.doc);
    blob_path(check->app->blobs, sha256, path);
    return 0;
}

static int check_adapter(struct spec_check *check, struct err *err)
{
    struct app *app = check->app;
    struct adapter_work work = {.check = check};
    const char *from = check->spec.method.start_from;
    char list[65];
    if (!from)
        return 0;
    if (file_reference(from, "method.start_from", list, err) < 0 ||
        adapter_file(check, list, from, work.path, err) < 0 ||
        wait_work(app, app->pool, adapter_list_work, &work, err) < 0)
        return -1;
    const char *config = json_string_value(json_object_get(check->adapter, "adapter_config.json"));
    const char *weights = json_string_value(json_object_get(check->adapter, "adapter_model.safetensors"));
    if (adapter_file(check, config, "its file adapter_config.json", work.path, err) < 0 ||
        adapter_file(check, weights, "its file adapter_model.safetensors", work.weights, err) < 0)
        return -1;
    return wait_work(app, app->pool, adapter_config_work, &work, err);
}

/* ---- data ---- */

/* Sets the day that the model's template asks for to today's, so that the job's record keeps it. */
static int check_day(struct spec_check *check, struct err *err)
{
    char now[32];
    if (check->spec.data.day ||
        !json_is_true(json_object_get(json_object_get(check->model, "info"), "dated")))
        return 0;
    check->spec.data.day = strndup(clock_rfc3339(clock_wall_us(), now), 10);
    return check->spec.data.day ? 0 : err_set(err, ERR_NOMEM, "out of memory for a day");
}

/* Encodes the rows if they are not encoded yet. */
static int api_check_rows(struct spec_check *check, const char *reference, const char *what,
                          struct dataset *dataset, struct err *err)
{
    char sha256[65];
    const struct dataset_want want = {.principal = &check->principal,
                                      .sha256 = sha256,
                                      .what = what,
                                      .model = check->model,
                                      .spec = &check->spec};
    return file_reference(reference, what, sha256, err) < 0 ? -1
                                                            : dataset_get(check->app, &want, dataset, err);
}

/* ---- the samples' prompt, rendered to ids so that planner and workers need no tokenizer for it ---- */

static enum spec_format data_format(const struct spec_check *check)
{
    const char *name = json_string_value(json_object_get(check->train.stats, "format"));
    for (int f = SPEC_FORMAT_AUTO; name && f < SPEC_FORMAT_COUNT; f++)
        if (strcmp(spec_format_name((enum spec_format)f), name) == 0)
            return (enum spec_format)f;
    return SPEC_FORMAT_TEXT;
}

static int sample_work(void *arg, struct err *err)
{
    struct spec_check *check = arg;
    const struct parsed_text text = {.files = json_object_get(check->model, "files"),
                                     .chat = check->spec.data.chat_template,
                                     .day = check->spec.data.day,
                                     .format = data_format(check),
                                     .learn = check->spec.data.learn,
                                     .sequence_tokens = check->spec.data.sequence_tokens};
    if (parsed_prompt(check->app, &text, check->spec.sample.prompt, &check->sample_ids, err) == 0)
        return 0;
    if (err->code == ERR_NOT_FOUND)
        err->code = ERR_INVALID;
    return err_wrap(err, "sample.prompt");
}

static int check_sample(struct spec_check *check, struct err *err)
{
    return check->spec.sample.prompt ? wait_work(check->app, check->app->pool, sample_work, check, err) : 0;
}

/* ---- what the job will use, and the right to read it ---- */

static json_t *check_inputs_json(const struct spec_check *check)
{
    if (*check->fetch)
        return json_pack("{s:n, s:n, s:n, s:n}", "model", "train", "eval", "adapter");
    json_t *inputs = json_pack("{s:O, s:s, s:s?, s:O?}", "model", json_object_get(check->model, "content"),
                               "train", check->train.key, "eval", *check->eval.key ? check->eval.key : NULL,
                               "adapter", check->adapter);
    json_t *base = json_object_get(check->model, "base");
    /* An upload may not say where it is from: adapters then name what the asker calls it. */
    if (inputs)
        json_object_set_new(inputs, "base",
                            json_is_object(base)
                                ? json_incref(base)
                                : json_pack("{s:O}", "name", json_object_get(check->model, "name")));
    if (inputs && check->sample_ids)
        json_object_set_new(inputs, "sample", json_pack("{s:O}", "ids", check->sample_ids));
    /* The number of rows converts epochs to steps when an element becomes a job. */
    if (inputs && check->spec.array_size > 0)
        json_object_set_new(inputs, "rows", json_integer(check->train.rows));
    return inputs;
}

static int take_class(struct spec_check *check, struct err *err)
{
    json_t *rest = plan_class_spec(check->spec_json);
    int rc = rest ? plan_class_digest(rest, check->inputs, check->plan_class, err)
                  : err_set(err, ERR_NOMEM, "out of memory for a checked specification");
    json_decref(rest);
    return rc;
}

/* Makes the specification and the inputs of the job; of a submit also its class, and lets the submitter keep
 * reading all files that the job will use. */
static int check_files(struct spec_check *check, struct err *err)
{
    struct wait wait = wait_of(check->app);
    check->spec_json = spec_to_json(&check->spec, err);
    check->inputs = check->spec_json ? check_inputs_json(check) : NULL;
    if (!check->inputs)
        return check->spec_json ? err_set(err, ERR_NOMEM, "out of memory for a job's inputs") : -1;
    if (check->depth != CHECK_SUBMIT)
        return 0;
    if (!*check->fetch && take_class(check, err) < 0)
        return -1;
    return wait_end(&wait,
                    store_hold_job(check->app->store, &check->principal, check->spec_json, check->inputs,
                                   wait_done, &wait, err),
                    err);
}

/* ---- the result ---- */

static int64_t step_count(const struct spec_check *check)
{
    struct order order = {.seed = check->spec.train.seed,
                          .shuffle = check->spec.data.shuffle,
                          .row_count = check->train.rows,
                          .batch_rows = check->spec.train.batch_rows,
                          .steps = check->spec.train.steps,
                          .epochs = check->spec.train.epochs};
    return (int64_t)order_step_count(&order);
}

static uint32_t devices_least(const struct job_spec *spec)
{
    size_t planned = json_array_size(json_object_get(spec->placement.plan, "ranks"));
    uint32_t least = 1;
    if (spec->placement.kind == SPEC_PLACEMENT_PIPELINE && spec->placement.stages > least)
        least = spec->placement.stages;
    if (spec->placement.count_least > least)
        least = spec->placement.count_least;
    return planned > least ? (uint32_t)planned : least;
}

static void warn_of_rows(const char *what, const struct dataset *dataset, json_t *warnings)
{
    json_t *doubt;
    size_t index;
    json_array_foreach (json_object_get(dataset->stats, "doubts"), index, doubt)
        json_array_append_new(warnings, json_sprintf("%s: %s", what, json_string_value(doubt)));
}

/* Returns the new list of what may be done and yet looks wrong. */
static json_t *warnings_of(const struct spec_check *check, int64_t steps)
{
    json_t *warnings = json_array();
    char text[SPEC_DOUBT_BYTES];
    warn_of_rows("data.train", &check->train, warnings);
    warn_of_rows("data.eval", &check->eval, warnings);
    if (spec_warmup_doubt(&check->spec.train, (uint64_t)steps, text))
        json_array_append_new(warnings, json_string(text));
    if (spec_epochs_doubt(&check->spec.train, (uint64_t)steps, text))
        json_array_append_new(warnings, json_string(text));
    if (*check->model_doubt)
        json_array_append_new(warnings, json_string(check->model_doubt));
    return warnings;
}

static int print_result(struct checked *result, struct err *err)
{
    json_t *unnamed = json_copy(result->spec);
    if (unnamed)
        json_object_del(unnamed, "name");
    result->unnamed_text = json_dumps(unnamed, JSON_COMPACT);
    result->inputs_text = json_dumps(result->inputs, JSON_COMPACT);
    json_decref(unnamed);
    return result->unnamed_text && result->inputs_text
               ? 0
               : err_set(err, ERR_NOMEM, "out of memory for a checked specification");
}

static int check_result(struct spec_check *check, struct err *err)
{
    const struct job_spec *spec = &check->spec;
    const int64_t steps = *check->fetch ? (int64_t)spec->train.steps : step_count(check);
    struct checked *result = calloc(1, sizeof(*result));
    json_t *data = json_pack("{s:O?, s:O?}", "train", check->train.stats, "eval", check->eval.stats);
    if (!result || !data) {
        free(result);
        json_decref(data);
        return err_set(err, ERR_NOMEM, "out of memory for a checked specification");
    }
    *result = (struct checked){.spec = json_incref(check->spec_json),
                               .inputs = json_incref(check->inputs),
                               .priority = spec->priority,
                               .held = spec->hold,
                               .retries_max = spec->limits.retries,
                               .time_limit_ms = (int64_t)spec->limits.time_s * 1000,
                               .steps = steps,
                               .begin_us = spec->begin_us,
                               .service = spec->service,
                               .devices_least = devices_least(spec),
                               .array_size = spec->array_size,
                               .at_most = spec->at_most,
                               .answer = json_incref(check->plan),
                               .data = data,
                               .warnings = warnings_of(check, steps),
                               .holders = 1};
    memcpy(result->plan_class, check->plan_class, sizeof(result->plan_class));
    memcpy(result->fetch, check->fetch, sizeof(result->fetch));
    check->result = result;
    return check->depth == CHECK_SUBMIT ? print_result(result, err) : 0;
}
