/* Answers POST /v1/jobs and POST /v1/jobs:validate.
 *
 * Each function below passes on the one that continues when the store or the check has answered. A submit is
 * jobs_submit, answer_repeated if the request has a key, submit_new, check_spec (api/check/), insert_checked
 * and, after the commit, answer_made. A request for a plan is jobs_validate, check_spec and answer_checked.
 */
#include "api/request/route.h"

#include "api/people/access.h"
#include "api/check/check.h"
#include "api/jobs/fetches.h"
#include "common/clock.h"
#include "common/digest.h"
#include "store/jobs.h"

#include <stdio.h>
#include <string.h>

static void answer_made(void *arg, const struct err *err, const struct store_job_made *made)
{
    struct call *call = arg;
    /* The submitted job is refused because of its account or a limit. */
    if (err && err->code == ERR_INVALID) {
        call_refuse(call, err);
        return;
    }
    if (err) {
        call_fail(call, err);
        return;
    }
    char location[48], created[32];
    snprintf(location, sizeof(location), "/v1/jobs/%lld", (long long)made->id);
    clock_rfc3339(made->created_us, created);
    struct httpd_field fields[] = {
        {"Location", location}, {made->repeated ? "Idempotent-Replayed" : NULL, "true"}, {NULL, NULL}};
    json_t *document = json_pack("{s:I, s:s, s:s}", "id", (json_int_t)made->id, "state",
                                 state_name(&job_machine, (int)made->state), "created", created);
    call->app->counters.submits++;
    if (made->state == JOB_HELD)
        fetches_look(call->app->job_fetches);
    call_json(call, 201, document, fields);
}

static void answer_refusal(struct call *call, const struct err *err, json_t *more)
{
    if (err->code == ERR_NOFIT) {
        call_problem(call, 422, err_code_name(err->code), json_incref(more), "%s", err->text);
        return;
    }
    if (err->code == ERR_INVALID && !call->errors && (call->errors = json_array()))
        spec_errors(call->body, call->errors);
    call_refuse(call, err);
}

static void insert_checked(void *arg, const struct err *err, struct checked *checked, json_t *more)
{
    struct call *call = arg;
    if (err) {
        answer_refusal(call, err, more);
        return;
    }
    const char *key = NULL;
    if (call_key(call, &key) < 0)
        return;
    struct err failed = {0};
    if (access_priority(&call->principal, checked->priority, &failed) < 0 ||
        (checked->service == SPEC_SERVICE_URGENT &&
         access_admin(&call->principal, "service: only an administrator may make a job urgent", &failed) <
             0)) {
        call_fail(call, &failed);
        return;
    }
    uint8_t digest[DIGEST_SIZE];
    size_t size;
    const char *body = httpd_request_body(call->request, &size);
    /* Jobs that share a check may have different names. */
    json_t *spec = json_copy(checked->spec);
    json_t *name = json_object_get(call->body, "name");
    if (spec && name)
        json_object_set(spec, "name", name);
    const char *text = spec ? json_string_value(json_object_get(spec, "name")) : NULL;
    struct store_job_new job = {
        .owner = &call->principal,
        .name = text,
        .idempotency_key = key,
        .request_digest = digest,
        .spec = spec,
        .inputs = checked->inputs,
        .plan_class = *checked->fetch ? NULL : checked->plan_class,
        .fetch = *checked->fetch ? checked->fetch : NULL,
        .priority = checked->priority,
        .held = checked->held,
        .retries_max = checked->retries_max,
        .time_limit_ms = checked->time_limit_ms,
        .steps = checked->steps,
        .account = json_string_value(json_object_get(spec, "account")),
        .service = (unsigned)checked->service,
        .begin_us = checked->begin_us,
        .devices_least = checked->devices_least,
        .array_size = checked->array_size,
        .at_most = checked->at_most,
    };
    if (!text)
        err_set(&failed, ERR_NOMEM, "out of memory for a job");
    else if (digest_sha256(body, size, digest, &failed) == 0)
        store_job_insert(call->app->store, &job, answer_made, call, &failed);
    json_decref(spec);
    if (failed.code)
        call_fail(call, &failed);
}

/* Refuses a job whose asker may not choose its planner. Only an administrator may choose one: it is a program
 * on the scheduler's host, and a slow one delays everybody's queue. check_spec refuses a planner that is not
 * a string. */
static int check_planner(struct call *call)
{
    json_t *placement = json_object_get(call->body, "placement");
    struct err err = {0};
    if (!json_is_string(json_object_get(placement, "planner")) ||
        access_admin(&call->principal, "placement.planner: only an administrator may choose it", &err) == 0)
        return 0;
    call_fail(call, &err);
    return -1;
}

static void submit_new(struct call *call)
{
    if (check_planner(call) == 0)
        check_spec(call->app->submits, &call->principal, call->body, CHECK_SUBMIT, insert_checked, call);
}

/* Answers with the job that the same request made before, or submits a new one if there is none. */
static void answer_repeated(void *arg, const struct err *err, const struct store_job_made *made)
{
    if (err && err->code == ERR_NOT_FOUND)
        submit_new(arg);
    else
        answer_made(arg, err, made);
}

/* Submits a job. If a request is repeated (same Idempotency-Key), it is answered with the job that it made
 * before, without a check: a check now might refuse the request, for example because a file was removed,
 * although the job exists. */
void jobs_submit(struct call *call)
{
    const char *key;
    struct err err = {0};
    uint8_t digest[DIGEST_SIZE];
    size_t size;
    if (call_key(call, &key) < 0)
        return;
    const char *body = httpd_request_body(call->request, &size);
    if (!key)
        submit_new(call);
    else if (digest_sha256(body, size, digest, &err) < 0 ||
             store_job_find(call->app->store, &call->principal, key, digest, answer_repeated, call, &err) < 0)
        call_fail(call, &err);
}

static void answer_checked(void *arg, const struct err *err, struct checked *checked, json_t *more)
{
    struct call *call = arg;
    if (err) {
        answer_refusal(call, err, more);
        return;
    }
    json_t *answer = json_copy(checked->answer);
    if (answer) {
        json_object_set(answer, "data", checked->data);
        json_object_set_new(answer, "steps", json_integer(checked->steps));
    }
    call_json(call, 200, answer, NULL);
}

void jobs_validate(struct call *call)
{
    int64_t programs, inputs;
    struct err err = {0};
    if (call_query_i64(call, "programs", 0, 1, 0, &programs, &err) < 0 ||
        call_query_i64(call, "inputs", 0, 1, 0, &inputs, &err) < 0)
        call_fail(call, &err);
    else if (check_planner(call) == 0)
        check_spec(call->app->submits, &call->principal, call->body,
                   inputs     ? CHECK_INPUTS
                   : programs ? CHECK_PROGRAM
                              : CHECK_PLAN,
                   answer_checked, call);
}
