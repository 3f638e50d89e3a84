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
#include "planner/given/catalogue.h"
#include "planner/given/cluster.h"
#include "planner/given/from_spec.h"
#include "profiles/profile_key.h"
#include "program/codec.h"
#include "replay/replan.h"
#include "scheduler/placer/placer_private.h"

static struct cluster *build_cluster(const struct placer_request *request, struct err *err)
{
    struct cluster *cluster = cluster_create(err);
    if (cluster == NULL) {
        return NULL;
    }
    for (size_t i = 0; i < request->device_count; i++) {
        const struct store_sched_device *from = request->devices[i].device;
        json_int_t threads = json_integer_value(json_object_get(from->inventory, "threads"));
        json_int_t base = json_integer_value(json_object_get(from->inventory, "base_bytes"));
        const char *like = json_string_value(json_object_get(from->inventory, "like"));
        const struct cluster_device device = {
            .name = from->name,
            .node = from->node,
            .kind = from->kind,
            /* an unknown name is left out: its device has a measured profile */
            .like = like != NULL && catalogue_find(like) != NULL ? like : NULL,
            .base_bytes = base > 0 ? (uint64_t)base : 0,
            .memory_limit_bytes = request->devices[i].memory_bytes,
            .heat = request->devices[i].heat,
            .threads = threads > 0 && threads < 65536 ? (uint32_t)threads : 1,
        };
        if (cluster_add_device(cluster, &device, err) < 0) {
            goto fail;
        }
    }
    for (size_t i = 0; i < request->device_count; i++) {
        if (request->devices[i].profile != NULL &&
            cluster_add_profile(cluster, request->devices[i].profile, err) < 0) {
            err_wrap(err, "profile of %s", request->devices[i].device->name);
            goto fail;
        }
    }
    for (size_t i = 0; i < request->link_count; i++) {
        const json_t *link = request->links[i];
        if (placer_has_node(request, json_string_value(json_object_get(link, "from"))) &&
            placer_has_node(request, json_string_value(json_object_get(link, "to"))) &&
            cluster_add_link(cluster, link, err) < 0) {
            goto fail;
        }
    }
    return cluster;
fail:
    cluster_destroy(cluster);
    return NULL;
}

static int read_workload(const struct placer_request *request, const struct job_spec *spec,
                         const struct model_config *config, struct workload *workload, struct err *err)
{
    uint32_t train_count = 0, eval_count = 0;
    struct row_size *train = NULL, *eval = NULL;
    const json_t *ids = json_object_get(json_object_get(request->inputs, "sample"), "ids");
    int rc = -1;
    if (request->train_sizes != NULL) {
        train = placer_sizes(request->train_sizes, request->train_bytes, &train_count, err);
        if (train == NULL) {
            goto out;
        }
    }
    if (request->eval_sizes != NULL) {
        eval = placer_sizes(request->eval_sizes, request->eval_bytes, &eval_count, err);
        if (eval == NULL) {
            goto out;
        }
    }
    const struct plan_rows rows = {.train = train,
                                   .eval = eval,
                                   .train_count = train_count,
                                   .eval_count = eval_count,
                                   .prompt_tokens = (uint32_t)json_array_size(ids)};
    rc = workload_from_spec(spec, config, &rows, workload, err);
out:
    free(train);
    free(eval);
    return rc;
}

static int take_ranks(const struct plan *plan, struct placer_answer *answer, struct err *err)
{
    answer->ranks = calloc(plan->rank_count, sizeof(*answer->ranks));
    if (answer->ranks == NULL) {
        return err_set(err, ERR_NOMEM, "no memory for %u ranks", plan->rank_count);
    }
    for (uint32_t i = 0; i < plan->rank_count; i++) {
        answer->ranks[i].device = strdup(plan->ranks[i].device);
        answer->rank_count++;
        if (answer->ranks[i].device == NULL) {
            return err_set(err, ERR_NOMEM, "no memory for %u ranks", plan->rank_count);
        }
    }
    return 0;
}

static int take_answer(struct plan_answer *found, json_t *told, struct placer_answer *answer, struct err *err)
{
    answer->fits = found->verdict == VERDICT_FITS && found->plan != NULL;
    snprintf(answer->words, sizeof(answer->words), "%s",
             found->words != NULL ? found->words : "does not fit");
    answer->answer = answer_to_json(found, err);
    if (answer->answer == NULL) {
        return -1;
    }
    if (told != NULL && json_object_set(answer->answer, "planner", told) < 0) {
        return err_set(err, ERR_NOMEM, "no memory for an answer");
    }
    if (!answer->fits) {
        return 0;
    }
    answer->plan = plan_to_json(found->plan, err);
    return answer->plan != NULL ? take_ranks(found->plan, answer, err) : -1;
}

/* Decides whether the run stays or moves, and stores the decision in answer->answer. */
static int weigh_move(const struct placer_request *request, const struct workload *workload,
                      const struct cluster *cluster, struct placer_answer *answer, struct err *err)
{
    const struct placer_move *move = request->move;
    const struct plan_options options = {.runnable_only = true};
    struct replan_state state = {.windows = move->windows};
    struct replan_decision decision = {0};
    struct plan *old = plan_from_json(move->plan, err);
    const struct replan_input input = {.old = old,
                                       .workload = workload,
                                       .cluster = cluster,
                                       .steps_left = move->steps_left,
                                       .restart_s = move->restart_s,
                                       .options = &options};
    int result = old != NULL ? replan_decide(&input, &state, &decision, err) : -1;
    if (result == 0) {
        answer->answer = replan_to_json(&decision, err);
        answer->fits = true;
        result = answer->answer != NULL ? 0 : -1;
    }
    replan_decision_fini(&decision);
    plan_destroy(old);
    return result;
}

static int plan(const struct placer_request *request, struct placer_answer *answer, struct err *err)
{
    struct job_spec spec = {0};
    struct model_config *config = calloc(1, sizeof(*config));
    struct workload workload = {0};
    struct cluster *cluster = NULL;
    struct plan_answer *found = NULL;
    json_t *told = NULL;
    int rc = -1;

    *answer = (struct placer_answer){0};
    if (config == NULL) {
        return err_set(err, ERR_NOMEM, "no memory for a model's configuration");
    }
    if (spec_parse(request->spec, &spec, err) < 0 ||
        model_config_parse(json_object_get(request->model, "config"), config, err) < 0 ||
        read_workload(request, &spec, config, &workload, err) < 0) {
        goto out;
    }
    cluster = build_cluster(request, err);
    if (cluster == NULL) {
        goto out;
    }
    if (request->move != NULL) {
        rc = weigh_move(request, &workload, cluster, answer, err);
        goto out;
    }
    const struct plan_options options = {.programs = true, .runnable_only = true};
    uint64_t begin_ns = clock_mono_ns();
    if (plan_search(&workload, cluster, &options, &found, err) < 0) {
        goto out;
    }
    found->plan_s = (double)(clock_mono_ns() - begin_ns) * 1e-9;
    if (placer_external(request, spec.placement.planner, &workload, cluster, found, &told, err) < 0) {
        goto out;
    }
    rc = take_answer(found, told, answer, err);
out:
    if (rc < 0) {
        placer_answer_fini(answer);
    }
    json_decref(told);
    plan_answer_destroy(found);
    cluster_destroy(cluster);
    workload_fini(&workload);
    spec_fini(&spec);
    free(config);
    return rc;
}

const struct placer placer_planner = {.plan = plan};

int placer_profile_key(const json_t *spec, const json_t *config, char key[DIGEST_HEX_SIZE], struct err *err)
{
    return profile_key(spec, config, key, err);
}
