/* Jobs: lists, one job, commands, metrics, logs, plan, runs, trace, and why a job waits. */
#include "api/request/route.h"

#include "common/json.h"
#include "program/codec.h"
#include "program/trace.h"
#include "store/jobs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_DEFAULT = 50, METRICS_PAGE_MAX = 10000, METRICS_PAGE_DEFAULT = 1000, LOGS_PAGE_MAX = 1000 };

/* ---- lists ---- */

void jobs_list(struct call *call)
{
    struct err err = {0};
    int64_t limit, after;
    struct store_job_filter filter = {.state = -1};
    const char *state = call_query(call, "state");
    if (call_query_i64(call, "limit", 1, STORE_PAGE_MAX, PAGE_DEFAULT, &limit, &err) < 0 ||
        call_query_i64(call, "after", 1, INT64_MAX, 0, &after, &err) < 0) {
        call_fail(call, &err);
        return;
    }
    if (state && (filter.state = state_from_name(&job_machine, state)) < 0) {
        call_problem(call, 400, "invalid", NULL, "state: \"%.40s\" is no state of a job", state);
        return;
    }
    filter.limit = (unsigned)limit;
    filter.before_id = after;
    if (store_job_page(call->app->store, &call->principal, &filter, call_answer_page, call, &err) < 0)
        call_fail(call, &err);
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

/* Commands without arguments take no body, or an empty object. */
static void plain_command(struct call *call, enum job_event event)
{
    struct err err = {0};
    struct json_reader reader;
    if (call->body) {
        jr_init(&reader, call->body, "", &err);
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
        jr_init(&reader, call->body, "", &err);
        jr_i64(&reader, "steps", JR_OPTIONAL, 1, 1000000000, &steps);
        if (jr_finish(&reader) < 0) {
            call_refuse(call, &err);
            return;
        }
    }
    command(call, JOB_EVENT_RESUME, steps);
}

void jobs_share(struct call *call)
{
    int64_t id;
    struct err err = {0};
    struct json_reader reader;
    struct sharing sharing = {0};
    jr_init(&reader, call->body, "", &err);
    call_sharing(&reader, VISIBLE_MINE, &sharing);
    if (jr_finish(&reader) < 0)
        call_refuse(call, &err);
    else if (call_id(call, 0, "job", &id) == 0 &&
             store_job_share(call->app->store, &call->principal, id, &sharing, call_answer_changed, call,
                             &err) < 0)
        call_fail(call, &err);
}

/* ---- parts of a job, read only after the job itself was found visible ---- */

struct job_part {
    void (*begin)(struct call *call, int64_t id);
    int64_t id;
};

static void job_seen(void *arg, const struct err *err, json_t *doc)
{
    (void)doc;
    struct call *call = arg;
    struct job_part *part = call->state;
    if (err)
        call_fail(call, err);
    else
        part->begin(call, part->id);
}

static void job_part_read(struct call *call, void (*begin)(struct call *call, int64_t id))
{
    int64_t id;
    struct err err = {0};
    if (call_id(call, 0, "job", &id) < 0)
        return;
    struct job_part *part = malloc(sizeof *part);
    if (!part) {
        err_set(&err, ERR_NOMEM, "out of memory");
        call_fail(call, &err);
        return;
    }
    *part = (struct job_part){begin, id};
    call->state = part;
    call->state_free = free;
    if (store_job_get(call->app->store, &call->principal, id, job_seen, call, &err) < 0)
        call_fail(call, &err);
}

static void metrics_begin(struct call *call, int64_t id)
{
    static const char *const kinds[] = {"all", "step", "eval", "sample", "ranks"};
    struct err err = {0};
    int64_t limit, after;
    const char *kind = call_query(call, "kind");
    bool known = !kind;
    for (size_t i = 0; kind && i < sizeof kinds / sizeof kinds[0]; i++)
        known |= strcmp(kind, kinds[i]) == 0;
    if (!known)
        err_set(&err, ERR_INVALID, "kind: \"%.40s\" is none of all, step, eval, sample, ranks", kind);
    else if (call_query_i64(call, "limit", 1, METRICS_PAGE_MAX, METRICS_PAGE_DEFAULT, &limit, &err) == 0 &&
             call_query_i64(call, "after", -1, INT64_MAX, -1, &after, &err) == 0)
        store_job_metrics(call->app->store, id, kind ? kind : "all", after, (unsigned)limit, call_answer_doc,
                          call, &err);
    if (err.code)
        call_fail(call, &err);
}

void jobs_metrics(struct call *call)
{
    job_part_read(call, metrics_begin);
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
    char cursor[32];
    json_array_foreach(json_object_get(doc, "events"), index, event)
    {
        json_t *line = json_copy(json_object_get(event, "body"));
        if (!json_is_object(line)) {
            json_decref(line);
            line = json_object();
        }
        json_object_set(line, "at", json_object_get(event, "at"));
        json_array_append_new(lines, line);
    }
    snprintf(cursor, sizeof cursor, "%lld", (long long)json_integer_value(json_object_get(doc, "last")));
    call_json(call, 200, json_pack("{s:o, s:s}", "lines", lines, "next", cursor), NULL);
}

static void logs_begin(struct call *call, int64_t id)
{
    struct err err = {0};
    int64_t limit, after;
    if (call_query_i64(call, "limit", 1, LOGS_PAGE_MAX, LOGS_PAGE_MAX, &limit, &err) == 0 &&
        call_query_i64(call, "after", 0, INT64_MAX, 0, &after, &err) == 0)
        store_event_list(call->app->store, id, "log", after, (unsigned)limit, logs_found, call, &err);
    if (err.code)
        call_fail(call, &err);
}

void jobs_logs(struct call *call)
{
    job_part_read(call, logs_begin);
}

static void plan_begin(struct call *call, int64_t id)
{
    struct err err = {0};
    if (store_job_plan(call->app->store, id, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

void jobs_plan(struct call *call)
{
    job_part_read(call, plan_begin);
}

static void runs_begin(struct call *call, int64_t id)
{
    struct err err = {0};
    if (store_job_runs(call->app->store, id, call_answer_doc, call, &err) < 0)
        call_fail(call, &err);
}

void jobs_runs(struct call *call)
{
    job_part_read(call, runs_begin);
}

/* ---- the trace, as Chrome's format ---- */

struct trace_parts {
    struct pool_task task; /* must come first */
    struct call *call;
    json_t *plan, *parts, *answer; /* copies for the pool thread */
    struct err err;
};

static void trace_free(struct trace_parts *parts)
{
    json_decref(parts->plan);
    json_decref(parts->parts);
    json_decref(parts->answer);
    free(parts);
}

static void trace_work(struct pool_task *task)
{
    struct trace_parts *parts = (struct trace_parts *)task;
    struct plan *plan = plan_from_json(parts->plan, &parts->err);
    struct trace trace;
    trace_init(&trace, 0);
    size_t index;
    json_t *part;
    json_array_foreach(parts->parts, index, part) if (!parts->err.code)
        trace_from_json(json_object_get(part, "doc"), &trace, &parts->err);
    if (plan && !parts->err.code)
        parts->answer = trace_to_chrome(&trace, plan, "measured", 0, &parts->err);
    trace_fini(&trace);
    plan_destroy(plan);
}

static void trace_done(struct pool_task *task)
{
    struct trace_parts *parts = (struct trace_parts *)task;
    pool_ran(task, &parts->err);
    if (parts->answer)
        call_json(parts->call, 200, json_incref(parts->answer), NULL);
    else
        call_fail(parts->call, &parts->err);
    trace_free(parts);
}

static void trace_found(void *arg, const struct err *err, json_t *doc)
{
    struct trace_parts *parts = arg;
    if (err) {
        call_fail(parts->call, err);
        trace_free(parts);
        return;
    }
    parts->parts = json_deep_copy(json_object_get(doc, "parts"));
    parts->task.work = trace_work;
    parts->task.done = trace_done;
    if (pool_run(parts->call->app->pool, &parts->task, &parts->err) < 0) {
        call_fail(parts->call, &parts->err);
        trace_free(parts);
    }
}

static void trace_plan_found(void *arg, const struct err *err, json_t *doc)
{
    struct trace_parts *parts = arg;
    if (err) {
        call_fail(parts->call, err);
        trace_free(parts);
        return;
    }
    parts->plan = json_deep_copy(json_object_get(doc, "plan"));
    int64_t id = ((struct job_part *)parts->call->state)->id;
    if (store_job_trace(parts->call->app->store, id, trace_found, parts, &parts->err) < 0) {
        call_fail(parts->call, &parts->err);
        trace_free(parts);
    }
}

static void trace_begin(struct call *call, int64_t id)
{
    struct err err = {0};
    struct trace_parts *parts = calloc(1, sizeof *parts);
    if (!parts)
        err_set(&err, ERR_NOMEM, "out of memory for a trace");
    else
        parts->call = call;
    if (!parts || store_job_plan(call->app->store, id, trace_plan_found, parts, &err) < 0) {
        free(parts);
        call_fail(call, &err);
    }
}

void jobs_trace(struct call *call)
{
    job_part_read(call, trace_begin);
}

/* ---- why it waits, and the queue ---- */

static void why_found(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err) {
        call_fail(call, err);
        return;
    }
    json_t *why = json_object_get(doc, "why");
    const json_t *planned = json_object_get(json_object_get(doc, "run"), "plan_answer");
    const char *planner = json_string_value(json_object_get(json_object_get(planned, "planner"), "why"));
    const char *state = json_string_value(json_object_get(doc, "state"));
    char words[1200]; /* a running job's text also says why an external planner's plan was not used */
    snprintf(words, sizeof words, "the job is %s%s%.1000s", state ? state : "unknown", planner ? ". " : "",
             planner ? planner : "");
    call_json(call, 200,
              json_pack("{s:O, s:O, s:o, s:O?, s:O?}", "id", json_object_get(doc, "id"), "state",
                        json_object_get(doc, "state"), "why",
                        json_is_string(why) ? json_incref(why) : json_string(words), "code",
                        json_object_get(doc, "code"), "run", json_object_get(doc, "run")),
              NULL);
}

void jobs_why(struct call *call)
{
    int64_t id;
    struct err err = {0};
    if (call_id(call, 0, "job", &id) == 0 &&
        store_job_get(call->app->store, &call->principal, id, why_found, call, &err) < 0)
        call_fail(call, &err);
}

static void queue_counted(void *arg, const struct err *err, json_t *doc)
{
    struct call *call = arg;
    if (err)
        call_fail(call, err);
    else
        call_json(call, 200, json_pack("{s:O}", "jobs", doc), NULL);
}

void queue_get(struct call *call)
{
    struct err err = {0};
    if (store_job_counts(call->app->store, queue_counted, call, &err) < 0)
        call_fail(call, &err);
}
