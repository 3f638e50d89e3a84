/* Answers POST /v1/jobs (jobs_submit) and POST /v1/jobs:validate (jobs_validate). Both are read from their
 * first line to their last; they wait where they ask the store (api/request/wait.h). What a specification
 * must pass before its job is made, and the plan, are check_spec's (api/check/). */
#include "api/request/route.h"

#include "api/check/check.h"
#include "api/jobs/fetches.h"
#include "api/people/access.h"
#include "api/request/wait.h"
#include "common/clock.h"
#include "common/digest.h"
#include "store/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct made_wait {
    struct wait wait; /* must come first, since wait_done takes its address */
    struct store_job_made made;
};

static void job_made(void *arg, const struct err *err, const struct store_job_made *made)
{
    if (!err)
        ((struct made_wait *)arg)->made = *made;
    wait_done(arg, err);
}

static int planner_may_be_chosen(struct call *call, struct err *err);
static int urgency_may_be_chosen(struct call *call, const struct checked *checked, struct err *err);
static int job_insert(struct call *call, const struct checked *checked, const char *key,
                      const uint8_t digest[DIGEST_SIZE], struct made_wait *wait, struct err *err);
static void answer_made(struct call *call, const struct store_job_made *made, json_t *warnings);
static void submit_answer_refusal(struct call *call, const struct err *err, json_t *more);

void jobs_submit(struct call *call)
{
    struct app *app = call->app;
    struct made_wait found = {.wait = wait_of(app)}, inserted = {.wait = wait_of(app)};
    struct checked *checked;
    struct err err = {0};
    uint8_t digest[DIGEST_SIZE];
    const char *key;
    json_t *more;
    size_t size;
    const char *body = httpd_request_body(call->request, &size);
    if (call_key(call, &key) < 0)
        return;
    if (digest_sha256(body, size, digest, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    /* A repeated request is answered with the job that it made before, without a check: a check now might
     * refuse it, for example because a file was removed, although the job exists. */
    if (key && wait_end(&found.wait,
                        store_job_find(app->store, &call->principal, key, digest, job_made, &found, &err),
                        &err) == 0) {
        answer_made(call, &found.made, NULL);
        return;
    }
    if ((key && err.code != ERR_NOT_FOUND) || planner_may_be_chosen(call, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (check_spec(app->submits, &call->principal, call->body, CHECK_SUBMIT, &checked, &more, &err) < 0) {
        submit_answer_refusal(call, &err, more);
        return;
    }
    if (urgency_may_be_chosen(call, checked, &err) < 0)
        call_fail(call, &err);
    else if (job_insert(call, checked, key, digest, &inserted, &err) == 0)
        answer_made(call, &inserted.made, checked->warnings);
    else if (err.code == ERR_INVALID) /* because of its account or a limit */
        call_refuse(call, &err);
    else
        call_fail(call, &err);
    checked_release(checked);
}

void jobs_validate(struct call *call)
{
    int64_t programs, inputs;
    struct err err = {0};
    struct checked *checked;
    json_t *more;
    if (call_query_i64(call, "programs", 0, 1, 0, &programs, &err) < 0 ||
        call_query_i64(call, "inputs", 0, 1, 0, &inputs, &err) < 0 || planner_may_be_chosen(call, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    const enum check_depth depth = inputs ? CHECK_INPUTS : programs ? CHECK_PROGRAM : CHECK_PLAN;
    if (check_spec(call->app->submits, &call->principal, call->body, depth, &checked, &more, &err) < 0) {
        submit_answer_refusal(call, &err, more);
        return;
    }
    json_t *answer = json_copy(checked->answer);
    if (answer) {
        json_object_set(answer, "data", checked->data);
        json_object_set_new(answer, "steps", json_integer(checked->steps));
        json_t *warnings = json_copy(json_object_get(answer, "warnings"));
        warnings = warnings ? warnings : json_array();
        json_array_extend(warnings, checked->warnings);
        json_object_set_new(answer, "warnings", warnings);
    }
    checked_release(checked);
    call_json(call, 200, answer, NULL);
}

/* Only an administrator may choose the planner: it is a program on the scheduler's host, and a slow one
 * delays everybody's queue. check_spec refuses a planner that is not a string. */
static int planner_may_be_chosen(struct call *call, struct err *err)
{
    const json_t *placement = json_object_get(call->body, "placement");
    return json_is_string(json_object_get(placement, "planner"))
               ? access_admin(&call->principal, "placement.planner: only an administrator may choose it", err)
               : 0;
}

static int urgency_may_be_chosen(struct call *call, const struct checked *checked, struct err *err)
{
    if (access_priority(&call->principal, checked->priority, err) < 0)
        return -1;
    return checked->service == SPEC_SERVICE_URGENT
               ? access_admin(&call->principal, "service: only an administrator may make a job urgent", err)
               : 0;
}

static int job_insert(struct call *call, const struct checked *checked, const char *key,
                      const uint8_t digest[DIGEST_SIZE], struct made_wait *wait, struct err *err)
{
    /* Jobs that share a check may have different names. */
    const json_t *given = json_object_get(call->body, "name"),
                 *name = given ? given : json_object_get(checked->spec, "name");
    char *name_text = json_dumps(name, JSON_COMPACT | JSON_ENCODE_ANY), *spec_text = NULL;
    if (!name_text || asprintf(&spec_text, "{\"name\":%s,%s", name_text, checked->unnamed_text + 1) < 0) {
        free(name_text);
        return err_set(err, ERR_NOMEM, "out of memory for a job");
    }
    free(name_text);
    const struct store_job_new job = {
        .owner = &call->principal,
        .name = json_string_value(name),
        .idempotency_key = key,
        .request_digest = digest,
        .spec = checked->spec,
        .inputs = checked->inputs,
        .spec_text = spec_text,
        .inputs_text = checked->inputs_text,
        .plan_class = *checked->fetch ? NULL : checked->plan_class,
        .fetch = *checked->fetch ? checked->fetch : NULL,
        .priority = checked->priority,
        .held = checked->held,
        .retries_max = checked->retries_max,
        .time_limit_ms = checked->time_limit_ms,
        .steps = checked->steps,
        .account = json_string_value(json_object_get(checked->spec, "account")),
        .service = (unsigned)checked->service,
        .begin_us = checked->begin_us,
        .devices_least = checked->devices_least,
        .array_size = checked->array_size,
        .at_most = checked->at_most,
    };
    const int called = store_job_insert(call->app->store, &job, job_made, wait, err);
    free(spec_text);
    return wait_end(&wait->wait, called, err);
}

/* 201, after the commit. */
static void answer_made(struct call *call, const struct store_job_made *made, json_t *warnings)
{
    char location[48], created[32];
    snprintf(location, sizeof(location), "/v1/jobs/%lld", (long long)made->id);
    clock_rfc3339(made->created_us, created);
    struct httpd_field fields[] = {
        {"Location", location}, {made->repeated ? "Idempotent-Replayed" : NULL, "true"}, {NULL, NULL}};
    json_t *document = json_pack("{s:I, s:s, s:s}", "id", (json_int_t)made->id, "state",
                                 state_name(&job_machine, (int)made->state), "created", created);
    if (json_array_size(warnings) > 0)
        json_object_set(document, "warnings", warnings);
    call->app->counters.submits++;
    if (made->state == JOB_HELD)
        fetches_look(call->app->job_fetches);
    call_json(call, 201, document, fields);
}

static void submit_answer_refusal(struct call *call, const struct err *err, json_t *more)
{
    if (err->code == ERR_NOFIT) {
        call_problem(call, 422, err_code_name(err->code), more, "%s", err->text);
        return;
    }
    json_decref(more);
    if (err->code == ERR_INVALID && !call->errors && (call->errors = json_array()))
        spec_errors(call->body, call->errors);
    call_refuse(call, err);
}
