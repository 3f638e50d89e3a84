/* Answers POST /v1/plans and /v1/plans:cluster. */
#include "api/jobs/plans.h"

#include "api/check/check.h"
#include "api/request/route.h"
#include "api/request/wait.h"
#include "common/clock.h"
#include "common/json.h"
#include "planner/answer/plan.h"
#include "planner/given/inputs.h"

#include <stdlib.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

enum {
    /* evaluations of a brief search: a tenth of a full search's. With 8 devices they take about 50 ms */
    BRIEF_EVALUATIONS = 2000,
    QUESTIONS_MAX = 64,
    NICE = 10,
};

/* A question under way; lies on the stack of its request. */
struct plan_question {
    LIST_ENTRY(plan_question) link;
    int64_t token;
    bool brief;
    bool file;         /* the answer is the completed cluster file, not a plan */
    atomic_bool stale; /* a newer question of the same token was asked */
    json_t *cluster;   /* the cluster in the request, or NULL: the present devices; borrowed */
    json_t *inputs;    /* the planner's inputs; this question's own document, whose members are shared */
    json_t *answer;
};

LIST_HEAD(plan_questions, plan_question);

struct plans {
    struct app *app;
    struct pool *brief, *full;
    struct plan_questions open;
    unsigned count;
};

int plans_create(struct app *app, struct plans **plans, struct err *err)
{
    struct plans *made = calloc(1, sizeof(*made));
    if (!made)
        return err_set(err, ERR_NOMEM, "out of memory for plans");
    *plans = made;
    made->app = app;
    made->brief = pool_create(app->base, 1, QUESTIONS_MAX, err);
    made->full = made->brief ? pool_create(app->base, 1, QUESTIONS_MAX, err) : NULL;
    return made->full ? 0 : -1;
}

void plans_stop(struct plans *plans)
{
    if (plans && plans->brief)
        pool_stop(plans->brief);
    if (plans && plans->full)
        pool_stop(plans->full);
}

void plans_destroy(struct plans *plans)
{
    if (!plans)
        return;
    pool_destroy(plans->brief);
    pool_destroy(plans->full);
    free(plans);
}

/* ---- on a thread of the plans' own pools ---- */

static int plans_search(struct plan_question *question, struct plan_inputs *inputs, struct err *err)
{
    struct plan_answer *found = NULL;
    const struct plan_options options = {.programs = !question->brief,
                                         .brief = question->brief,
                                         .evaluations = question->brief ? BRIEF_EVALUATIONS : 0,
                                         /* On present devices, only plans are searched that their workers can
                                          * run. */
                                         .runnable_only = !question->cluster};
    uint64_t began_ns = clock_mono_ns();
    if (plan_search(&inputs->workload, inputs->cluster, &options, &found, err) < 0)
        return -1;
    found->plan_s = (double)(clock_mono_ns() - began_ns) * 1e-9;
    question->answer = answer_to_json(found, err);
    if (question->answer) {
        json_object_set_new(question->answer, "words", json_string(found->words ? found->words : ""));
        json_object_set_new(question->answer, "brief", json_boolean(question->brief));
    }
    plan_answer_destroy(found);
    return question->answer ? 0 : -1;
}

static int question_work(void *arg, struct err *err)
{
    struct plan_question *question = arg;
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    if (question->stale)
        return 0;
    if (question->cluster && (plan_inputs_fill(question->inputs, question->cluster, err) < 0 ||
                              plan_inputs_cluster(question->inputs, question->cluster, err) < 0))
        return err_wrap(err, "cluster");
    if (question->file) {
        question->answer = question->cluster ? json_incref(question->cluster)
                                             : plan_inputs_cluster_file(question->inputs, err);
        return question->answer ? 0 : -1;
    }
    if (json_array_size(json_object_get(question->inputs, "devices")) == 0)
        return err_set(err, ERR_NOFIT,
                       "there is no device to plan for: no agent has joined; `cluster` may describe others");
    struct plan_inputs inputs = {0};
    int rc = plan_inputs_read(question->inputs, &inputs, err);
    if (rc == 0)
        rc = plans_search(question, &inputs, err);
    plan_inputs_fini(&inputs);
    return rc;
}

/* ---- on the loop's thread ---- */

/* Gathers the planner's inputs, and has one of the plans' threads answer. */
static int question_answer(struct call *call, struct plan_question *question, json_t *spec, struct err *err)
{
    struct plans *plans = call->app->plans;
    struct checked *checked;
    json_t *more;
    if (check_spec(call->app->submits, &call->principal, spec, CHECK_GATHER, &checked, &more, err) < 0) {
        json_decref(more);
        return err->code == ERR_INVALID ? err_set(err, ERR_INVALID, "spec.%s", err->text) : -1;
    }
    question->inputs = json_copy(json_object_get(checked->answer, "inputs"));
    checked_release(checked);
    if (!question->inputs)
        return err_set(err, ERR_NOMEM, "out of memory for a plan's inputs");
    if (question->stale)
        return 0;
    return wait_work(call->app, question->brief || question->file ? plans->brief : plans->full, question_work,
                     question, err);
}

/* Marks this token's earlier questions as stale; each of them then ends by itself with that answer. */
static void supersede(struct plans *plans, const struct plan_question *newest)
{
    struct plan_question *question;
    LIST_FOREACH (question, &plans->open, link)
        if (question != newest && !question->file && question->token == newest->token &&
            (newest->brief || !question->brief))
            question->stale = true;
}

static void plans_answer(struct call *call, bool file)
{
    struct plans *plans = call->app->plans;
    struct plan_question question = {.token = call->principal.token, .file = file};
    struct err err = {0};
    struct json_reader reader;
    const json_t *spec = NULL, *cluster = NULL;
    call_reader(call, &reader, &err);
    jr_object(&reader, "spec", JR_REQUIRED, &spec);
    jr_object(&reader, "cluster", JR_OPTIONAL, &cluster);
    if (!file)
        jr_bool(&reader, "brief", JR_OPTIONAL, &question.brief);
    if (jr_finish(&reader) < 0) {
        call_refuse(call, &err);
        return;
    }
    if (plans->count == QUESTIONS_MAX) {
        call_problem(call, 503, "busy", NULL, "the server has %d plans in work, its limit", QUESTIONS_MAX);
        return;
    }
    question.cluster = (json_t *)(uintptr_t)cluster;
    LIST_INSERT_HEAD(&plans->open, &question, link);
    plans->count++;
    if (!file)
        supersede(plans, &question);
    const int rc = question_answer(call, &question, (json_t *)(uintptr_t)spec, &err);
    LIST_REMOVE(&question, link);
    plans->count--;
    if (question.stale)
        call_problem(call, 412, "stale", NULL, "a newer question was asked with this token");
    else if (rc < 0)
        call_refuse(call, &err);
    else
        call_json(call, 200, json_incref(question.answer), NULL);
    json_decref(question.inputs);
    json_decref(question.answer);
}

void plans_post(struct call *call)
{
    plans_answer(call, false);
}

void plans_cluster(struct call *call)
{
    plans_answer(call, true);
}
