/* GET /v1/jobs/{id}/lanes: the timeline of a step, predicted beside measured. */
#include "api/jobs/jobs_private.h"

#include "api/request/route.h"
#include "api/request/wait.h"
#include "program/codec.h"
#include "program/trace.h"
#include "show/lanes.h"
#include "store/jobs.h"

enum { LANES_PX = 1600 };

struct lanes_work {
    struct lanes_input input;
    json_t *found; /* as the store answers */
    json_t *answer;
};

static int lanes_work(void *arg, struct err *err)
{
    struct lanes_work *work = arg;
    struct plan *plan = plan_from_json(json_object_get(work->found, "plan"), err);
    const char *timeline = json_string_value(json_object_get(work->found, "timeline"));
    struct trace predicted, measured;
    int rc = plan ? 0 : -1;
    size_t index;
    json_t *part;
    trace_init(&predicted, 0);
    trace_init(&measured, 0);
    if (timeline && rc == 0)
        rc = trace_unpack(timeline, &predicted, err);
    json_array_foreach (json_object_get(work->found, "parts"), index, part)
        if (rc == 0)
            rc = trace_from_json(part, &measured, err);
    if (rc == 0) {
        work->input.plan = plan;
        work->input.predicted = timeline ? &predicted : NULL;
        work->input.measured = &measured;
        work->answer = lanes_to_json(&work->input, err);
    }
    if (work->answer)
        json_object_set(work->answer, "run", json_object_get(work->found, "run"));
    trace_fini(&predicted);
    trace_fini(&measured);
    plan_destroy(plan);
    return work->answer ? 0 : -1;
}

static int lanes_take(struct call *call, struct lanes_input *input, struct err *err)
{
    int64_t px, first, ranks;
    if (call_query_i64(call, "step", 0, UINT32_MAX, -1, &input->step, err) < 0 ||
        call_query_i64(call, "from", 0, INT64_MAX, 0, &input->from_ns, err) < 0 ||
        call_query_i64(call, "to", 1, INT64_MAX, 0, &input->to_ns, err) < 0 ||
        call_query_i64(call, "px", 1, LANES_PX_MAX, LANES_PX, &px, err) < 0 ||
        call_query_i64(call, "first_rank", 0, UINT32_MAX, 0, &first, err) < 0 ||
        call_query_i64(call, "ranks", 1, UINT32_MAX, 0, &ranks, err) < 0)
        return -1;
    input->px = (uint32_t)px;
    input->first_rank = (uint32_t)first;
    input->ranks = (uint32_t)ranks;
    if (input->to_ns && input->to_ns <= input->from_ns)
        return err_set(err, ERR_INVALID, "to: it is not behind from");
    if (!input->to_ns && input->from_ns)
        return err_set(err, ERR_INVALID, "from: it needs a `to`");
    return 0;
}

void jobs_lanes(struct call *call)
{
    struct app *app = call->app;
    struct wait wait = wait_of(app);
    struct lanes_work work = {0};
    struct err err = {0};
    int64_t id;
    if (job_visible(call, &id) < 0)
        return;
    int rc = lanes_take(call, &work.input, &err);
    if (rc == 0)
        rc = wait_end(&wait, store_job_lanes(app->store, id, wait_doc, &wait, &err), &err);
    work.found = wait.doc;
    if (rc == 0)
        rc = wait_work(app, app->pool, lanes_work, &work, &err);
    json_decref(wait.doc);
    if (rc == 0)
        call_json(call, 200, work.answer, NULL);
    else
        call_fail(call, &err);
}
