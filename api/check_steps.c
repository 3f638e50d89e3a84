/* The steps of a check, each an asynchronous question and what its answer means for the specification. */
#include "api/check_internal.h"

#include "api/dataset.h"
#include "common/clock.h"
#include "common/file.h"
#include "common/json.h"
#include "model/config.h"
#include "model/peft.h"
#include "planner/from_spec.h"
#include "store/models.h"
#include "store/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ADAPTER_LIST_BYTES_MAX = 4096, ADAPTER_CONFIG_BYTES_MAX = 1 << 20, PROGRAM_TEXT_BYTES_MAX = 4 << 20 };

static void fail(struct check *check)
{
    check_fail(check, &check->err, NULL);
}

/* ---- the model ---- */

static void model_found(void *arg, const struct err *err, json_t *doc)
{
    struct check *check = arg;
    if (err && err->code == ERR_NOT_FOUND) {
        err_set(&check->err, ERR_INVALID, "model: no model is registered as \"%.120s\"", check->spec.model);
        fail(check);
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
    check_adapter(check);
}

void check_model(struct check *check)
{
    if (spec_blob_ref(check->spec.model, NULL)) {
        err_set(&check->err, ERR_INVALID, "model: give the name of a registered model, not a file");
        fail(check);
    } else if (store_model_get(check->app->store, check->spec.model, model_found, check, &check->err) < 0) {
        fail(check);
    }
}

/* ---- the adapter to start from ---- */

static json_t *read_json(const char *path, size_t bytes_max, struct err *err)
{
    struct buf text;
    buf_init(&text, bytes_max);
    struct err reading = {0};
    json_t *document = NULL;
    if (file_read_all(path, bytes_max, &text, &reading) < 0)
        err_set(err, reading.code,
                reading.code == ERR_TOO_BIG ? "a file of the adapter is over %zu bytes"
                                            : "a file of the adapter is gone from the server",
                bytes_max);
    else
        document = json_parse_limited((const char *)text.data, text.size, 16, err);
    buf_fini(&text);
    return document;
}

static void adapter_config_work(struct pool_task *task)
{
    struct check *check = (struct check *)task;
    struct peft_config config;
    const struct spec_method_part *method = &check->spec.method;
    json_t *document = read_json(check->adapter_path, ADAPTER_CONFIG_BYTES_MAX, &check->err);
    if (document && peft_config_parse(document, &config, &check->err) == 0) {
        if (config.rank != method->rank)
            err_set(&check->err, ERR_INVALID, "its rank is %u, method.rank is %u", config.rank, method->rank);
        else if (config.alpha != method->alpha)
            err_set(&check->err, ERR_INVALID, "its alpha is %g, method.alpha is %g", config.alpha,
                    method->alpha);
    }
    json_decref(document);
    if (check->err.code)
        err_wrap(&check->err, "method.start_from");
}

static void adapter_config_done(struct pool_task *task)
{
    struct check *check = (struct check *)task;
    pool_ran(task, &check->err);
    if (check->err.code)
        fail(check);
    else
        check_train(check);
}

static void adapter_read_config(struct check *check)
{
    blob_path(check->app->blobs, json_string_value(json_object_get(check->adapter, "adapter_config.json")),
              check->adapter_path);
    check->task.work = adapter_config_work;
    check->task.done = adapter_config_done;
    if (pool_run(check->app->pool, &check->task, &check->err) < 0)
        fail(check);
}

static const char *const adapter_files[] = {"adapter_config.json", "adapter_model.safetensors"};

static void adapter_file_found(void *arg, const struct err *err, json_t *doc);

static void adapter_look(struct check *check)
{
    if (check->adapter_at == 2) {
        adapter_read_config(check);
        return;
    }
    const char *sha256 = json_string_value(json_object_get(check->adapter, adapter_files[check->adapter_at]));
    if (store_blob_get(check->app->store, sha256, adapter_file_found, check, &check->err) < 0)
        fail(check);
}

static void adapter_file_found(void *arg, const struct err *err, json_t *doc)
{
    (void)doc;
    struct check *check = arg;
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
    struct check *check = (struct check *)task;
    check->adapter = read_json(check->adapter_path, ADAPTER_LIST_BYTES_MAX, &check->err);
    struct json_reader reader;
    struct err err = {0};
    jr_init(&reader, check->adapter, "", &err);
    for (int i = 0; i < 2; i++) {
        const char *sha256 = "";
        if (jr_str(&reader, adapter_files[i], JR_REQUIRED, 64, 64, &sha256) == 1 && !blob_name_valid(sha256))
            jr_fail(&reader, adapter_files[i], "it is not a SHA-256");
    }
    if (!check->err.code && jr_finish(&reader) < 0)
        check->err = err;
    if (check->err.code) {
        if (check->err.code == ERR_TOO_BIG)
            check->err.code = ERR_INVALID;
        err_wrap(&check->err, "method.start_from: the file is not a list of an adapter's two files");
    }
}

static void adapter_list_done(struct pool_task *task)
{
    struct check *check = (struct check *)task;
    pool_ran(task, &check->err);
    if (check->err.code)
        fail(check);
    else
        adapter_look(check);
}

static void adapter_list_found(void *arg, const struct err *err, json_t *doc)
{
    struct check *check = arg;
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

void check_adapter(struct check *check)
{
    char sha256[65];
    const char *from = check->spec.method.start_from;
    if (!from) {
        check_train(check);
        return;
    }
    if (!spec_blob_ref(from, sha256)) {
        err_set(&check->err, ERR_INVALID,
                "method.start_from: the server takes uploaded files (sha256:HEX), not the path \"%.80s\"",
                from);
        fail(check);
    } else if (store_blob_get(check->app->store, sha256, adapter_list_found, check, &check->err) < 0) {
        fail(check);
    }
}

/* ---- data ---- */

static int keep_dataset(struct check *check, const struct store_dataset *dataset, bool train)
{
    json_t **stats = train ? &check->train_stats : &check->eval_stats;
    struct row_size **sizes = train ? &check->train_sizes : &check->eval_sizes;
    size_t rows = dataset->sizes_bytes / sizeof **sizes;
    *stats = json_incref((json_t *)dataset->stats);
    *sizes = malloc(dataset->sizes_bytes + 1);
    if (!*sizes)
        return err_set(&check->err, ERR_NOMEM, "out of memory for row sizes");
    memcpy(*sizes, dataset->sizes,
           dataset->sizes_bytes); /* two little-endian uint32, as this machine has them */
    *(train ? &check->train_rows : &check->eval_rows) = (uint32_t)rows;
    snprintf(train ? check->train_key : check->eval_key, 65, "%s", dataset->key);
    return 0;
}

static void train_encoded(void *arg, const struct err *err, const struct store_dataset *dataset)
{
    struct check *check = arg;
    if (err)
        check_fail(check, err, NULL);
    else if (keep_dataset(check, dataset, true) < 0)
        fail(check);
    else
        check_eval(check);
}

static void eval_encoded(void *arg, const struct err *err, const struct store_dataset *dataset)
{
    struct check *check = arg;
    if (err)
        check_fail(check, err, NULL);
    else if (keep_dataset(check, dataset, false) < 0)
        fail(check);
    else
        check_cluster(check);
}

static void want_dataset(struct check *check, const char *reference, const char *what, dataset_done_fn *done)
{
    char sha256[65];
    if (!spec_blob_ref(reference, sha256)) {
        err_set(&check->err, ERR_INVALID,
                "%s: the server takes uploaded files (sha256:HEX), not the path \"%.80s\"", what, reference);
        fail(check);
        return;
    }
    struct dataset_want want = {.sha256 = sha256, .what = what, .model = check->model, .spec = &check->spec};
    if (dataset_get(check->app->datasets, &want, done, check, &check->err) < 0)
        fail(check);
}

void check_train(struct check *check)
{
    want_dataset(check, check->spec.data.train, "data.train", train_encoded);
}

void check_eval(struct check *check)
{
    if (check->spec.data.eval)
        want_dataset(check, check->spec.data.eval, "data.eval", eval_encoded);
    else
        check_cluster(check);
}

/* ---- devices and fit ---- */

static bool usable(const struct check *check, const json_t *device)
{
    const char *state = json_string_value(json_object_get(device, "state"));
    if (!state || strcmp(state, "gone") == 0)
        return false;
    if (check->depth == CHECK_SUBMIT)
        return true; /* what is drained or away today may be there when the job's turn comes */
    return strcmp(state, "unreachable") != 0 && strcmp(state, "drained") != 0 &&
           strcmp(state, "draining") != 0;
}

static int add_devices(const struct check *check, struct cluster *cluster, struct err *err)
{
    size_t index;
    json_t *device;
    json_array_foreach(json_object_get(check->cluster, "devices"), index, device)
    {
        if (!usable(check, device))
            continue;
        struct cluster_device add = {
            .name = json_string_value(json_object_get(device, "name")),
            .node = json_string_value(json_object_get(device, "node")),
            .kind = json_string_value(json_object_get(device, "kind")),
            .memory_limit_bytes = (uint64_t)json_integer_value(json_object_get(device, "memory_limit_bytes")),
            .threads = (uint32_t)json_integer_value(json_object_get(device, "threads")),
        };
        if (!add.name || !add.node || cluster_add_device(cluster, &add, err) < 0)
            return add.name && add.node ? -1 : err_set(err, ERR_CORRUPT, "a device has no name");
    }
    return 0;
}

static bool profile_matches(const struct check *check, const json_t *profile)
{
    const struct {
        const char *key, *value;
    } wants[] = {
        {"method", spec_method_name(check->spec.method.kind)},
        {"base", spec_base_name(check->spec.method.base)},
        {"compute", spec_compute_name(check->spec.train.compute)},
    };
    for (size_t i = 0; i < 3; i++) {
        const char *is = json_string_value(json_object_get(profile, wants[i].key));
        if (is && strcmp(is, wants[i].value) != 0)
            return false;
    }
    return true;
}

static int add_measurements(const struct check *check, struct cluster *cluster, struct err *err)
{
    size_t index;
    json_t *document;
    json_array_foreach(json_object_get(check->cluster, "profiles"), index, document)
    {
        if (!profile_matches(check, document))
            continue;
        struct err why = {0};
        if (cluster_add_profile(cluster, document, &why) < 0 && why.code == ERR_NOMEM)
            return err_set(err, ERR_NOMEM, "%s",
                           why.text); /* of a device that is not usable: not ours to judge */
    }
    json_array_foreach(json_object_get(check->cluster, "links"), index, document)
    {
        struct err why = {0};
        if (cluster_add_link(cluster, document, &why) < 0 && why.code == ERR_NOMEM)
            return err_set(err, ERR_NOMEM, "%s", why.text);
    }
    return 0;
}

/* Every name of 'names' is a device we know (or knew). */
static int names_known(const struct check *check, const char *what, const struct spec_names *names,
                       struct err *err)
{
    for (uint32_t i = 0; i < names->count; i++) {
        size_t index;
        json_t *device;
        bool found = false;
        json_array_foreach(json_object_get(check->cluster, "devices"), index, device)
        {
            const char *name = json_string_value(json_object_get(device, "name"));
            found |= name && strcmp(name, names->names[i]) == 0;
        }
        if (!found)
            return err_set(err, ERR_INVALID,
                           "placement.%s: there is no device \"%s\" among the %zu of this cluster", what,
                           names->names[i], json_array_size(json_object_get(check->cluster, "devices")));
    }
    return 0;
}

static bool all_measured(const struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster_device_count(cluster); i++)
        if (!cluster_device_has_profile(cluster, i))
            return false;
    return cluster_device_count(cluster) > 0;
}

/* The names of devices without a profile, for the answer. */
static json_t *unmeasured(const struct cluster *cluster)
{
    json_t *names = json_array();
    for (uint32_t i = 0; names && i < cluster_device_count(cluster); i++)
        if (!cluster_device_has_profile(cluster, i))
            json_array_append_new(names, json_string(cluster_device_name(cluster, i)));
    return names;
}

static int search(struct check *check, struct cluster *cluster, const struct model_config *config,
                  struct err *err)
{
    struct workload workload = {0};
    struct plan_options options = {.programs = check->depth == CHECK_PROGRAM};
    struct buf text;
    buf_init(&text, PROGRAM_TEXT_BYTES_MAX);
    uint64_t began = clock_mono_ns();
    int rc = workload_from_spec(&check->spec, config, check->train_sizes, check->train_rows,
                                check->eval_sizes, check->eval_rows, 0, &workload, err);
    if (rc == 0)
        rc = plan_search(&workload, cluster, &options, &check->plan, err);
    if (rc == 0)
        check->plan->plan_s = (double)(clock_mono_ns() - began) * 1e-9;
    if (rc == 0 && check->depth == CHECK_PROGRAM && check->plan->verdict == VERDICT_FITS)
        rc = answer_print_program(check->plan, &workload, cluster, 0, &text, err);
    workload_fini(&workload);
    check->plan_json = rc == 0 ? answer_to_json(check->plan, err) : NULL;
    if (check->plan_json && text.size)
        json_object_set_new(check->plan_json, "program", json_string(buf_str(&text)));
    buf_fini(&text);
    if (!check->plan_json)
        return -1;
    json_object_set_new(check->plan_json, "words", json_string(check->plan->words ? check->plan->words : ""));
    json_object_set_new(check->plan_json, "unmeasured", unmeasured(cluster));
    check->never_fits = check->plan->verdict == VERDICT_DOES_NOT_FIT;
    return 0;
}

static void plan_work(struct pool_task *task)
{
    struct check *check = (struct check *)task;
    struct err *err = &check->err;
    struct model_config config;
    struct cluster *cluster = cluster_create(err);
    if (cluster && add_devices(check, cluster, err) == 0 && add_measurements(check, cluster, err) == 0 &&
        model_config_parse(json_object_get(check->model, "config"), &config, err) == 0) {
        if (cluster_device_count(cluster) == 0 && check->depth != CHECK_SUBMIT)
            err_set(err, ERR_NOFIT,
                    "there is no device to plan for: no agent has joined, or all are drained or away");
        else if (check->depth != CHECK_SUBMIT || all_measured(cluster))
            search(check, cluster, &config, err);
    }
    cluster_destroy(cluster);
}

static void plan_done(struct pool_task *task)
{
    struct check *check = (struct check *)task;
    pool_ran(task, &check->err);
    if (check->err.code) {
        fail(check);
    } else if (check->never_fits && check->depth == CHECK_SUBMIT) {
        json_t *more = json_pack("{s:O}", "plan", check->plan_json);
        err_set(&check->err, ERR_NOFIT, "%s", check->plan->words ? check->plan->words : "no placement fits");
        check_fail(check, &check->err, more);
        json_decref(more);
    } else {
        check_finish(check);
    }
}

static void cluster_found(void *arg, const struct err *err, json_t *doc)
{
    struct check *check = arg;
    if (err) {
        check_fail(check, err, NULL);
        return;
    }
    check->cluster = json_deep_copy(doc); /* the pool's own: reference counts are not atomic */
    json_t *model = json_deep_copy(check->model);
    if (!check->cluster || !model) {
        json_decref(model);
        err_set(&check->err, ERR_NOMEM, "out of memory for a plan");
        fail(check);
        return;
    }
    json_decref(check->model);
    check->model = model;
    if (names_known(check, "devices", &check->spec.placement.devices, &check->err) < 0 ||
        names_known(check, "exclude", &check->spec.placement.exclude, &check->err) < 0) {
        fail(check);
        return;
    }
    check->task.work = plan_work;
    check->task.done = plan_done;
    if (pool_run(check->app->pool, &check->task, &check->err) < 0)
        fail(check);
}

void check_cluster(struct check *check)
{
    const char *content = json_string_value(json_object_get(check->model, "content"));
    if (store_cluster_get(check->app->store, content, cluster_found, check, &check->err) < 0)
        fail(check);
}
