/* Sharing of checks: the newest are kept in a short list, found by the digest of the specification without
 * its name. */
#include "api/check/check_private.h"

#include "common/clock.h"
#include "common/digest.h"
#include "common/json.h"
#include "model/order.h"
#include "planner/search/search.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHECKS_MAX = 256, CHECK_KEEP_SECONDS = 5 };

TAILQ_HEAD(checks, check);

struct submits {
    struct app *app;
    struct checks checks; /* newest first */
    unsigned count;
};

struct shared_result { /* struct checked with its count */
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

int submits_create(struct app *app, struct submits **submits, struct err *err)
{
    *submits = calloc(1, sizeof **submits);
    if (!*submits)
        return err_set(err, ERR_NOMEM, "out of memory for submits");
    (*submits)->app = app;
    TAILQ_INIT(&(*submits)->checks);
    return 0;
}

/* What was only needed to get to the result. */
static void check_clear(struct check *check)
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

static void check_free(struct check *check)
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

void submits_forget(struct submits *submits)
{
    struct check *next;
    for (struct check *check = TAILQ_FIRST(&submits->checks); check; check = next) {
        next = TAILQ_NEXT(check, link);
        if (!check->under_way)
            check_free(check);
        else
            memset(check->key, 0, sizeof check->key); /* it answers who waits, and nobody after */
    }
}

void submits_destroy(struct submits *submits)
{
    if (!submits)
        return;
    while (!TAILQ_EMPTY(&submits->checks))
        check_free(TAILQ_FIRST(&submits->checks));
    free(submits);
}

/* Answer everybody who waits. The check itself is kept if it has a result, else freed. */
static void answer_all(struct check *check, const struct err *err, json_t *more)
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

void check_fail(struct check *check, const struct err *err, json_t *more)
{
    struct err copy = *err; /* it may be the check's own */
    answer_all(check, &copy, more);
}

static int64_t step_count(const struct check *check)
{
    struct order order = {.seed = check->spec.train.seed,
                          .shuffle = check->spec.data.shuffle,
                          .row_count = check->train_rows,
                          .batch_rows = check->spec.train.batch_rows,
                          .steps = check->spec.train.steps,
                          .epochs = check->spec.train.epochs};
    return (int64_t)order_step_count(&order);
}

json_t *check_inputs(const struct check *check)
{
    json_t *inputs = json_pack("{s:O, s:s, s:s?, s:O?}", "model", json_object_get(check->model, "content"),
                               "train", check->train_key, "eval", *check->eval_key ? check->eval_key : NULL,
                               "adapter", check->adapter);
    if (inputs && check->sample_ids)
        json_object_set_new(inputs, "sample", json_pack("{s:O}", "ids", check->sample_ids));
    return inputs;
}

void check_finish(struct check *check)
{
    struct shared_result *shared = calloc(1, sizeof *shared);
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
    result->steps = step_count(check);
    if (!result->spec || !result->inputs || !result->data) {
        if (!err.code)
            err_set(&err, ERR_NOMEM, "out of memory for a checked specification");
        checked_release(result);
        check_fail(check, &err, NULL);
        return;
    }
    check->result = result;
    bool estimated = json_array_size(json_object_get(check->plan_json, "unmeasured")) > 0;
    check->until_ns = estimated ? 0 : clock_mono_ns() + CHECK_KEEP_SECONDS * UINT64_C(1000000000);
    answer_all(check, NULL, NULL);
}

/* The digest of all but the name, and of how deep the check goes. */
static int make_key(json_t *document, enum check_depth depth, uint8_t key[32], struct err *err)
{
    struct buf text;
    buf_init(&text, 4u << 20);
    json_t *name = json_incref(json_object_get(document, "name"));
    if (name)
        json_object_del(document, "name");
    int rc = json_print(document, true, &text, err);
    if (name)
        json_object_set_new(document, "name", name);
    if (rc == 0)
        rc = buf_append(&text, (const char[]){"SPXI"[depth]}, 1, err);
    if (rc == 0)
        rc = digest_sha256(text.data, text.size, key, err);
    buf_fini(&text);
    return rc;
}

static struct check *find(struct submits *submits, const uint8_t key[32])
{
    struct check *check;
    TAILQ_FOREACH(check, &submits->checks, link)
    if (memcmp(check->key, key, 32) == 0)
        return check;
    return NULL;
}

static int make_room(struct submits *submits, struct err *err)
{
    if (submits->count < CHECKS_MAX)
        return 0;
    struct check *oldest;
    TAILQ_FOREACH_REVERSE(oldest, &submits->checks, checks, link)
    if (!oldest->under_way) {
        check_free(oldest);
        return 0;
    }
    return err_set(err, ERR_BUSY, "the server has %d specifications in work, its limit", CHECKS_MAX);
}

static struct check *check_create(struct submits *submits, json_t *document, enum check_depth depth,
                                  const uint8_t key[32], struct err *err)
{
    if (make_room(submits, err) < 0)
        return NULL;
    struct check *check = calloc(1, sizeof *check);
    if (!check) {
        err_set(err, ERR_NOMEM, "out of memory for a check");
        return NULL;
    }
    STAILQ_INIT(&check->waiters);
    check->submits = submits;
    check->app = submits->app;
    check->depth = depth;
    check->under_way = true;
    memcpy(check->key, key, 32);
    TAILQ_INSERT_HEAD(&submits->checks, check, link);
    submits->count++;
    if (spec_parse(document, &check->spec, err) < 0) {
        check_free(check);
        return NULL;
    }
    return check;
}

/* A name alone differs between equal checks, so it is looked at for each. */
static int check_name(json_t *document, struct err *err)
{
    json_t *name = json_object_get(document, "name");
    if (!name)
        return 0;
    if (!json_is_string(name) || json_string_length(name) < 1 || json_string_length(name) >= SPEC_NAME_BYTES)
        return err_set(err, ERR_INVALID, "name: it is not a text of 1 to %d bytes", SPEC_NAME_BYTES - 1);
    return 0;
}

void check_spec(struct submits *submits, json_t *document, enum check_depth depth, check_done_fn *done,
                void *arg)
{
    uint8_t key[32];
    struct err err = {0};
    struct check_waiter *waiter = NULL;
    if (check_name(document, &err) < 0 || make_key(document, depth, key, &err) < 0) {
        done(arg, &err, NULL, NULL);
        return;
    }
    struct check *check = find(submits, key);
    if (check && !check->under_way && check->until_ns > clock_mono_ns()) {
        submits->app->counters.submit_cache_hits++;
        done(arg, NULL, check->result, NULL);
        return;
    }
    if (check && !check->under_way) {
        check_free(check);
        check = NULL;
    }
    bool begin = !check;
    waiter = calloc(1, sizeof *waiter);
    if (!waiter)
        err_set(&err, ERR_NOMEM, "out of memory for a check");
    else if (begin)
        check = check_create(submits, document, depth, key, &err);
    if (!waiter || !check) {
        free(waiter);
        done(arg, &err, NULL, NULL);
        return;
    }
    waiter->done = done;
    waiter->arg = arg;
    STAILQ_INSERT_TAIL(&check->waiters, waiter, link);
    if (begin)
        check_model(check);
}
