/* What a person does to a job: hold, release, cancel, resume, share; artifacts; events for followers. */
#include "store/jobs.h"
#include "store/store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* $1: the job; $2, $3: the asker; $4, $5: the edges; $6: the event's stop_why; $7: the actor; $8: the event's
 * name in the audit. A later cancel replaces a hold or a drain. Nothing replaces a cancel, and a person's
 * command does not replace a stop for a fault or the time limit. */
#define AUDITED(actor, name)                                                                                 \
    "told AS (" AUDIT(actor, name, "upd.id::text", "json_build_object('state', upd.before)",                 \
                      "json_build_object('state', upd.state, 'steps', upd.steps)", "upd") "), "

/* clang-format off */
static const struct pg_statement command_job = {
    "job_command",
    "WITH old AS (SELECT id, state, stop_why, owner, " OWNED("j", "$2", "$3") " AS owned FROM jobs j WHERE id "
    "  = $1 AND " VISIBLE("j", "$2", "$3") " FOR UPDATE), "
    "upd AS (UPDATE jobs j SET state = e.t, updated_at = now(), stop_why = CASE WHEN e.t <> 'stopping' THEN "
    "  NULL WHEN o.stop_why IN ('fault', 'time') OR (o.stop_why = 'cancel' AND o.state = 'stopping') THEN "
    "  o.stop_why ELSE $6 END, why = CASE WHEN e.t = 'stopping' THEN j.why END, not_before = NULL, ended_at = "
    "  CASE WHEN e.t = 'cancelled' THEN coalesce(j.ended_at, now()) END FROM old o, unnest($4::text[], "
    "  $5::text[]) AS e(f, t) WHERE j.id = o.id AND o.state = e.f AND o.owned RETURNING j.id, j.state, "
    "  j.steps, j.stop_why, o.state AS before), " AUDITED("$7", "$8::text") "said AS (INSERT INTO events (job, "
    "  type, body) "
    "SELECT id, 'state', json_build_object('state', state, 'from', before, 'why', stop_why) FROM upd WHERE "
    "  state <> before OR stop_why IS NOT NULL) "
    "SELECT old.state, upd.id IS NOT NULL, json_build_object('id', upd.id, 'state', upd.state, 'steps', "
    "  upd.steps), CASE WHEN upd.id IS NOT NULL THEN pg_notify('motley_jobs', '') END, CASE WHEN upd.id IS NOT "
    "  NULL THEN pg_notify('motley_events', upd.id::text) END, old.owned, (SELECT name FROM users WHERE id = "
    "  old.owner) "
    "FROM old LEFT JOIN upd ON true",
    PG_WRITE};
/* clang-format on */

/* The parameters are those of command_job, but $6 is the number of further steps. */
/* clang-format off */
static const struct pg_statement resume_job = {
    "job_resume",
    "WITH old AS (SELECT j.id, j.state, j.steps, coalesce((SELECT max(c.step) FROM checkpoints c WHERE c.job = "
    "  j.id AND c.complete), 0) AS reached, j.owner, " OWNED("j", "$2", "$3") " AS owned FROM jobs j WHERE "
    "  j.id = $1 AND " VISIBLE("j", "$2", "$3") " FOR UPDATE OF j), "
    "goal AS (SELECT *, CASE WHEN $6::bigint > 0 THEN reached + $6 ELSE steps END AS wanted FROM old), "
    "upd AS (UPDATE jobs j SET state = e.t, updated_at = now(), stop_why = NULL, why = NULL, code = NULL, "
    "  not_before = NULL, ended_at = NULL, swept_at = NULL, losses = 0, used_ms = 0, steps = g.wanted, spec = "
    "  CASE WHEN $6 > 0 THEN jsonb_set(j.spec::jsonb #- '{train,epochs}', '{train,steps}', "
    "  to_jsonb(g.wanted))::json ELSE j.spec END FROM goal g, unnest($4::text[], $5::text[]) AS e(f, t) WHERE "
    "  j.id = g.id AND g.owned AND g.state = e.f AND (g.wanted > g.reached OR g.wanted = 0) RETURNING j.id, "
    "  j.state, j.steps, j.stop_why, g.state AS before), " AUDITED("$7", "$8::text") "said AS (INSERT INTO "
    "  events (job, type, body) "
    "SELECT id, 'state', json_build_object('state', state, 'from', before, 'why', 'resume') FROM upd) "
    "SELECT g.state, upd.id IS NOT NULL, json_build_object('id', upd.id, 'state', upd.state, 'steps', "
    "  upd.steps), CASE WHEN upd.id IS NOT NULL THEN pg_notify('motley_jobs', '') END, CASE WHEN upd.id IS NOT "
    "  NULL THEN pg_notify('motley_events', upd.id::text) END, g.owned, (SELECT name FROM users WHERE id = "
    "  g.owner), g.reached, g.wanted "
    "FROM goal g LEFT JOIN upd ON true",
    PG_WRITE};
/* clang-format on */

struct command_call {
    struct store_call call; /* must come first: store_run frees it */
    int64_t id;
    enum job_event event;
};

static void command_fail(struct store_call *call, const struct err *err)
{
    ((store_doc_fn *)call->done)(call->arg, err, NULL);
}

/* Says why nothing changed: the job's state has no such event, or no step is left. */
static void explain(const struct command_call *command, const struct pg_result *result, struct err *err)
{
    int from = state_from_name(&job_machine, pg_text(result, 0, 0));
    struct err refused;
    if (from >= 0 && state_next(&job_machine, from, command->event, &refused) >= 0) {
        err_set(err, ERR_INVALID,
                "job %lld has reached step %lld of %lld: nothing is left to do (give more steps)",
                (long long)command->id, (long long)pg_i64(result, 0, 7), (long long)pg_i64(result, 0, 8));
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
    if (!pg_bool(result, 0, 5)) {
        err_set(&err, ERR_DENIED, "job %lld is %s's: only its owner or an administrator may change it",
                (long long)command->id, pg_text(result, 0, 6));
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

int store_job_command(struct store *store, const struct principal *principal, int64_t id,
                      enum job_event event, int64_t more_steps, store_doc_fn *done, void *arg,
                      struct err *err)
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
    store_param_viewer(&params, principal);
    store_param_edges(&params, &job_machine, (int)event);
    if (event == JOB_EVENT_RESUME) {
        pg_param_i64(&params, more_steps);
    } else {
        pg_param_text(&params, event == JOB_EVENT_CANCEL ? "cancel" : "hold");
    }
    store_param_actor(&params, principal);
    pg_param_text(&params, audit_name(event));
    const struct pg_step steps[] = {{&store_events_lock, NULL},
                                    {event == JOB_EVENT_RESUME ? &resume_job : &command_job, &params}};
    int rc = store_run(store, steps, 2, STORE_ALONE, &command->call, err);
    pg_params_fini(&params);
    return rc;
}

/* ---- who else may see it ---- */

/* clang-format off */
static const struct pg_statement share_job = {
    "job_share",
    "WITH old AS (SELECT id, owner, visibility, grp, " OWNED("j", "$2", "$3") " AS owned FROM jobs j WHERE id "
    "  = $1 AND " VISIBLE("j", "$2", "$3") " FOR UPDATE), "
    "upd AS (UPDATE jobs j SET visibility = $4, grp = motley_group($4, $5, $2, $3) FROM old WHERE j.id = "
    "  old.id AND old.owned RETURNING j.id, j.visibility, old.visibility AS was), "
    "said AS ("
    AUDIT("$6", "'job.share'", "upd.id::text", "json_build_object('visibility', upd.was)", "json_build_object('visibility', upd.visibility, 'group', $5::text)", "upd")
    "  ) "
    "SELECT old.owned, (SELECT name FROM users WHERE id = old.owner), json_build_object('id', upd.id, "
    "  'visibility', upd.visibility, 'group', $5::text) "
    "FROM old LEFT JOIN upd ON true",
    PG_WRITE};
/* clang-format on */

int store_job_share(struct store *store, const struct principal *principal, int64_t id,
                    const struct sharing *sharing, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[64], thing[64];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no job %lld", (long long)id);
    snprintf(thing, sizeof(thing), "job %lld", (long long)id);
    pg_params_init(&params);
    pg_param_i64(&params, id);
    store_param_viewer(&params, principal);
    store_param_sharing(&params, sharing);
    store_param_actor(&params, principal);
    return store_one_change(store, &share_job, &params, missing, thing, done, arg, err);
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

static const struct pg_statement list_events = {
    "event_list", EVENTS_SQL("events e WHERE e.id > $1 AND e.job = $3 AND ($4::text IS NULL OR e.type = $4)"),
    PG_READ};

int store_event_list(struct store *store, int64_t job, const char *type, int64_t after, unsigned limit,
                     store_doc_fn *done, void *arg, struct err *err)
{
    if (limit < 1 || limit > 1000) {
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..1000", limit);
    }
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, after);
    pg_param_i64(&params, limit);
    pg_param_i64(&params, job);
    pg_param_text(&params, type);
    return store_one_doc(store, &list_events, &params, NULL, done, arg, err);
}

static const struct pg_statement last_event = {
    "event_last", "SELECT coalesce(max(id), 0) FROM events WHERE job = $1", PG_READ};

int store_event_last(struct store *store, int64_t job, store_id_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, job);
    return store_one_id(store, &last_event, &params, NULL, done, arg, err);
}
