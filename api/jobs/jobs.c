/* Routes of jobs: lists, one job, commands, metrics, logs, plan, runs, trace, and why a job waits. */
#include "api/jobs/jobs_private.h"
#include "api/request/route.h"
#include "api/request/wait.h"

#include "api/people/access.h"

#include "common/clock.h"
#include "common/json.h"
#include "model/job/spec.h"
#include "program/codec.h"
#include "program/trace.h"
#include "store/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PAGE_DEFAULT = 50,
    RUNS_PAGE_DEFAULT = 100,
    METRICS_PAGE_MAX = 10000,
    METRICS_PAGE_DEFAULT = 1000,
    BUCKETS_MAX = 10000,
    LOGS_PAGE_MAX = 1000
};

/* ---- lists ---- */

/* Reads states, such as "queued,running". */
static int jobs_take_states(const char *text, unsigned *states, struct err *err)
{
    char name[40];
    for (const char *at = text ? text : ""; text && at; at = strchr(at, ',') ? strchr(at, ',') + 1 : NULL) {
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(at, ","), at);
        int state = state_from_name(&job_machine, name);
        if (state < 0)
            return err_set(err, ERR_INVALID, "state: \"%s\" is no state of a job", name);
        *states |= 1u << state;
    }
    return 0;
}

/* Whether a label of a query may exist: the rules of a specification's labels, as openapi.yaml says them. */
static bool label_good(const char *text, size_t key, size_t size)
{
    static const char in_keys[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._/-";
    size_t characters = 0;
    for (size_t i = key + 1; i < size; i++) {
        const unsigned char c = (unsigned char)text[i];
        if (c < 0x20 || c == 0x7f)
            return false;
        characters += (c & 0xc0) != 0x80;
    }
    return key > 0 && key < SPEC_LABEL_KEY_BYTES && strspn(text, in_keys) >= key &&
           characters < SPEC_LABEL_VALUE_BYTES;
}

/* Reads labels "key=value,key" as {key: value, key: null}. */
static int jobs_take_labels(const char *text, json_t *labels, struct err *err)
{
    while (text) {
        size_t size = strcspn(text, ","), key = strcspn(text, "=,");
        if (!label_good(text, key, size) || json_object_size(labels) == STORE_LABELS_MAX ||
            json_object_getn(labels, text, key))
            return err_set(err, ERR_INVALID,
                           "label: \"%.40s\" is not KEY or KEY=VALUE, each once, at most %d", text,
                           STORE_LABELS_MAX);
        json_object_setn_new(labels, text, key,
                             text[key] == '=' ? json_stringn(text + key + 1, size - key - 1) : json_null());
        text = text[size] ? text + size + 1 : NULL;
    }
    return 0;
}

void jobs_list(struct call *call)
{
    struct err err = {0};
    struct call_page page;
    if (call_page(call, PAGE_DEFAULT, STORE_PAGE_MAX, 0, &page) < 0)
        return;
    int64_t array = 0;
    json_t *labels = call_query(call, "label") ? json_object() : NULL;
    struct store_job_filter filter = {.limit = page.limit,
                                      .before_id = page.after,
                                      .owner = call_query(call, "owner"),
                                      .group = call_query(call, "group"),
                                      .labels = labels};
    if (call_query_i64(call, "array", 1, INT64_MAX, 0, &array, &err) == 0)
        filter.array = array;
    if (err.code || jobs_take_states(call_query(call, "state"), &filter.states, &err) < 0 ||
        jobs_take_labels(call_query(call, "label"), labels, &err) < 0 ||
        call_query_time(call, "from", &filter.from_us, &err) < 0 ||
        call_query_time(call, "to", &filter.to_us, &err) < 0 ||
        store_job_page(call->app->store, &call->principal, &filter, call_answer_page, call, &err) < 0)
        call_fail(call, &err);
    json_decref(labels);
}

/* ---- one job ---- */

void jobs_get(struct call *call)
{
    int64_t id;
    struct err err = {0};
    if (call_id(call, 0, "job", &id) == 0 &&
        store_job_get(call->app->store, &call->principal, id, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

static void command(struct call *call, enum job_event event, int64_t more_steps)
{
    int64_t id;
    struct err err = {0};
    if (call_id(call, 0, "job", &id) == 0 && store_job_command(call->app->store, &call->principal, id, event,
                                                               more_steps, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

/* Carries out a command without arguments, whose body is empty or an empty object. */
static void plain_command(struct call *call, enum job_event event)
{
    struct err err = {0};
    struct json_reader reader;
    if (call->body) {
        call_reader(call, &reader, &err);
        if (jr_finish(&reader) < 0) {
            call_refuse(call, &err);
            return;
        }
    }
    command(call, event, 0);
}

void jobs_cancel(struct call *call)
{
    plain_command(call, JOB_EVENT_CANCEL);
}

void jobs_extend(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    int64_t id, seconds = 0;
    call_reader(call, &reader, &err);
    jr_i64(&reader, "seconds", JR_REQUIRED, 1, 366 * 86400, &seconds);
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (call_id(call, 0, "job", &id) == 0 &&
             store_job_extend(call->app->store, &call->principal, id, seconds, call_answer_changed, call,
                              &err) < 0)
        call_fail(call, &err);
}

void jobs_hold(struct call *call)
{
    plain_command(call, JOB_EVENT_HOLD);
}

void jobs_release(struct call *call)
{
    plain_command(call, JOB_EVENT_RELEASE);
}

void jobs_resume(struct call *call)
{
    struct err err = {0};
    struct json_reader reader;
    int64_t steps = 0;
    if (call->body) {
        call_reader(call, &reader, &err);
        jr_i64(&reader, "steps", JR_OPTIONAL, 1, 1000000000, &steps);
        if (jr_finish(&reader) < 0) {
            call_refuse(call, &err);
            return;
        }
    }
    command(call, JOB_EVENT_RESUME, steps);
}

/* Checks the changes in the body of PATCH /v1/jobs/{id}, and adds `begin` in microseconds. */
static json_t *take_changes(struct call *call, struct err *err)
{
    struct json_reader reader;
    int64_t priority = 0, begin_us = 0;
    uint32_t at_most;
    const char *begin = NULL;
    call_reader(call, &reader, err);
    const bool given = jr_i64(&reader, "priority", JR_OPTIONAL, -100, 100, &priority) > 0;
    jr_u32(&reader, "at_most", JR_OPTIONAL, 1, SPEC_ARRAY_MAX, &at_most);
    call_take_time(&reader, "begin", &begin, &begin_us);
    if (json_is_null(json_object_get(call->body, "priority")))
        jr_fail(&reader, "priority", "must be a whole number from -100 to 100");
    if (jr_finish(&reader) < 0 || (given && access_priority(&call->principal, (int32_t)priority, err) < 0))
        return NULL;
    if (json_object_size(call->body) == 0) {
        err_set(err, ERR_INVALID, "the body changes nothing");
        return NULL;
    }
    json_t *changes = json_copy(call->body);
    if (begin)
        json_object_set_new(changes, "begin_us", json_integer(begin_us));
    return changes;
}

void jobs_patch(struct call *call)
{
    int64_t id;
    struct err err = {0};
    json_t *changes = take_changes(call, &err);
    if (!changes)
        call_refuse(call, &err);
    else if (call_id(call, 0, "job", &id) == 0 &&
             store_job_change(call->app->store, &call->principal, id, changes, call_answer_changed, call,
                              &err) < 0)
        call_fail(call, &err);
    json_decref(changes);
}

void jobs_share(struct call *call)
{
    int64_t id;
    struct err err = {0};
    struct json_reader reader;
    struct sharing sharing = {0};
    call_reader(call, &reader, &err);
    call_sharing(&reader, VISIBLE_MINE, &sharing);
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (call_id(call, 0, "job", &id) == 0 &&
             store_job_share(call->app->store, &call->principal, id, &sharing, call_answer_changed, call,
                             &err) < 0)
        call_fail(call, &err);
}

void jobs_remove(struct call *call)
{
    int64_t id;
    struct err err = {0};
    if (call_id(call, 0, "job", &id) == 0 &&
        store_job_remove(call->app->store, &call->principal, id, call_answer_changed, call, &err) < 0)
        call_fail(call, &err);
}

/* ---- parts of a job ---- */

int job_visible(struct call *call, int64_t *id)
{
    struct wait wait = wait_of(call->app);
    struct err err = {0};
    if (call_id(call, 0, "job", id) < 0)
        return -1;
    const int rc =
        wait_end(&wait, store_job_get(call->app->store, &call->principal, *id, wait_doc, &wait, &err), &err);
    json_decref(wait.doc);
    if (rc < 0)
        call_fail(call, &err);
    return rc;
}

static void buckets_begin(struct call *call, int64_t id, int64_t buckets)
{
    struct err err = {0};
    int64_t steps[2];
    const char *kind = call_query(call, "kind");
    if (call_query(call, "limit") || call_query(call, "after"))
        err_set(&err, ERR_INVALID,
                "buckets: they come whole, without limit and after; from and to choose steps");
    else if (call_query_i64(call, "from", 0, INT64_MAX, 0, &steps[0], &err) == 0 &&
             call_query_i64(call, "to", 0, INT64_MAX, INT64_MAX, &steps[1], &err) == 0)
        store_job_buckets(call->app->store, id, kind ? kind : "step", steps, (unsigned)buckets,
                          call_answer_doc, call, &err);
    if (err.code)
        call_fail(call, &err);
}

void jobs_metrics(struct call *call)
{
    int64_t id, buckets;
    static const char *const kinds[] = {"all", "step", "eval", "sample", "ranks"};
    struct err err = {0};
    struct call_page page;
    const char *kind = call_query(call, "kind");
    bool known = !kind;
    if (job_visible(call, &id) < 0)
        return;
    for (size_t i = 0; kind && i < sizeof(kinds) / sizeof(kinds[0]); i++)
        known |= strcmp(kind, kinds[i]) == 0;
    if (!known)
        err_set(&err, ERR_INVALID, "kind: \"%.40s\" is none of all, step, eval, sample, ranks", kind);
    else if (call_query_i64(call, "buckets", 1, BUCKETS_MAX, 0, &buckets, &err) == 0 && buckets > 0) {
        buckets_begin(call, id, buckets);
        return;
    } else if (!err.code && (call_query(call, "from") || call_query(call, "to")))
        err_set(&err, ERR_INVALID, "from and to: they choose the steps of buckets; `after` is for lines");
    else if (!err.code && call_page(call, METRICS_PAGE_DEFAULT, METRICS_PAGE_MAX, -1, &page) == 0)
        store_job_metrics(call->app->store, id, kind ? kind : "all", page.after, page.limit, call_answer_page,
                          call, &err);
    if (err.code)
        call_fail(call, &err);
}

static void logs_found(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err) {
        call_fail(call, err);
        return;
    }
    json_t *lines = json_array();
    size_t index;
    json_t *event;
    json_array_foreach (json_object_get(doc, "events"), index, event) {
        json_t *line = json_copy(json_object_get(event, "body"));
        if (!json_is_object(line)) {
            json_decref(line);
            line = json_object();
        }
        json_object_set(line, "at", json_object_get(event, "at"));
        json_array_append_new(lines, line);
    }
    json_t *page =
        json_pack("{s:o, s:O, s:o}", "lines", lines, "next", json_object_get(doc, "next"), "last",
                  json_sprintf("%lld", (long long)json_integer_value(json_object_get(doc, "last"))));
    call_answer_page(call, NULL, page);
    json_decref(page);
}

void jobs_logs(struct call *call)
{
    int64_t id;
    struct err err = {0};
    struct call_page page;
    if (job_visible(call, &id) == 0 && call_page(call, LOGS_PAGE_MAX, LOGS_PAGE_MAX, 0, &page) == 0 &&
        store_event_list(call->app->store, id, "log", page.after, page.limit, logs_found, call, &err) < 0)
        call_fail(call, &err);
}

void jobs_plan(struct call *call)
{
    int64_t id;
    struct err err = {0};
    if (job_visible(call, &id) == 0 && store_job_plan(call->app->store, id, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

void jobs_runs(struct call *call)
{
    int64_t id;
    struct err err = {0};
    struct call_page page;
    if (job_visible(call, &id) == 0 && call_page(call, RUNS_PAGE_DEFAULT, STORE_PAGE_MAX, 0, &page) == 0 &&
        store_job_runs(call->app->store, id, page.after, page.limit, call_answer_page, call, &err) < 0)
        call_fail(call, &err);
}

/* ---- the trace, as Chrome's format ---- */

struct trace_work {
    json_t *plan, *parts; /* as the store answers them */
    json_t *answer;
};

static int trace_work(void *arg, struct err *err)
{
    struct trace_work *work = arg;
    struct plan *plan = plan_from_json(json_object_get(work->plan, "plan"), err);
    struct trace trace;
    int rc = plan ? 0 : -1;
    size_t index;
    json_t *part;
    trace_init(&trace, 0);
    json_array_foreach (json_object_get(work->parts, "parts"), index, part)
        if (rc == 0)
            rc = trace_from_json(json_object_get(part, "doc"), &trace, err);
    if (rc == 0 && !(work->answer = trace_to_chrome(&trace, plan, "measured", 0, err)))
        rc = -1;
    trace_fini(&trace);
    plan_destroy(plan);
    return rc;
}

void jobs_trace(struct call *call)
{
    struct app *app = call->app;
    struct wait plan = wait_of(app), parts = wait_of(app);
    struct trace_work work = {0};
    struct err err = {0};
    int64_t id;
    if (job_visible(call, &id) < 0)
        return;
    int rc = wait_end(&plan, store_job_plan(app->store, id, wait_doc, &plan, &err), &err);
    if (rc == 0)
        rc = wait_end(&parts, store_job_trace(app->store, id, wait_doc, &parts, &err), &err);
    work.plan = plan.doc;
    work.parts = parts.doc;
    if (rc == 0)
        rc = wait_work(app, app->pool, trace_work, &work, &err);
    json_decref(plan.doc);
    json_decref(parts.doc);
    if (rc == 0)
        call_json(call, 200, work.answer, NULL);
    else
        call_fail(call, &err);
}
