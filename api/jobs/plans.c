/* Answers POST /v1/plans and /v1/plans:cluster. */
#include "api/jobs/plans.h"

#include "api/check/check.h"
#include "api/request/route.h"
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

struct plan_question {
    struct pool_task task; /* must come first: a pointer to the task is cast to the question */
    LIST_ENTRY(plan_question) link;
    struct plans *plans;
    struct call *call;
    int64_t token;
    bool brief;
    bool file;         /* the answer is the completed cluster file, not a plan */
    atomic_bool stale; /* a newer question of the same token was asked */
    json_t *spec;      /* the specification in the request */
    /* the cluster in the request, or NULL: the present devices */
    json_t *cluster;
    json_t *inputs, *answer; /* inputs: a copy for the pool thread */
    struct err err;
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

static void question_end(struct plan_question *question)
{
    struct call *call = question->call;
    if (question->answer && !question->stale)
        call_json(call, 200, json_incref(question->answer), NULL);
    else if (question->stale)
        call_problem(call, 412, "stale", NULL, "a newer question was asked with this token");
    else
        call_refuse(call, &question->err);
    LIST_REMOVE(question, link);
    question->plans->count--;
    json_decref(question->spec);
    json_decref(question->cluster);
    json_decref(question->inputs);
    json_decref(question->answer);
    free(question);
}

/* ---- on a thread of the plans' own pools ---- */

static void search(struct plan_question *question, struct plan_inputs *inputs)
{
    struct plan_answer *found = NULL;
    const struct plan_options options = {.programs = !question->brief,
                                         .brief = question->brief,
                                         .evaluations = question->brief ? BRIEF_EVALUATIONS : 0,
                                         /* On present devices, only plans are searched that their workers can
                                          * run. */
                                         .runnable_only = !question->cluster};
    uint64_t began_ns = clock_mono_ns();
    if (plan_search(&inputs->workload, inputs->cluster, &options, &found, &question->err) < 0)
        return;
    found->plan_s = (double)(clock_mono_ns() - began_ns) * 1e-9;
    question->answer = answer_to_json(found, &question->err);
    if (question->answer) {
        json_object_set_new(question->answer, "words", json_string(found->words ? found->words : ""));
        json_object_set_new(question->answer, "brief", json_boolean(question->brief));
    }
    plan_answer_destroy(found);
}

static void question_work(struct pool_task *task)
{
    struct plan_question *question = (struct plan_question *)task;
    struct plan_inputs inputs = {0};
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), NICE);
    if (question->stale)
        return;
    if (question->cluster && (plan_inputs_fill(question->inputs, question->cluster, &question->err) < 0 ||
                              plan_inputs_cluster(question->inputs, question->cluster, &question->err) < 0))
        err_wrap(&question->err, "cluster");
    else if (question->file)
        question->answer = question->cluster ? json_incref(question->cluster)
                                             : plan_inputs_cluster_file(question->inputs, &question->err);
    else if (json_array_size(json_object_get(question->inputs, "devices")) == 0)
        err_set(&question->err, ERR_NOFIT,
                "there is no device to plan for: no agent has joined; `cluster` may describe others");
    else if (plan_inputs_read(question->inputs, &inputs, &question->err) == 0)
        search(question, &inputs);
    plan_inputs_fini(&inputs);
}

static void question_done(struct pool_task *task)
{
    struct plan_question *question = (struct plan_question *)task;
    pool_ran(task, &question->err);
    question_end(question);
}

/* ---- on the loop's thread ---- */

static void gathered(void *arg, const struct err *err, struct checked *checked, json_t *more)
{
    (void)more;
    struct plan_question *question = arg;
    struct plans *plans = question->plans;
    if (err && err->code == ERR_INVALID)
        err_set(&question->err, err->code, "spec.%s", err->text);
    else if (err)
        question->err = *err;
    else if (!(question->inputs = json_deep_copy(json_object_get(checked->answer, "inputs"))))
        err_set(&question->err, ERR_NOMEM, "out of memory for a plan's inputs");
    question->task.work = question_work;
    question->task.done = question_done;
    if (question->err.code || question->stale ||
        pool_run(question->brief || question->file ? plans->brief : plans->full, &question->task,
                 &question->err) < 0)
        question_end(question);
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

static void ask(struct call *call, bool file)
{
    struct plans *plans = call->app->plans;
    struct err err = {0};
    struct json_reader reader;
    const json_t *spec = NULL, *cluster = NULL;
    bool brief = false;
    call_reader(call, &reader, &err);
    jr_object(&reader, "spec", JR_REQUIRED, &spec);
    jr_object(&reader, "cluster", JR_OPTIONAL, &cluster);
    if (!file)
        jr_bool(&reader, "brief", JR_OPTIONAL, &brief);
    if (jr_finish(&reader) < 0) {
        call_refuse(call, &err);
        return;
    }
    struct plan_question *question = plans->count < QUESTIONS_MAX ? calloc(1, sizeof(*question)) : NULL;
    if (!question) {
        call_problem(call, 503, "busy", NULL, "the server has %d plans in work, its limit", QUESTIONS_MAX);
        return;
    }
    *question = (struct plan_question){.plans = plans,
                                       .call = call,
                                       .token = call->principal.token,
                                       .brief = brief,
                                       .file = file,
                                       .spec = json_deep_copy(spec),
                                       .cluster = cluster ? json_deep_copy(cluster) : NULL};
    LIST_INSERT_HEAD(&plans->open, question, link);
    plans->count++;
    if (!file)
        supersede(plans, question);
    if (!question->spec || (cluster && !question->cluster)) {
        err_set(&question->err, ERR_NOMEM, "out of memory for a plan");
        question_end(question);
        return;
    }
    check_spec(call->app->submits, &call->principal, question->spec, CHECK_GATHER, gathered, question);
}

void plans_post(struct call *call)
{
    ask(call, false);
}

void plans_cluster(struct call *call)
{
    ask(call, true);
}
