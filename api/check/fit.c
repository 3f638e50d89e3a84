/* The last step of a check: reads the cluster, has devices measured if needed, and plans on them on a thread
 * of the pool. Begin with check_fit at the end. */
#include "api/check/check_private.h"

#include "common/clock.h"
#include "model/shape/config.h"
#include "planner/answer/plan.h"
#include "planner/given/from_spec.h"
#include "planner/given/inputs.h"
#include "plug/plug.h"
#include "profiles/profile_key.h"
#include "show/print.h"
#include "store/nodes.h"
#include "store/sched.h"

#include <string.h>

enum { PROGRAM_TEXT_BYTES_MAX = 4 << 20, POLL_MS = 200 };

/* ---- the planner's inputs, made on a thread of the pool ---- */

/* Whether a plan may use a device in this state. A submitted job may wait for a device that is drained or
 * unreachable now, as it may be back when the job starts. */
static bool state_is_usable(const struct spec_check *check, const char *state)
{
    return check->depth == CHECK_SUBMIT ||
           (strcmp(state, "unreachable") != 0 && strcmp(state, "drained") != 0 &&
            strcmp(state, "draining") != 0 && strcmp(state, "lacking") != 0);
}

/* Applies the device's present memory and heat. A plan uses them; a submit does not, since it asks whether
 * the job can ever run. */
static void as_it_is_now(const json_t *health, json_t *device)
{
    const json_int_t bytes = json_integer_value(json_object_get(health, "usable_bytes"));
    const double heat = json_number_value(json_object_get(health, "heat"));
    if (bytes > 0 && bytes < json_integer_value(json_object_get(device, "memory_limit_bytes")))
        json_object_set_new(device, "memory_limit_bytes", json_integer(bytes));
    if (heat > 0 && heat < 1)
        json_object_set_new(device, "heat", json_real(heat));
}

/* Returns the devices that are present; those that no plan may use are marked as not usable. */
static json_t *fit_devices_json(const struct spec_check *check)
{
    static const char *const keys[] = {"name",       "node",    "kind", "like", "memory_limit_bytes",
                                       "base_bytes", "threads", "isa"};
    size_t index, at;
    json_t *device, *row, *list = json_array();
    json_array_foreach (json_object_get(check->cluster, "devices"), index, device) {
        const char *state = json_string_value(json_object_get(device, "state"));
        if (!state || strcmp(state, "gone") == 0)
            continue;
        json_t *told = json_pack("{s:b}", "usable", state_is_usable(check, state));
        for (size_t k = 0; k < sizeof(keys) / sizeof(keys[0]); k++)
            json_object_set(told, keys[k], json_object_get(device, keys[k]));
        if (check->depth != CHECK_SUBMIT)
            as_it_is_now(json_object_get(device, "health"), told);
        json_array_foreach (check->profiles, at, row) {
            json_t *speed = json_object_get(row, "speed"), *taught = json_object_get(row, "taught");
            if (!json_equal(json_object_get(row, "device"), json_object_get(device, "name")))
                continue;
            if (json_number_value(speed) > 0)
                json_object_set(told, "speed", speed);
            if (json_is_array(taught))
                json_object_set(told, "taught", taught);
        }
        json_array_append_new(list, told);
    }
    return list;
}

static json_t *fit_profiles_json(const struct spec_check *check)
{
    size_t index;
    json_t *row, *list = json_array();
    json_array_foreach (check->profiles, index, row)
        json_array_append(list, json_object_get(row, "document"));
    return list;
}

/* Returns the cluster that the check plans on as `devices`, `profiles` and `links` of
 * planner/given/inputs.h, new, or NULL. */
static json_t *cluster_json(const struct spec_check *check)
{
    return json_pack("{s:o, s:o, s:O}", "devices", fit_devices_json(check), "profiles",
                     fit_profiles_json(check), "links", json_object_get(check->cluster, "links"));
}

/* Returns all inputs of the plan in that form, new, or NULL, for who plans by himself: `motley replay`,
 * `motley plan --draw`. */
static json_t *fit_inputs_json(const struct spec_check *check)
{
    json_t *inputs = cluster_json(check);
    json_t *rest =
        json_pack("{s:i, s:O, s:O, s:s, s:o, s:o, s:I}", "version", INPUTS_VERSION, "spec", check->spec_json,
                  "config", json_object_get(check->model, "config"), "profile_key", check->profile_key,
                  "rows", plan_rows_to_json(check->train.sizes, check->train.rows), "eval_rows",
                  plan_rows_to_json(check->eval.sizes, check->eval.rows), "prompt_tokens",
                  (json_int_t)json_array_size(check->sample_ids));
    if (!inputs || json_object_update(inputs, rest) < 0) {
        json_decref(inputs);
        inputs = NULL;
    }
    json_decref(rest);
    return inputs;
}

/* ---- the plan, made on a thread of the pool ---- */

static bool all_measured(const struct cluster *cluster)
{
    for (uint32_t i = 0; i < cluster_device_count(cluster); i++)
        if (!cluster_device_has_profile(cluster, i))
            return false;
    return cluster_device_count(cluster) > 0;
}

/* Returns the names of the devices without a profile, which the answer lists. */
static json_t *unmeasured_json(const struct cluster *cluster)
{
    json_t *names = json_array();
    for (uint32_t i = 0; names && i < cluster_device_count(cluster); i++)
        if (!cluster_device_has_profile(cluster, i))
            json_array_append_new(names, json_string(cluster_device_name(cluster, i)));
    return names;
}

/* Searches for a plan of the specification's kind of placement. If none fits and placement.fallback is any,
 * searches again for any kind. */
static int plan_any(const struct spec_check *check, const struct cluster *cluster,
                    const struct plan_options *options, struct workload *workload, struct plan_answer **plan,
                    struct err *err)
{
    if (check->spec.placement.plan)
        return plug_repeat(check->spec.placement.plan, workload, cluster, plan, err);
    int rc = plan_search(workload, cluster, options, plan, err);
    const bool fits =
        rc == 0 ? (*plan)->verdict == VERDICT_FITS : err->code != ERR_UNSUPPORTED && err->code != ERR_NOFIT;
    if (fits || workload->place < 0 || check->spec.placement.fallback != SPEC_FALLBACK_ANY)
        return rc;
    plan_answer_destroy(*plan);
    *plan = NULL;
    *err = (struct err){0};
    workload->place = -1;
    workload->stages = workload->order = 0;
    return plan_search(workload, cluster, options, plan, err);
}

/* Makes the plan, and of it check->plan. A submit that never fits is refused, and check->more shows why. */
static int plan_make(struct spec_check *check, struct cluster *cluster, const struct model_config *config,
                     struct err *err)
{
    const struct plan_options options = {.programs = check->depth == CHECK_PROGRAM,
                                         .runnable_only = true,
                                         .advise = true,
                                         .gains =
                                             check->depth == CHECK_PLAN || check->depth == CHECK_PROGRAM};
    const struct plan_rows rows = {.train = check->train.sizes,
                                   .eval = check->eval.sizes,
                                   .train_count = check->train.rows,
                                   .eval_count = check->eval.rows,
                                   .prompt_tokens = (uint32_t)json_array_size(check->sample_ids)};
    const uint64_t began_ns = clock_mono_ns();
    struct workload workload = {0};
    struct plan_answer *plan = NULL;
    struct buf program;
    buf_init(&program, PROGRAM_TEXT_BYTES_MAX);
    int rc = workload_from_spec(&check->spec, config, &rows, &workload, err);
    if (rc == 0)
        rc = plan_any(check, cluster, &options, &workload, &plan, err);
    if (rc == 0)
        plan->plan_s = (double)(clock_mono_ns() - began_ns) * 1e-9;
    if (rc == 0 && check->depth == CHECK_PROGRAM && plan->verdict == VERDICT_FITS)
        rc = answer_print_program(plan, &workload, cluster, 0, &program, err);
    workload_fini(&workload);
    json_t *answer = rc == 0 ? answer_to_json(plan, err) : NULL;
    const char *words = plan && plan->words ? plan->words : "";
    if (answer) {
        if (program.size)
            json_object_set_new(answer, "program", json_string(buf_str(&program)));
        json_object_set_new(answer, "words", json_string(words));
        json_object_set_new(answer, "unmeasured", unmeasured_json(cluster));
        if (check->depth == CHECK_INPUTS)
            json_object_set_new(answer, "inputs", fit_inputs_json(check));
    }
    buf_fini(&program);
    check->plan = answer;
    rc = answer ? 0 : -1;
    if (answer && plan->verdict == VERDICT_DOES_NOT_FIT && check->depth == CHECK_SUBMIT) {
        check->more = json_pack("{s:O}", "plan", answer);
        rc = err_set(err, ERR_NOFIT, "%s", *words ? words : "no placement fits");
    }
    plan_answer_destroy(plan);
    return rc;
}

static int plan_work(void *arg, struct err *err)
{
    struct spec_check *check = arg;
    if (check->depth == CHECK_GATHER) {
        json_t *inputs = fit_inputs_json(check);
        check->plan = inputs ? json_pack("{s:o}", "inputs", inputs) : NULL;
        return check->plan ? 0 : err_set(err, ERR_NOMEM, "out of memory for a plan's inputs");
    }
    struct model_config config;
    json_t *document = cluster_json(check);
    struct cluster *cluster = document ? plan_inputs_devices(document, err) : NULL;
    int rc = cluster ? model_config_parse(json_object_get(check->model, "config"), &config, err) : -1;
    if (!document)
        err_set(err, ERR_NOMEM, "out of memory for a plan's inputs");
    json_decref(document);
    if (rc == 0 && check->depth != CHECK_SUBMIT && cluster_device_count(cluster) == 0)
        rc = err_set(err, ERR_NOFIT,
                     "there is no device to plan for: no agent has joined, or all are drained or away");
    else if (rc == 0 && (check->depth != CHECK_SUBMIT || all_measured(cluster)))
        rc = plan_make(check, cluster, &config, err);
    cluster_destroy(cluster);
    return rc;
}

/* ---- the devices and their measurements ---- */

/* Checks that every name of 'names' is a device that is or was in the cluster. wanted: a plan is to use them,
 * and so one that it may not use now is refused. */
static int fit_names_known(const struct spec_check *check, const char *what, const struct spec_names *names,
                           bool wanted, struct err *err)
{
    for (uint32_t i = 0; i < names->count; i++) {
        size_t index;
        json_t *device;
        const char *state = NULL;
        json_array_foreach (json_object_get(check->cluster, "devices"), index, device) {
            const char *name = json_string_value(json_object_get(device, "name"));
            if (name && strcmp(name, names->names[i]) == 0)
                state = json_text_of(device, "state");
        }
        if (state && wanted && check->depth != CHECK_SUBMIT &&
            (strcmp(state, "gone") == 0 || !state_is_usable(check, state)))
            return err_set(
                err, ERR_INVALID,
                "placement.%s: %s is %s, and a plan is for the devices that can be used now; a job "
                "that is submitted waits for it",
                what, names->names[i], state);
        if (!state)
            return err_set(err, ERR_INVALID,
                           "placement.%s: there is no device \"%s\" among the %zu of this cluster", what,
                           names->names[i], json_array_size(json_object_get(check->cluster, "devices")));
    }
    return 0;
}

static bool in_names(const struct spec_names *names, const char *name)
{
    for (uint32_t i = 0; i < names->count; i++)
        if (strcmp(names->names[i], name) == 0)
            return true;
    return false;
}

static bool fit_has_profile(const struct spec_check *check, const char *device)
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
            (!placement->devices.given || in_names(&placement->devices, name)) &&
            !fit_has_profile(check, name))
            return true;
    }
    return false;
}

/* Reads the cluster and the profiles of its devices. */
static int cluster_read(struct spec_check *check, struct err *err)
{
    struct store *store = check->app->store;
    struct wait cluster = wait_of(check->app), profiles = wait_of(check->app);
    const struct spec_placement_part *placement = &check->spec.placement;
    const char *content = json_string_value(json_object_get(check->model, "content"));
    if (wait_end(&cluster, store_cluster_get(store, &check->principal, content, wait_doc, &cluster, err),
                 err) < 0)
        return -1;
    json_decref(check->cluster);
    check->cluster = cluster.doc;
    /* The names of CHECK_GATHER may be devices of another cluster. */
    if (check->depth != CHECK_GATHER &&
        (fit_names_known(check, "devices", &placement->devices, true, err) < 0 ||
         fit_names_known(check, "exclude", &placement->exclude, false, err) < 0))
        return -1;
    if (wait_end(&profiles,
                 store_profile_plan(store, &check->principal, check->profile_key, wait_doc, &profiles, err),
                 err) < 0)
        return -1;
    json_decref(check->profiles);
    check->profiles = profiles.doc;
    return 0;
}

/* Plans with measurements if they arrive within measure_seconds, otherwise with estimates; the answer says
 * which devices are unmeasured. */
static int devices_search(struct spec_check *check, struct err *err)
{
    struct app *app = check->app;
    const unsigned seconds = app->config->measure_seconds;
    uint64_t until_ns = 0; /* 0: no measurement was asked for */
    if (profile_key(check->spec_json, json_object_get(check->model, "config"), check->profile_key, err) < 0 ||
        cluster_read(check, err) < 0)
        return -1;
    while (check->depth != CHECK_SUBMIT && seconds > 0 && some_unmeasured(check)) {
        if (!until_ns) {
            struct wait wait = wait_of(app);
            until_ns = clock_mono_ns() + (uint64_t)seconds * 1000000000u;
            if (store_measure_want(app->store, check->profile_key, check->spec_json, check->inputs, seconds,
                                   wait_done, &wait, err) < 0)
                break;
            if (wait_end(&wait, 0, err) < 0)
                return -1;
        }
        if (check->depth == CHECK_GATHER || clock_mono_ns() >= until_ns)
            break;
        if (wait_pause(app, POLL_MS, err) < 0 || cluster_read(check, err) < 0)
            return -1;
    }
    return wait_work(app, app->pool, plan_work, check, err);
}

/* Returns a check of the same person and class (model/job/plan_class.h), whose search is under way or whose
 * result is fresh, or NULL. */
static struct spec_check *check_of_class(const struct spec_check *check)
{
    static const uint8_t none[DIGEST_SIZE];
    struct spec_check *other;
    if (check->depth != CHECK_SUBMIT || memcmp(check->plan_class, none, sizeof(none)) == 0 ||
        check->is_forgotten)
        return NULL;
    TAILQ_FOREACH (other, &check->submits->checks, link)
        if (other != check && !other->is_forgotten &&
            memcmp(other->plan_class, check->plan_class, sizeof(none)) == 0 &&
            other->principal.id == check->principal.id && other->principal.admin == check->principal.admin &&
            (other->searches || (other->result && other->until_ns > clock_mono_ns())))
            return other;
    return NULL;
}

int check_fit(struct spec_check *check, struct err *err)
{
    struct spec_check *other = check_of_class(check);
    int rc;
    if (other) {
        check->app->counters.submit_cache_hits++;
        rc = other->searches ? wait_in(check->app, &other->followers, err) : 0;
        check->plan = json_incref(other->result ? other->result->answer : other->plan);
        check->more = json_incref(other->more);
        return rc;
    }
    check->searches = true;
    rc = devices_search(check, err);
    check->searches = false;
    wait_wake(&check->followers, rc < 0 ? err : NULL);
    return rc;
}
