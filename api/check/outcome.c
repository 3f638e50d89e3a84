/* Ends a check: keeps its result for CHECK_KEEP_SECONDS, or gives its error to all requests that wait for
 * it. */
#include "api/check/check_private.h"

#include "common/clock.h"
#include "model/job/order.h"
#include "model/job/plan_class.h"
#include "planner/answer/plan.h"

#include <stdlib.h>
#include <string.h>

enum { CHECK_KEEP_SECONDS = 5 };

struct shared_result { /* a struct checked with its count of holders */
    struct checked checked;
    unsigned holders;
};

void checked_hold(struct checked *checked)
{
    ((struct shared_result *)checked)->holders++;
}

void checked_release(struct checked *checked)
{
    struct shared_result *shared = (struct shared_result *)checked;
    if (!checked || --shared->holders)
        return;
    json_decref(checked->spec);
    json_decref(checked->inputs);
    json_decref(checked->answer);
    json_decref(checked->data);
    free(shared);
}

/* Frees everything that was needed only to reach the result. */
static void check_clear(struct spec_check *check)
{
    spec_fini(&check->spec);
    json_decref(check->model);
    json_decref(check->adapter);
    json_decref(check->train_stats);
    json_decref(check->eval_stats);
    json_decref(check->cluster);
    json_decref(check->plan_json);
    json_decref(check->spec_json);
    json_decref(check->profiles);
    json_decref(check->sample_ids);
    if (check->pause)
        event_free(check->pause);
    plan_answer_destroy(check->plan);
    free(check->train_sizes);
    free(check->eval_sizes);
    check->model = check->adapter = check->train_stats = check->eval_stats = NULL;
    check->cluster = check->plan_json = check->spec_json = check->profiles = check->sample_ids = NULL;
    check->pause = NULL;
    check->plan = NULL;
    check->train_sizes = check->eval_sizes = NULL;
}

void check_free(struct spec_check *check)
{
    struct check_waiter *waiter;
    while ((waiter = STAILQ_FIRST(&check->waiters))) {
        STAILQ_REMOVE_HEAD(&check->waiters, link);
        free(waiter);
    }
    TAILQ_REMOVE(&check->submits->checks, check, link);
    check->submits->count--;
    check_clear(check);
    checked_release(check->result);
    free(check);
}

/* Answers all requests that wait for the check. The check is kept if it has a result, else freed. */
static void answer_all(struct spec_check *check, const struct err *err, json_t *more)
{
    struct check_waiters waiters = check->waiters;
    if (STAILQ_EMPTY(&check->waiters))
        STAILQ_INIT(&waiters);
    STAILQ_INIT(&check->waiters);
    struct checked *result = check->result;
    if (result)
        checked_hold(result);
    check->under_way = false;
    check_clear(check);
    if (!result)
        check_free(check);
    struct check_waiter *waiter;
    while ((waiter = STAILQ_FIRST(&waiters))) {
        STAILQ_REMOVE_HEAD(&waiters, link);
        waiter->done(waiter->arg, err, result, more);
        free(waiter);
    }
    checked_release(result);
}

void check_fail(struct spec_check *check, const struct err *err, json_t *more)
{
    struct err copy = *err; /* 'err' may lie in the check, which answer_all frees */
    answer_all(check, &copy, more);
}

static int64_t step_count(const struct spec_check *check)
{
    struct order order = {.seed = check->spec.train.seed,
                          .shuffle = check->spec.data.shuffle,
                          .row_count = check->train_rows,
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

json_t *check_inputs(const struct spec_check *check)
{
    if (*check->fetch)
        return json_pack("{s:n, s:n, s:n, s:n}", "model", "train", "eval", "adapter");
    json_t *inputs = json_pack("{s:O, s:s, s:s?, s:O?}", "model", json_object_get(check->model, "content"),
                               "train", check->train_key, "eval", *check->eval_key ? check->eval_key : NULL,
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
        json_object_set_new(inputs, "rows", json_integer(check->train_rows));
    return inputs;
}

int check_take_class(struct spec_check *check, const json_t *inputs)
{
    json_t *rest = plan_class_spec(check->spec_json);
    int rc = rest ? plan_class_digest(rest, inputs, check->plan_class, &check->err)
                  : err_set(&check->err, ERR_NOMEM, "out of memory for a checked specification");
    json_decref(rest);
    return rc;
}

void check_finish(struct spec_check *check)
{
    struct shared_result *shared = calloc(1, sizeof(*shared));
    struct checked *result = &shared->checked;
    struct err err = {0};
    if (!shared) {
        err_set(&err, ERR_NOMEM, "out of memory for a checked specification");
        check_fail(check, &err, NULL);
        return;
    }
    shared->holders = 1;
    result->spec = json_incref(check->spec_json);
    result->inputs = check_inputs(check);
    result->data = json_pack("{s:O?, s:O?}", "train", check->train_stats, "eval", check->eval_stats);
    result->answer = json_incref(check->plan_json);
    result->priority = check->spec.priority;
    result->held = check->spec.hold;
    result->retries_max = check->spec.limits.retries;
    result->time_limit_ms = (int64_t)check->spec.limits.time_s * 1000;
    result->steps = *check->fetch ? (int64_t)check->spec.train.steps : step_count(check);
    result->begin_us = check->spec.begin_us;
    result->service = check->spec.service;
    result->devices_least = devices_least(&check->spec);
    result->array_size = check->spec.array_size;
    result->at_most = check->spec.at_most;
    if (!result->data || !result->inputs) {
        err_set(&err, ERR_NOMEM, "out of memory for a checked specification");
        checked_release(result);
        check_fail(check, &err, NULL);
        return;
    }
    memcpy(result->plan_class, check->plan_class, sizeof(result->plan_class));
    memcpy(result->fetch, check->fetch, sizeof(result->fetch));
    check->result = result;
    bool estimated = json_array_size(json_object_get(check->plan_json, "unmeasured")) > 0;
    check->until_ns = estimated ? 0 : clock_mono_ns() + CHECK_KEEP_SECONDS * UINT64_C(1000000000);
    answer_all(check, NULL, NULL);
}
