/* What a person does to a job: hold, release, cancel, resume; artifacts; events for followers. */
#include "store/jobs.h"
#include "store/store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* $1 id, $2 owner, $3/$4 edges, $5 event's stop_why. A later cancel overrides
 * a hold or a drain; nothing overrides a cancel but a fault of the job's own. */
static const struct pg_statement command_job = {
    "job_command",
    "WITH old AS (SELECT id, state, stop_why FROM jobs WHERE id = $1 AND ($2::bigint = 0 OR owner = $2) FOR "
    "UPDATE), "
    "upd AS (UPDATE jobs j SET state = e.t, updated_at = now(), "
    "  stop_why = CASE WHEN e.t <> 'stopping' THEN NULL "
    "    WHEN o.stop_why IN ('fault', 'time') OR (o.stop_why = 'cancel' AND o.state = 'stopping') THEN "
    "o.stop_why "
    "    ELSE $5 END, "
    "  why = CASE WHEN e.t = 'stopping' THEN j.why END, not_before = NULL, "
    "  ended_at = CASE WHEN e.t = 'cancelled' THEN coalesce(j.ended_at, now()) END "
    "  FROM old o, unnest($3::text[], $4::text[]) AS e(f, t) WHERE j.id = o.id AND o.state = e.f "
    "  RETURNING j.id, j.state, j.steps, j.stop_why, o.state AS before), "
    "said AS (INSERT INTO events (job, type, body) SELECT id, 'state', json_build_object('state', state, "
    "  'from', before, 'why', stop_why) FROM upd WHERE state <> before OR stop_why IS NOT NULL) "
    "SELECT old.state, upd.id IS NOT NULL, json_build_object('id', upd.id, 'state', upd.state, 'steps', "
    "upd.steps), "
    "  CASE WHEN upd.id IS NOT NULL THEN pg_notify('motley_jobs', '') END, "
    "  CASE WHEN upd.id IS NOT NULL THEN pg_notify('motley_events', upd.id::text) END "
    "FROM old LEFT JOIN upd ON true",
    PG_WRITE};

/* $1 id, $2 owner, $3/$4 edges, $5 more steps. */
static const struct pg_statement resume_job = {
    "job_resume",
    "WITH old AS (SELECT j.id, j.state, j.steps, coalesce((SELECT max(c.step) FROM checkpoints c "
    "             WHERE c.job = j.id AND c.complete), 0) AS reached "
    "             FROM jobs j WHERE j.id = $1 AND ($2::bigint = 0 OR j.owner = $2) FOR UPDATE OF j), "
    "goal AS (SELECT *, CASE WHEN $5::bigint > 0 THEN reached + $5 ELSE steps END AS wanted FROM old), "
    "upd AS (UPDATE jobs j SET state = e.t, updated_at = now(), stop_why = NULL, why = NULL, code = NULL, "
    "  not_before = NULL, ended_at = NULL, swept_at = NULL, losses = 0, used_ms = 0, steps = g.wanted, "
    "  spec = CASE WHEN $5 > 0 THEN jsonb_set(j.spec::jsonb #- '{train,epochs}', '{train,steps}', "
    "         to_jsonb(g.wanted))::json ELSE j.spec END "
    "  FROM goal g, unnest($3::text[], $4::text[]) AS e(f, t) "
    "  WHERE j.id = g.id AND g.state = e.f AND (g.wanted > g.reached OR g.wanted = 0) "
    "  RETURNING j.id, j.state, j.steps, g.state AS before), "
    "said AS (INSERT INTO events (job, type, body) SELECT id, 'state', json_build_object('state', state, "
    "  'from', before, 'why', 'resume') FROM upd) "
    "SELECT g.state, upd.id IS NOT NULL, json_build_object('id', upd.id, 'state', upd.state, 'steps', "
    "upd.steps), "
    "  CASE WHEN upd.id IS NOT NULL THEN pg_notify('motley_jobs', '') END, "
    "  CASE WHEN upd.id IS NOT NULL THEN pg_notify('motley_events', upd.id::text) END, g.reached, g.wanted "
    "FROM goal g LEFT JOIN upd ON true",
    PG_WRITE};

struct command_call {
    struct store_call call; /* first: what store_run frees */
    int64_t id;
    enum job_event event;
};

static void command_fail(struct store_call *call, const struct err *err)
{
    ((store_doc_fn *)call->done)(call->arg, err, NULL);
}

/* Why nothing changed: wrong state, or nothing left to do. */
static void explain(const struct command_call *command, const struct pg_result *result, struct err *err)
{
    int from = state_from_name(&job_machine, pg_text(result, 0, 0));
    struct err refused;
    if (from >= 0 && state_next(&job_machine, from, command->event, &refused) >= 0) {
        err_set(err, ERR_INVALID,
                "job %lld has reached step %lld of %lld: nothing is left to do (give more steps)",
                (long long)command->id, (long long)pg_i64(result, 0, 5), (long long)pg_i64(result, 0, 6));
        return;
    }
    err_set(err, ERR_CONFLICT, "job %lld: %s", (long long)command->id, refused.text);
}

static void command_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    const struct command_call *command = (const struct command_call *)call;
    const struct pg_result *result = results[count - 1];
    store_doc_fn *done = (store_doc_fn *)call->done;
    struct err err;
    if (pg_rows(result) == 0) {
        err_set(&err, ERR_NOT_FOUND, "there is no job %lld", (long long)command->id);
        done(call->arg, &err, NULL);
        return;
    }
    if (!pg_bool(result, 0, 1)) {
        explain(command, result, &err);
        done(call->arg, &err, NULL);
        return;
    }
    json_t *doc = pg_json(result, 0, 2);
    if (doc == NULL) {
        err_set(&err, ERR_NOMEM, "no memory for the answer");
        done(call->arg, &err, NULL);
        return;
    }
    done(call->arg, NULL, doc);
    json_decref(doc);
}

int store_job_command(struct store *store, int64_t id, int64_t owner, enum job_event event,
                      int64_t more_steps, store_doc_fn *done, void *arg, struct err *err)
{
    if (event != JOB_EVENT_HOLD && event != JOB_EVENT_RELEASE && event != JOB_EVENT_CANCEL &&
        event != JOB_EVENT_RESUME) {
        return err_set(err, ERR_INTERNAL, "job event %d is no person's command", (int)event);
    }
    if (more_steps < 0 || more_steps > INT32_MAX) {
        return err_set(err, ERR_INVALID, "steps: %lld is not within 0..%d", (long long)more_steps, INT32_MAX);
    }
    struct command_call *command = calloc(1, sizeof(*command));
    if (command == NULL) {
        return err_set(err, ERR_NOMEM, "no memory for a job command");
    }
    command->call = (struct store_call){
        .deliver = command_deliver, .fail = command_fail, .done = (void (*)(void))done, .arg = arg};
    command->id = id;
    command->event = event;

    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, id);
    pg_param_i64(&params, owner);
    store_param_edges(&params, &job_machine, (int)event);
    if (event == JOB_EVENT_RESUME) {
        pg_param_i64(&params, more_steps);
    } else {
        pg_param_text(&params, event == JOB_EVENT_CANCEL ? "cancel" : "hold");
    }
    const struct pg_step steps[] = {{&store_events_lock, NULL},
                                    {event == JOB_EVENT_RESUME ? &resume_job : &command_job, &params}};
    int rc = store_run(store, steps, 2, STORE_ALONE, &command->call, err);
    pg_params_fini(&params);
    return rc;
}

/* ---- artifacts ---- */

static const struct pg_statement put_artifact = {
    "artifact_put",
    "INSERT INTO artifacts (job, name, sha256, size) VALUES ($1, $2, $3, $4) "
    "ON CONFLICT (job, name) DO UPDATE SET sha256 = excluded.sha256, size = excluded.size, created_at = "
    "now()",
    PG_WRITE};

int store_artifact_put(struct store *store, int64_t job, const char *name, const char *sha256, int64_t size,
                       store_done_fn *done, void *arg, struct err *err)
{
    if (store_check_text("an artifact's name", name, 400, err) < 0) {
        return -1;
    }
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, job);
    pg_param_text(&params, name);
    pg_param_text(&params, sha256);
    pg_param_i64(&params, size);
    return store_one_done(store, &put_artifact, &params, done, arg, err);
}

/* ---- events ---- */

#define EVENTS_SQL(from_where)                                                                               \
    "SELECT json_build_object('events', coalesce(json_agg(json_build_object('id', t.id, 'job', t.job, "      \
    "       'type', t.type, 'at', motley_time(t.at), 'body', t.body) ORDER BY t.id), '[]'::json), "          \
    "       'last', coalesce(max(t.id), $1)) FROM (SELECT e.* FROM " from_where " ORDER BY e.id LIMIT $2) t"

static const struct pg_statement list_events_job = {
    "event_list_job",
    EVENTS_SQL("events e WHERE e.id > $1 AND e.job = $3 AND ($4::text IS NULL OR e.type = $4)"), PG_READ};
static const struct pg_statement list_events_all = {
    "event_list_all", EVENTS_SQL("events e WHERE e.id > $1 AND ($3::text IS NULL OR e.type = $3)"), PG_READ};
static const struct pg_statement list_events_owner = {
    "event_list_owner",
    EVENTS_SQL("events e JOIN jobs j ON j.id = e.job WHERE e.id > $1 AND j.owner = $3 "
               "AND ($4::text IS NULL OR e.type = $4)"),
    PG_READ};

int store_event_list(struct store *store, int64_t job, int64_t owner, const char *type, int64_t after,
                     unsigned limit, store_doc_fn *done, void *arg, struct err *err)
{
    if (limit < 1 || limit > 1000) {
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..1000", limit);
    }
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, after);
    pg_param_i64(&params, limit);
    const struct pg_statement *statement = &list_events_all;
    if (job != 0) {
        pg_param_i64(&params, job);
        statement = &list_events_job;
    } else if (owner != 0) {
        pg_param_i64(&params, owner);
        statement = &list_events_owner;
    }
    pg_param_text(&params, type);
    return store_one_doc(store, statement, &params, NULL, done, arg, err);
}

static const struct pg_statement last_event = {
    "event_last", "SELECT coalesce(max(id), 0) FROM events WHERE $1::bigint = 0 OR job = $1", PG_READ};

int store_event_last(struct store *store, int64_t job, store_id_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, job);
    return store_one_id(store, &last_event, &params, NULL, done, arg, err);
}
