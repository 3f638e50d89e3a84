/* Converts the scheduler's rows to the planner's structs and back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "model/shape/config.h"
#include "model/rows/rows.h"
#include "model/job/spec.h"
#include "planner/answer/plan.h"
#include "planner/given/cluster.h"
#include "planner/given/from_spec.h"
#include "planner/given/inputs.h"
#include "plug/plug.h"
#include "profiles/profile_key.h"
#include "program/codec.h"
#include "program/trace.h"
#include "replay/replan.h"
#include "scheduler/placer/placer_private.h"

enum { TIMELINE_EVENTS_MAX = 300000 };

/* Builds the planner's description of the cluster. speeds[request->device_count] are as in struct
 * placer_device. */
static struct cluster *build_cluster(const struct placer_request *request, const double *speeds,
                                     struct err *err)
{
    json_t *devices = placer_devices(request, speeds);
    struct cluster *cluster = devices ? plan_inputs_devices(devices, err) : NULL;
    if (!devices)
        err_set(err, ERR_NOMEM, "no memory for %zu devices", request->device_count);
    json_decref(devices);
    return cluster;
}

/* Removes from placement.devices the names of devices that are not in this request. The scheduler has applied
 * the list already, and asks about a part of the cluster. */
static void keep_names(const struct placer_request *request, char **names, uint32_t *count)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < *count; i++) {
        bool there = false;
        for (size_t d = 0; d < request->device_count && !there; d++)
            there = strcmp(request->devices[d].device->name, names[i]) == 0;
        if (there)
            names[kept++] = names[i];
        else
            free(names[i]);
    }
    *count = kept;
}

static int read_workload(const struct placer_request *request, const struct job_spec *spec,
                         const struct model_config *config, struct workload *workload, struct err *err)
{
    uint32_t train_count = 0, eval_count = 0;
    struct row_size *train = NULL, *eval = NULL;
    const json_t *ids = json_object_get(json_object_get(request->inputs, "sample"), "ids");
    int rc = -1;
    if (request->train_sizes) {
        train = placer_sizes(request->train_sizes, request->train_bytes, &train_count, err);
        if (!train)
            goto out;
    }
    if (request->eval_sizes) {
        eval = placer_sizes(request->eval_sizes, request->eval_bytes, &eval_count, err);
        if (!eval)
            goto out;
    }
    const struct plan_rows rows = {.train = train,
                                   .eval = eval,
                                   .train_count = train_count,
                                   .eval_count = eval_count,
                                   .prompt_tokens = (uint32_t)json_array_size(ids),
                                   .expert_share = json_object_get(request->inputs, "expert_share"),
                                   .compute = json_string_value(json_object_get(request->inputs, "compute"))};
    rc = workload_from_spec(spec, config, &rows, workload, err);
    keep_names(request, workload->devices, &workload->device_count);
out:
    free(train);
    free(eval);
    return rc;
}

static int take_ranks(const struct plan *plan, struct placer_answer *answer, struct err *err)
{
    answer->ranks = calloc(plan->rank_count, sizeof(*answer->ranks));
    if (!answer->ranks)
        return err_set(err, ERR_NOMEM, "no memory for %u ranks", plan->rank_count);
    for (uint32_t i = 0; i < plan->rank_count; i++) {
        answer->ranks[i].device = strdup(plan->ranks[i].device);
        answer->rank_count++;
        if (!answer->ranks[i].device)
            return err_set(err, ERR_NOMEM, "no memory for %u ranks", plan->rank_count);
    }
    return 0;
}

/* A slice may have half of the size that an agent decodes; the other half is for the rest of the
 * assignment. */
static const struct frame_limits slice_limits = {
    .bytes_max = (size_t)8 << 20, .depth_max = 31, .count_max = 1u << 19};

/* Simulates a step of the plan, so that people see its timeline beside the measured one. Returns NULL when
 * the timeline is too long to be stored, or when the plan cannot be simulated, which the plan's check
 * reports. */
static json_t *timeline_of(const struct plan *plan, const struct workload *workload,
                           const struct cluster *cluster)
{
    struct trace trace;
    struct err ignored = {0};
    double step_s;
    trace_init(&trace, TIMELINE_EVENTS_MAX);
    char *text = plan_simulate(plan, workload, cluster, &trace, &step_s, &ignored) == 0 && trace.dropped == 0
                     ? trace_pack(&trace, &ignored)
                     : NULL;
    json_t *timeline = text ? json_string(text) : NULL;
    trace_fini(&trace);
    free(text);
    return timeline;
}

/* Returns a summary of a plan, with enough of it to tell two plans apart. */
static json_t *summary_json(const struct plan *plan)
{
    json_t *devices = json_array();
    for (uint32_t r = 0; plan && r < plan->rank_count; r++)
        json_array_append_new(devices, json_string(plan->ranks[r].device));
    json_t *json = plan ? json_pack("{s:s, s:O, s:I}", "placement", plan_placement_name(plan->placement),
                                    "devices", devices, "micro_batch_rows", (json_int_t)plan->rows_bound)
                        : json_null();
    json_decref(devices);
    return json;
}

/* Appends the plans that may be as fast as the answer's. A plan that could not be sent is left out. */
static int take_rivals(const struct plan_answer *found, struct placer_answer *answer, struct err *err)
{
    answer->rivals = json_array();
    for (uint32_t i = 0; i < found->rival_count; i++) {
        struct err why;
        const struct plan *plan = found->rivals[i].plan;
        json_t *document = plan_to_json(plan, err), *rival = document ? summary_json(plan) : NULL;
        const bool whole = rival && json_object_set_new(rival, "digest", json_string(plan->digest)) == 0 &&
                           json_object_set_new(rival, "step_s", json_real(found->rivals[i].step_s)) == 0 &&
                           json_object_set(rival, "plan", document) == 0;
        const bool fits = whole && placer_plan_check(plan, document, &slice_limits, &why) == 0;
        json_decref(document);
        if (fits ? json_array_append_new(answer->rivals, rival) < 0 : !whole) {
            json_decref(fits ? NULL : rival);
            return err_set(err, ERR_NOMEM, "no memory for %u plans", found->rival_count);
        }
        if (!fits)
            json_decref(rival);
    }
    return 0;
}

static int take_answer(struct plan_answer *found, const struct workload *workload,
                       const struct cluster *cluster, json_t *told, struct placer_answer *answer,
                       struct err *err)
{
    answer->fits = found->verdict == VERDICT_FITS && found->plan;
    snprintf(answer->words, sizeof(answer->words), "%s", found->words ? found->words : "does not fit");
    answer->answer = answer_to_json(found, err);
    if (!answer->answer)
        return -1;
    if (told && json_object_set(answer->answer, "planner", told) < 0)
        return err_set(err, ERR_NOMEM, "no memory for an answer");
    if (!answer->fits)
        return 0;
    answer->plan = plan_to_json(found->plan, err);
    if (!answer->plan || placer_plan_check(found->plan, answer->plan, &slice_limits, err) < 0)
        return -1;
    answer->timeline = timeline_of(found->plan, workload, cluster);
    if (!told && take_rivals(found, answer, err) < 0)
        return -1;
    return take_ranks(found->plan, answer, err);
}

/* Sets the speeds of the plan's devices to the speeds that the run measured. A speed that no device has stems
 * from a time that no step takes: what is known of that device stays. */
static int speeds_measure(const struct placer_request *request, const struct workload *workload,
                          const struct plan *old, double *speeds, struct err *err)
{
    double *factors = calloc(old->rank_count + 1, sizeof(*factors));
    struct cluster *cluster = factors ? build_cluster(request, speeds, err) : NULL;
    int result =
        factors ? -1 : err_set(err, ERR_NOMEM, "no memory for the speeds of %u ranks", old->rank_count);
    if (cluster)
        result = replan_factors(workload, cluster, old, request->move->compute_s, factors, err);
    for (size_t i = 0; i < request->device_count && result == 0; i++) {
        for (uint32_t r = 0; r < old->rank_count; r++) {
            /* The averaged times of a card that throttles now partly stem from before it throttled, so they
             * cannot show that the card is faster than its profile. */
            bool hot = request->devices[i].heat < 1 && factors[r] > 1;
            if (strcmp(old->ranks[r].device, request->devices[i].device->name) == 0 && factors[r] != 1 &&
                !hot) {
                const double speed = (speeds[i] > 0 ? speeds[i] : 1) * factors[r];
                speeds[i] = speed >= CLUSTER_SPEED_MIN && speed <= CLUSTER_SPEED_MAX ? speed : speeds[i];
                break;
            }
        }
    }
    cluster_destroy(cluster);
    free(factors);
    return result;
}

static json_t *speeds_json(const struct placer_request *request, const double *speeds)
{
    json_t *json = json_object();
    for (size_t i = 0; i < request->device_count; i++)
        if (speeds[i] != request->devices[i].speed)
            json_object_set_new(json, request->devices[i].device->name, json_real(speeds[i]));
    return json;
}

/* Decides whether the run stays or moves, and stores the decision in answer->answer. */
static int weigh_plans(const struct placer_request *request, const struct workload *workload,
                       const struct plan *old, const double *speeds, struct placer_answer *answer,
                       struct err *err)
{
    const struct placer_move *move = request->move;
    const struct plan_options options = {.runnable_only = true};
    struct replan_state state = {.windows = move->windows};
    struct replan_decision decision = {0};
    struct cluster *cluster = build_cluster(request, speeds, err);
    const struct replan_input input = {.old = old,
                                       .workload = workload,
                                       .cluster = cluster,
                                       .steps_left = move->steps_left,
                                       .restart_s = move->restart_s,
                                       .options = &options};
    int result = cluster ? replan_decide(&input, &state, &decision, err) : -1;
    if (result == 0) {
        answer->answer = replan_to_json(&decision, err);
        answer->fits = true;
        result = !answer->answer || json_object_set_new(answer->answer, "old", summary_json(old)) < 0 ||
                         json_object_set_new(answer->answer, "new", summary_json(decision.plan)) < 0 ||
                         json_object_set_new(answer->answer, "speeds", speeds_json(request, speeds)) < 0
                     ? err_set(err, ERR_NOMEM, "no memory for a decision")
                     : 0;
    }
    replan_decision_fini(&decision);
    cluster_destroy(cluster);
    return result;
}

static int weigh_move(const struct placer_request *request, const struct workload *workload, double *speeds,
                      struct placer_answer *answer, struct err *err)
{
    struct plan *old = plan_from_json(request->move->plan, err);
    /* a second copy, since pricing a plan changes fields that the plan's digest covers */
    struct plan *priced = plan_from_json(request->move->plan, err);
    int result = old && priced ? 0 : -1;
    if (result == 0 && request->move->rank_count == old->rank_count)
        result = speeds_measure(request, workload, priced, speeds, err);
    if (result == 0)
        result = weigh_plans(request, workload, old, speeds, answer, err);
    plan_destroy(priced);
    plan_destroy(old);
    return result;
}

/* Asks an external planner, in the specification that it gets with what our own plan is computed in. */
static int ask_external(const struct placer_request *request, const char *name,
                        const struct workload *workload, const struct cluster *cluster,
                        struct plan_answer *found, json_t **told, struct err *err)
{
    struct placer_request settled = *request;
    json_t *spec = spec_computed(request->spec, plan_dtype_name((enum plan_dtype)workload->compute));
    if (!spec)
        return err_set(err, ERR_NOMEM, "no memory for a specification");
    settled.spec = spec;
    int rc = placer_external(&settled, name, workload, cluster, found, told, err);
    json_decref(spec);
    return rc;
}

/* Answers with a given plan. Returns 0, or -1 with the errors of plug_repeat. */
static int repeat(const json_t *plan, const struct workload *workload, const struct cluster *cluster,
                  struct placer_answer *answer, struct err *err)
{
    struct plan_answer *found = NULL;
    int rc = plug_repeat(plan, workload, cluster, &found, err);
    if (rc == 0)
        rc = take_answer(found, workload, cluster, NULL, answer, err);
    plan_answer_destroy(found);
    return rc;
}

/* Answers with the request's pinned plan. Returns 1 with *answer, 0 where it cannot run on these devices, -1
 * without memory. */
static int repeat_pinned(const struct placer_request *request, const struct workload *workload,
                         const struct cluster *cluster, struct placer_answer *answer, struct err *err)
{
    struct err why;
    if (repeat(request->pinned, workload, cluster, answer, &why) < 0) {
        placer_answer_fini(answer);
        return why.code == ERR_NOMEM ? err_set(err, ERR_NOMEM, "%s", why.text) : 0;
    }
    if (json_object_set(answer->answer, "repeats", json_object_get(request->pinned, "digest")) < 0)
        return err_set(err, ERR_NOMEM, "no memory for an answer");
    return 1;
}

/* Searches for a plan, and asks the external planner if there is one. */
static int placer_planner_search(const struct placer_request *request, const struct job_spec *spec,
                                 struct workload *workload, const struct cluster *cluster,
                                 struct placer_answer *answer, struct err *err)
{
    const struct plan_options options = {
        .programs = true,
        .runnable_only = true,
        .rivals = spec->placement.move == SPEC_MOVE_AUTO ? spec->placement.trials : 0};
    struct plan_answer *found = NULL;
    json_t *told = NULL;
    const uint64_t begin_ns = clock_mono_ns();
    if (plan_search(workload, cluster, &options, &found, err) < 0) {
        if (err->code == ERR_NOFIT) /* no device can be priced, which is not the job's fault: it waits */
            err->code = ERR_BUSY;
        return -1;
    }
    found->plan_s = (double)(clock_mono_ns() - begin_ns) * 1e-9;
    int rc = ask_external(request, spec->placement.planner, workload, cluster, found, &told, err);
    if (rc == 0)
        rc = take_answer(found, workload, cluster, told, answer, err);
    json_decref(told);
    plan_answer_destroy(found);
    return rc;
}

static int plan(const struct placer_request *request, struct placer_answer *answer, struct err *err)
{
    struct job_spec spec = {0};
    struct model_config *config = calloc(1, sizeof(*config));
    struct workload workload = {0};
    struct cluster *cluster = NULL;
    double *speeds = calloc(request->device_count + 1, sizeof(*speeds));
    int rc = -1;

    *answer = (struct placer_answer){0};
    if (!config || !speeds) {
        err_set(err, ERR_NOMEM, "no memory for a model's configuration");
        goto out;
    }
    for (size_t i = 0; i < request->device_count; i++)
        speeds[i] = request->devices[i].speed;
    if (spec_parse(request->spec, &spec, err) < 0 ||
        model_config_parse(json_object_get(request->model, "config"), config, err) < 0 ||
        read_workload(request, &spec, config, &workload, err) < 0) {
        goto out;
    }
    if (request->move) {
        rc = weigh_move(request, &workload, speeds, answer, err);
        goto out;
    }
    cluster = build_cluster(request, speeds, err);
    if (!cluster)
        goto out;
    if (spec.placement.plan) {
        rc = repeat(spec.placement.plan, &workload, cluster, answer, err);
    } else {
        const int pinned = request->pinned ? repeat_pinned(request, &workload, cluster, answer, err) : 0;
        rc = pinned == 0  ? placer_planner_search(request, &spec, &workload, cluster, answer, err)
             : pinned > 0 ? 0
                          : -1;
    }
out:
    if (rc < 0)
        placer_answer_fini(answer);
    cluster_destroy(cluster);
    workload_fini(&workload);
    spec_fini(&spec);
    free(speeds);
    free(config);
    return rc;
}

const struct placer placer_planner = {.plan = plan};

int placer_profile_key(const json_t *spec, const json_t *config, char key[DIGEST_HEX_SIZE], struct err *err)
{
    return profile_key(spec, config, key, err);
}
