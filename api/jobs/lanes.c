/* GET /v1/jobs/{id}/lanes: the timeline of a step, predicted beside measured. */
#include "api/jobs/jobs_private.h"

#include "api/request/route.h"
#include "program/codec.h"
#include "program/trace.h"
#include "show/lanes.h"
#include "store/jobs.h"

#include <stdlib.h>

enum { LANES_PX = 1600 };

struct lanes_task {
    struct pool_task task; /* must come first: a pointer to the task is cast to this struct */
    struct call *call;
    struct lanes_input input;
    json_t *found, *answer; /* found: a copy for the pool thread */
    struct err err;
};

static void lanes_free(struct lanes_task *lanes)
{
    json_decref(lanes->found);
    json_decref(lanes->answer);
    free(lanes);
}

static void lanes_work(struct pool_task *task)
{
    struct lanes_task *lanes = (struct lanes_task *)task;
    struct plan *plan = plan_from_json(json_object_get(lanes->found, "plan"), &lanes->err);
    const char *timeline = json_string_value(json_object_get(lanes->found, "timeline"));
    struct trace predicted, measured;
    size_t index;
    json_t *part;
    trace_init(&predicted, 0);
    trace_init(&measured, 0);
    if (timeline && !lanes->err.code)
        trace_unpack(timeline, &predicted, &lanes->err);
    json_array_foreach (json_object_get(lanes->found, "parts"), index, part)
        if (!lanes->err.code)
            trace_from_json(part, &measured, &lanes->err);
    if (plan && !lanes->err.code) {
        lanes->input.plan = plan;
        lanes->input.predicted = timeline ? &predicted : NULL;
        lanes->input.measured = &measured;
        lanes->answer = lanes_to_json(&lanes->input, &lanes->err);
    }
    if (lanes->answer)
        json_object_set(lanes->answer, "run", json_object_get(lanes->found, "run"));
    trace_fini(&predicted);
    trace_fini(&measured);
    plan_destroy(plan);
}

static void lanes_done(struct pool_task *task)
{
    struct lanes_task *lanes = (struct lanes_task *)task;
    pool_ran(task, &lanes->err);
    if (lanes->answer)
        call_json(lanes->call, 200, json_incref(lanes->answer), NULL);
    else
        call_fail(lanes->call, &lanes->err);
    lanes_free(lanes);
}

static void lanes_found(void *arg, const struct err *err, json_t *doc)
{
    struct lanes_task *lanes = arg;
    if (err)
        lanes->err = *err;
    else
        lanes->found = json_incref(doc);
    lanes->task.work = lanes_work;
    lanes->task.done = lanes_done;
    if (lanes->err.code || pool_run(lanes->call->app->pool, &lanes->task, &lanes->err) < 0) {
        call_fail(lanes->call, &lanes->err);
        lanes_free(lanes);
    }
}

static void lanes_begin(struct call *call, int64_t id)
{
    struct err err = {0};
    int64_t px = LANES_PX, first = 0, ranks = 0;
    struct lanes_task *lanes = calloc(1, sizeof(*lanes));
    if (!lanes) {
        err_set(&err, ERR_NOMEM, "out of memory for lanes");
    } else if (call_query_i64(call, "step", 0, UINT32_MAX, -1, &lanes->input.step, &err) == 0 &&
               call_query_i64(call, "from", 0, INT64_MAX, 0, &lanes->input.from_ns, &err) == 0 &&
               call_query_i64(call, "to", 1, INT64_MAX, 0, &lanes->input.to_ns, &err) == 0 &&
               call_query_i64(call, "px", 1, LANES_PX_MAX, LANES_PX, &px, &err) == 0 &&
               call_query_i64(call, "first_rank", 0, UINT32_MAX, 0, &first, &err) == 0 &&
               call_query_i64(call, "ranks", 1, UINT32_MAX, 0, &ranks, &err) == 0) {
        lanes->call = call;
        lanes->input.px = (uint32_t)px;
        lanes->input.first_rank = (uint32_t)first;
        lanes->input.ranks = (uint32_t)ranks;
        if (lanes->input.to_ns && lanes->input.to_ns <= lanes->input.from_ns)
            err_set(&err, ERR_INVALID, "to: it is not behind from");
        else if (!lanes->input.to_ns && lanes->input.from_ns)
            err_set(&err, ERR_INVALID, "from: it needs a `to`");
        else
            store_job_lanes(call->app->store, id, lanes_found, lanes, &err);
    }
    if (err.code) {
        call_fail(call, &err);
        free(lanes);
    }
}

void jobs_lanes(struct call *call)
{
    job_part_read(call, lanes_begin);
}
