/* Applies people's commands to jobs (hold, release, cancel, resume, share), and reads jobs' artifacts and
 * events. */
#include "store/jobs.h"
#include "store/call.sql.h"
#include "store/jobs_command.sql.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { RESUME_STEPS_MAX = 1000000000 }; /* as of train.steps */

/* The columns of job_command and job_resume are the same. */
_Static_assert((int)JOB_COMMAND_GONE == (int)JOB_RESUME_GONE, "both have these columns");

struct job_command {
    enum job_event event;
    const int64_t *ids; /* [count] */
    size_t count;
    int64_t more_steps; /* number of further steps of a RESUME */
    const char *owner;  /* the command also applies to all jobs of this user that have not ended; or NULL */
};

struct command_call {
    struct store_call call; /* must come first: store_run frees it */
    enum job_event event;
    /* The command has a list of jobs: a job that cannot take it is listed in the answer, and the call
     * succeeds. */
    bool several;
};

static void command_fail(struct store_call *call, const struct err *err)
{
    ((store_doc_fn *)call->done)(call->arg, err, NULL);
}

/* Sets the error that says why nothing changed: the job's state has no such event, no step is left, or the
 * job is an array. */
static void explain(const struct command_call *command, const struct pg_result *result, int row,
                    struct err *err)
{
    const long long id = pg_i64(result, row, JOB_COMMAND_ASKED),
                    reached = pg_i64(result, row, JOB_COMMAND_REACHED),
                    wanted = pg_i64(result, row, JOB_COMMAND_WANTED);
    int from = state_from_name(&job_machine, pg_text(result, row, JOB_COMMAND_STATE));
    struct err refused;
    if (from < 0 || state_next(&job_machine, from, command->event, &refused) < 0)
        err_set(err, ERR_CONFLICT, "job %lld: %s", id, refused.text);
    else if (pg_bool(result, row, JOB_COMMAND_FETCHED))
        err_set(err, ERR_CONFLICT, "job %lld: its model %s", id,
                command->event == JOB_EVENT_RELEASE
                    ? "is still to be fetched, and then it is queued by itself"
                    : "was not fetched: submit the job again");
    else if (!pg_is_null(result, row, JOB_COMMAND_GONE))
        err_set(
            err, ERR_CONFLICT,
            "job %lld: its checkpoints went at %s, as its group does not keep them longer: submit it again",
            id, pg_text(result, row, JOB_COMMAND_GONE));
    else if (wanted > RESUME_STEPS_MAX)
        err_set(err, ERR_INVALID,
                "steps: job %lld has its last checkpoint at step %lld, and %lld more are beyond the most "
                "that a job may have, %d",
                id, reached, wanted - reached, RESUME_STEPS_MAX);
    else if (reached >= wanted && wanted > 0)
        err_set(
            err, ERR_INVALID,
            "job %lld has reached step %lld of %lld: nothing is left to do (steps, --steps N, moves its end)",
            id, reached, wanted);
    else
        err_set(err, ERR_CONFLICT, "job %lld is an array: resume its elements", id);
}

/* Reads the result for one job: ERR_NONE in *err when the job took the event. */
static void outcome_read(const struct command_call *command, const struct pg_result *result, int row,
                         struct err *err)
{
    const long long id = pg_i64(result, row, JOB_COMMAND_ASKED);
    err_clear(err);
    if (pg_is_null(result, row, JOB_COMMAND_STATE))
        err_set(err, ERR_NOT_FOUND, STORE_NO_JOB, id);
    else if (!pg_bool(result, row, JOB_COMMAND_OWNED))
        err_set(err, ERR_DENIED, "job %lld is %s's: only its owner or an administrator may change it", id,
                pg_text(result, row, JOB_COMMAND_OWNER));
    else if (pg_bool(result, row, JOB_COMMAND_BARRED))
        err_set(err, ERR_DENIED, "job %lld is held by an administrator, who alone may release it", id);
    else if (!pg_bool(result, row, JOB_COMMAND_CHANGED))
        explain(command, result, row, err);
}

static json_t *outcomes(const struct command_call *command, const struct pg_result *result)
{
    json_t *jobs = json_array(), *refused = json_array();
    for (int row = 0; row < pg_rows(result); row++) {
        struct err err;
        outcome_read(command, result, row, &err);
        if (err.code == ERR_NONE)
            json_array_append_new(jobs, pg_json(result, row, JOB_COMMAND_DOCUMENT));
        else
            json_array_append_new(refused, json_pack("{s:I, s:s, s:s}", "id",
                                                     (json_int_t)pg_i64(result, row, JOB_COMMAND_ASKED),
                                                     "code", err_code_name(err.code), "detail", err.text));
    }
    return json_pack("{s:o, s:o}", "jobs", jobs, "refused", refused);
}

static void command_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    const struct command_call *command = (const struct command_call *)call;
    const struct pg_result *result = results[count - 1];
    store_doc_fn *done = (store_doc_fn *)call->done;
    struct err err = {0};
    if (!command->several)
        outcome_read(command, result, 0, &err);
    if (err.code) {
        done(call->arg, &err, NULL);
        return;
    }
    json_t *doc = command->several ? outcomes(command, result) : pg_json(result, 0, JOB_COMMAND_DOCUMENT);
    if (!doc) {
        err_set(&err, ERR_NOMEM, "no memory for the answer");
        done(call->arg, &err, NULL);
        return;
    }
    done(call->arg, NULL, doc);
    json_decref(doc);
}

static const char *audit_name(enum job_event event)
{
    switch (event) {
    case JOB_EVENT_HOLD:
        return "job.hold";
    case JOB_EVENT_RELEASE:
        return "job.release";
    case JOB_EVENT_CANCEL:
        return "job.cancel";
    default:
        return "job.resume";
    }
}

static int jobs_command_run(struct store *store, const struct principal *principal,
                            const struct job_command *of, bool several, store_doc_fn *done, void *arg,
                            struct err *err)
{
    if (of->event != JOB_EVENT_HOLD && of->event != JOB_EVENT_RELEASE && of->event != JOB_EVENT_CANCEL &&
        of->event != JOB_EVENT_RESUME) {
        return err_set(err, ERR_INTERNAL, "job event %d is no person's command", (int)of->event);
    }
    if (of->more_steps < 0 || of->more_steps > INT32_MAX)
        return err_set(err, ERR_INVALID, "steps: %lld is not within 0..%d", (long long)of->more_steps,
                       INT32_MAX);
    struct command_call *command = calloc(1, sizeof(*command));
    if (!command)
        return err_set(err, ERR_NOMEM, "no memory for a job command");
    command->call = (struct store_call){
        .deliver = command_deliver, .fail = command_fail, .done = (void (*)(void))done, .arg = arg};
    command->event = of->event;
    command->several = several;

    struct pg_params params;
    if (of->event == JOB_EVENT_RESUME)
        sql_job_resume(&params, of->ids, of->count, principal, &job_machine, (int)of->event, of->more_steps,
                       audit_name(of->event));
    else
        sql_job_command(&params, of->ids, of->count, principal, &job_machine, (int)of->event,
                        of->event == JOB_EVENT_CANCEL ? "cancel" : "hold", audit_name(of->event), of->owner);
    const struct pg_step steps[] = {{&store_events_lock_sql, NULL}, store_step(&params)};
    int rc = store_run(store, steps, 2, STORE_ALONE, &command->call, err);
    pg_params_fini(&params);
    return rc;
}

int store_job_command(struct store *store, const struct principal *principal, int64_t id,
                      enum job_event event, int64_t more_steps, store_doc_fn *done, void *arg,
                      struct err *err)
{
    const struct job_command of = {.event = event, .ids = &id, .count = 1, .more_steps = more_steps};
    return jobs_command_run(store, principal, &of, false, done, arg, err);
}

int store_jobs_command(struct store *store, const struct principal *principal, enum job_event event,
                       const int64_t *ids, size_t count, store_doc_fn *done, void *arg, struct err *err)
{
    const struct job_command of = {.event = event, .ids = ids, .count = count};
    if (count > STORE_PAGE_MAX)
        return err_set(err, ERR_INVALID, "ids: %zu jobs are more than %d", count, STORE_PAGE_MAX);
    return jobs_command_run(store, principal, &of, true, done, arg, err);
}

int store_owner_command(struct store *store, const struct principal *principal, enum job_event event,
                        const char *owner, store_doc_fn *done, void *arg, struct err *err)
{
    const struct job_command of = {.event = event, .owner = owner};
    return jobs_command_run(store, principal, &of, true, done, arg, err);
}

/* ---- changes of a job ---- */

int store_job_update(struct store *store, int64_t id, struct pg_params *params, store_doc_fn *done, void *arg,
                     struct err *err)
{
    char missing[80], thing[64];
    snprintf(missing, sizeof(missing), STORE_NO_JOB, (long long)id);
    snprintf(thing, sizeof(thing), "job %lld", (long long)id);
    return store_one_change(store, params, missing, thing, done, arg, err);
}

int store_job_change(struct store *store, const struct principal *principal, int64_t id,
                     const json_t *changes, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_job_change(&params, id, principal, changes);
    return store_job_update(store, id, &params, done, arg, err);
}

/* ---- longer time limits ---- */

int store_job_extend(struct store *store, const struct principal *principal, int64_t id, int64_t seconds,
                     store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_job_extend(&params, id, principal, seconds);
    return store_job_update(store, id, &params, done, arg, err);
}

/* ---- visibility ---- */

int store_job_share(struct store *store, const struct principal *principal, int64_t id,
                    const struct sharing *sharing, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_job_share(&params, id, principal, sharing);
    return store_job_update(store, id, &params, done, arg, err);
}

/* ---- events ---- */

int store_event_list(struct store *store, int64_t job, const char *type, int64_t after, unsigned limit,
                     store_doc_fn *done, void *arg, struct err *err)
{
    if (limit < 1 || limit > 1000)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..1000", limit);
    struct pg_params params;
    sql_event_list(&params, after, limit, job, type);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_event_feed(struct store *store, int64_t after, unsigned limit,
                     const struct store_feed_filter *filter, store_doc_fn *done, void *arg, struct err *err)
{
    if (limit < 1 || limit > 1000)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..1000", limit);
    struct pg_params params;
    sql_event_feed(&params, after, limit, filter->states, filter->jobs, filter->job_count);
    return store_one_doc(store, &params, NULL, done, arg, err);
}
