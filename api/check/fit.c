/* The last step of a check: reads the cluster, has devices measured if needed, and plans on them. Its
 * functions run in this order: check_cluster, cluster_found, profiles_found, measure_or_plan (which may wait
 * for measurements and begin with check_cluster again), plan_work on a pool thread, plan_done.
 */
#include "api/check/check_private.h"

#include "common/clock.h"
#include "model/shape/config.h"
#include "planner/answer/plan.h"
#include "planner/given/from_spec.h"
#include "planner/given/inputs.h"
#include "profiles/profile_key.h"
#include "store/nodes.h"
#include "store/sched.h"
#include "show/print.h"
#include "plug/plug.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROGRAM_TEXT_BYTES_MAX = 4 << 20, POLL_MS = 200 };

static void fail_search(struct spec_check *check)
{
    check_searched(check, NULL);
}

static void fail_search_by(struct spec_check *check, const struct err *err)
{
    check->err = *err;
    fail_search(check);
}

/* ---- on a pool thread ---- */

/* Checks that every name of 'names' is a device that is or was in the cluster. */
static int names_known(const struct spec_check *check, const char *what, const struct spec_names *names,
                       struct err *err)
{
    for (uint32_t i = 0; i < names->count; i++) {
        size_t index;
        json_t *device;
        bool found = false;
        json_array_foreach (json_object_get(check->cluster, "devices"), index, device) {
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

/* Returns the names of the devices without a profile, which the answer lists. */
static json_t *unmeasured(const struct cluster *cluster)
{
    json_t *names = json_array();
    for (uint32_t i = 0; names && i < cluster_device_count(cluster); i++)
        if (!cluster_device_has_profile(cluster, i))
            json_array_append_new(names, json_string(cluster_device_name(cluster, i)));
    return names;
}

/* Searches for a plan of the specification's kind of placement. If none fits and placement.fallback is any,
 * searches again for any kind. */
static int search_kinds(struct spec_check *check, const struct cluster *cluster,
                        const struct plan_options *options, struct workload *workload, struct err *err)
{
    if (check->spec.placement.plan)
        return plug_repeat(check->spec.placement.plan, workload, cluster, &check->plan, err);
    int rc = plan_search(workload, cluster, options, &check->plan, err);
    const bool fits = rc == 0 ? check->plan->verdict == VERDICT_FITS
                              : err->code != ERR_UNSUPPORTED && err->code != ERR_NOFIT;
    if (fits || workload->place < 0 || check->spec.placement.fallback != SPEC_FALLBACK_ANY)
        return rc;
    plan_answer_destroy(check->plan);
    check->plan = NULL;
    *err = (struct err){0};
    workload->place = -1;
    workload->stages = workload->order = 0;
    return plan_search(workload, cluster, options, &check->plan, err);
}

static int search(struct spec_check *check, struct cluster *cluster, const struct model_config *config,
                  struct err *err)
{
    struct workload workload = {0};
    struct plan_options options = {.programs = check->depth == CHECK_PROGRAM,
                                   .runnable_only = true,
                                   .advise = true,
                                   .gains = check->depth == CHECK_PLAN || check->depth == CHECK_PROGRAM};
    struct buf text;
    buf_init(&text, PROGRAM_TEXT_BYTES_MAX);
    uint64_t began = clock_mono_ns();
    const struct plan_rows rows = {.train = check->train_sizes,
                                   .eval = check->eval_sizes,
                                   .train_count = check->train_rows,
                                   .eval_count = check->eval_rows,
                                   .prompt_tokens = (uint32_t)json_array_size(check->sample_ids)};
    int rc = workload_from_spec(&check->spec, config, &rows, &workload, err);
    if (rc == 0)
        rc = search_kinds(check, cluster, &options, &workload, err);
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
    if (check->depth == CHECK_INPUTS)
        json_object_set_new(check->plan_json, "inputs", check_plan_inputs(check));
    check->never_fits = check->plan->verdict == VERDICT_DOES_NOT_FIT;
    return 0;
}

/* Makes the answer to CHECK_GATHER, which is the planner's inputs alone. */
static void gather_work(struct spec_check *check)
{
    json_t *inputs = check_plan_inputs(check);
    check->plan_json = inputs ? json_pack("{s:o}", "inputs", inputs) : NULL;
    if (!check->plan_json)
        err_set(&check->err, ERR_NOMEM, "out of memory for a plan's inputs");
}

static void plan_work(struct pool_task *task)
{
    struct spec_check *check = (struct spec_check *)task;
    struct err *err = &check->err;
    if (check->depth == CHECK_GATHER) {
        gather_work(check);
        return;
    }
    struct model_config config;
    json_t *devices = check_plan_devices(check);
    struct cluster *cluster = devices ? plan_inputs_devices(devices, err) : NULL;
    json_decref(devices);
    if (!devices)
        err_set(err, ERR_NOMEM, "out of memory for a plan's inputs");
    else if (cluster && model_config_parse(json_object_get(check->model, "config"), &config, err) == 0) {
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
    struct spec_check *check = (struct spec_check *)task;
    pool_ran(task, &check->err);
    json_t *more = NULL;
    if (!check->err.code && check->never_fits && check->depth == CHECK_SUBMIT) {
        more = json_pack("{s:O}", "plan", check->plan_json);
        err_set(&check->err, ERR_NOFIT, "%s", check->plan->words ? check->plan->words : "no placement fits");
    }
    check_searched(check, more);
    json_decref(more);
}

/* ---- the devices and their measurements ---- */

static bool in_names(const struct spec_names *names, const char *name)
{
    for (uint32_t i = 0; i < names->count; i++)
        if (strcmp(names->names[i], name) == 0)
            return true;
    return false;
}

static bool has_profile(const struct spec_check *check, const char *device)
{
    size_t index;
    json_t *row;
    json_array_foreach (check->profiles, index, row) {
        const char *name = json_string_value(json_object_get(row, "device"));
        if (name && strcmp(name, device) == 0 && !json_is_true(json_object_get(row, "imported")))
            return true;
    }
    return false;
}

/* Whether a device that this job may use has no profile for the job and is free to be measured. */
static bool some_unmeasured(const struct spec_check *check)
{
    const struct spec_placement_part *placement = &check->spec.placement;
    size_t index;
    json_t *device;
    json_array_foreach (json_object_get(check->cluster, "devices"), index, device) {
        const char *name = json_string_value(json_object_get(device, "name"));
        const char *state = json_string_value(json_object_get(device, "state"));
        if (name && state && strcmp(state, "free") == 0 && !in_names(&placement->exclude, name) &&
            (!placement->devices.given || in_names(&placement->devices, name)) && !has_profile(check, name))
            return true;
    }
    return false;
}

static void plan_on_pool(struct spec_check *check)
{
    /* copied for the pool thread, since reference counts are not atomic */
    json_t *cluster = json_deep_copy(check->cluster);
    json_t *profiles = json_deep_copy(check->profiles);
    json_t *model = json_deep_copy(check->model);
    json_decref(check->cluster);
    json_decref(check->profiles);
    json_decref(check->model);
    check->cluster = cluster;
    check->profiles = profiles;
    check->model = model;
    if (!cluster || !profiles || !model)
        err_set(&check->err, ERR_NOMEM, "out of memory for a plan");
    check->task.work = plan_work;
    check->task.done = plan_done;
    if (check->err.code || pool_run(check->app->pool, &check->task, &check->err) < 0)
        fail_search(check);
}

static void on_pause(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    check_cluster(arg);
}

static void look_again(struct spec_check *check)
{
    struct timeval pause = {0, POLL_MS * 1000};
    if (!check->pause)
        check->pause = event_new(check->app->base, -1, 0, on_pause, check);
    if (!check->pause || event_add(check->pause, &pause) < 0) {
        err_set(&check->err, ERR_NOMEM, "out of memory for a plan");
        fail_search(check);
    }
}

static void measurements_asked(void *arg, const struct err *err)
{
    struct spec_check *check = arg;
    if (err)
        fail_search_by(check, err);
    else
        look_again(check);
}

/* Plans with measurements if they arrive within measure_seconds, otherwise with estimates; the answer says
 * which devices are unmeasured. */
static void measure_or_plan(struct spec_check *check)
{
    bool measure = check->depth != CHECK_SUBMIT && some_unmeasured(check);
    unsigned seconds = check->app->config->measure_seconds;
    if (measure && !check->patience_ns) {
        unsigned patience = check->depth == CHECK_GATHER ? 0 : seconds;
        check->patience_ns = clock_mono_ns() + (uint64_t)patience * 1000000000u;
        json_t *inputs = check_inputs(check);
        int rc = inputs && seconds
                     ? store_measure_want(check->app->store, check->profile_key, check->spec_json, inputs,
                                          seconds, measurements_asked, check, &check->err)
                     : -1;
        json_decref(inputs);
        if (rc == 0)
            return;
        err_clear(&check->err);
    } else if (measure && clock_mono_ns() < check->patience_ns) {
        look_again(check);
        return;
    }
    plan_on_pool(check);
}

static void profiles_found(void *arg, const struct err *err, json_t *doc)
{
    struct spec_check *check = arg;
    if (err) {
        fail_search_by(check, err);
        return;
    }
    json_decref(check->profiles);
    check->profiles = json_incref(doc);
    measure_or_plan(check);
}

static void cluster_found(void *arg, const struct err *err, json_t *doc)
{
    struct spec_check *check = arg;
    if (err) {
        fail_search_by(check, err);
        return;
    }
    json_decref(check->cluster);
    check->cluster = json_incref(doc);
    bool here = check->depth != CHECK_GATHER; /* otherwise the names may be devices of another cluster */
    if ((here && (names_known(check, "devices", &check->spec.placement.devices, &check->err) < 0 ||
                  names_known(check, "exclude", &check->spec.placement.exclude, &check->err) < 0)) ||
        store_profile_plan(check->app->store, &check->principal, check->profile_key, profiles_found, check,
                           &check->err) < 0)
        fail_search(check);
}

void check_cluster(struct spec_check *check)
{
    const char *content = json_string_value(json_object_get(check->model, "content"));
    if (!*check->profile_key) {
        if (check_share(check))
            return;
        if (!check->spec_json)
            check->spec_json = spec_to_json(&check->spec, &check->err);
        if (!check->spec_json || profile_key(check->spec_json, json_object_get(check->model, "config"),
                                             check->profile_key, &check->err) < 0) {
            fail_search(check);
            return;
        }
    }
    if (store_cluster_get(check->app->store, &check->principal, content, cluster_found, check, &check->err) <
        0)
        fail_search(check);
}
