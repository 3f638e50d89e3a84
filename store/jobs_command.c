/* Applies people's commands to jobs (hold, release, cancel, resume, share), and reads jobs' artifacts and
 * events. */
#include "store/jobs.h"
#include "store/store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Parameters: $1: the jobs; $2, $3: the asker; $4, $5: the edges of the state machine; $6: the event's
 * stop_why; $7: the actor; $8: the event's name in the audit. The elements of an array take the same event if
 * their state has it. A later cancel replaces a hold or a drain. Nothing replaces a cancel, and a person's
 * command does not replace a stop for a fault or for the time limit. The columns of the result are those of
 * enum command_column. */
#define AUDITED(actor, name)                                                                                 \
    "told AS (" AUDIT(actor, name, "upd.id::text", "json_build_object('state', upd.before)",                 \
                      "json_build_object('state', upd.state, 'steps', upd.steps)", "upd") "), "
#define NOTIFY                                                                                               \
    "(SELECT count(pg_notify('motley_jobs', '')) FROM upd), "                                                \
    "(SELECT count(pg_notify('motley_events', id::text)) FROM upd), "

#define FETCHES(job) "EXISTS (SELECT 1 FROM job_fetches f WHERE f.job = " job ".id)"

enum { RESUME_STEPS_MAX = 1000000000 }; /* as of train.steps */

enum command_column {
    COMMAND_ASKED,   /* the job's id as it was given */
    COMMAND_STATE,   /* the job's state before the command; null: the asker sees no such job */
    COMMAND_CHANGED, /* the job, or an element of it, took the event */
    COMMAND_DOC,
    COMMAND_OWNED,
    COMMAND_OWNER,
    /* From here on, after two columns with notifications. COMMAND_REACHED, COMMAND_WANTED: of a resume, the
     * step of the last checkpoint, and the last step that is wanted. */
    COMMAND_REACHED = COMMAND_OWNER + 3,
    COMMAND_WANTED,
    COMMAND_BARRED,  /* an administrator holds the job, and the asker is no administrator */
    COMMAND_FETCHED, /* the job's model is still to be fetched, or was not before it ended */
    COMMAND_GONE     /* when the job's checkpoints went by its group's rule */
};

/* clang-format off */
static const struct pg_statement command_jobs = {
    "job_command",
    "WITH asked AS MATERIALIZED (SELECT id, n FROM unnest($1::bigint[]) WITH ORDINALITY AS a(id, n) UNION ALL "
    "  SELECT j.id, j.id FROM users u JOIN jobs j ON j.owner = u.id WHERE u.name = $9::text AND j.array_of IS NULL "
    "  AND j.state NOT IN ('succeeded', 'failed', 'cancelled')), "
    "old AS (SELECT id, state, stop_why, owner, array_of, " OWNED("j", "$2", "$3") " AS owned, j.held_by_admin AND NOT $3::boolean "
    "  AND $8 = 'job.release' AS barred FROM jobs j WHERE id IN (SELECT id FROM asked UNION SELECT e.id FROM asked a JOIN jobs e ON e.array_of = a.id) AND " VISIBLE("j", "$2", "$3")
    "  ORDER BY id FOR UPDATE), "
    "upd AS (UPDATE jobs j SET state = e.t, updated_at = now(), stop_why = CASE WHEN e.t <> 'stopping' THEN "
    "  NULL WHEN o.stop_why IN ('fault', 'time') OR (o.stop_why = 'cancel' AND o.state = 'stopping') THEN "
    "  o.stop_why ELSE $6 END, why = CASE WHEN e.t = 'stopping' THEN j.why END, not_before = NULL, starts_at = NULL, starts_from = NULL, starts_to = NULL, "
    "  wait_code = NULL, wait_subject = NULL, eligible_at = "
    "  CASE WHEN e.t = 'queued' THEN now() ELSE j.eligible_at END, held_by_admin = CASE WHEN $8 = 'job.hold' THEN "
    "  j.held_by_admin OR ($3::boolean AND j.owner <> $2::bigint) ELSE j.held_by_admin AND e.t <> 'queued' END, ended_at = "
    "  CASE WHEN e.t = 'cancelled' THEN coalesce(j.ended_at, now()) END FROM old o, unnest($4::text[], "
    "  $5::text[]) AS e(f, t) WHERE j.id = o.id AND o.state = e.f AND o.owned AND NOT o.barred "
    "  AND NOT ($8 = 'job.release' AND " FETCHES("j") ") RETURNING j.id, j.state, "
    "  j.steps, j.stop_why, j.array_of, o.state AS before), " AUDITED("$7", "$8::text") "said AS (INSERT INTO events (job, "
    "  type, body) "
    "SELECT id, 'state', json_build_object('state', state, 'from', before, 'why', stop_why) FROM upd WHERE "
    "  state <> before OR stop_why IS NOT NULL) "
    "SELECT asked.id, old.state, upd.id IS NOT NULL OR EXISTS (SELECT 1 FROM upd e WHERE e.array_of = asked.id), "
    "  json_build_object('id', old.id, 'state', coalesce(upd.state, old.state), 'steps', (SELECT steps FROM jobs j WHERE j.id = old.id)), "
    "  old.owned, (SELECT name FROM users WHERE id = old.owner), " NOTIFY "0, 0, old.barred, " FETCHES("old") ", NULL "
    "FROM asked LEFT JOIN old ON old.id = asked.id LEFT JOIN upd ON upd.id = asked.id ORDER BY asked.n",
    PG_WRITE};
/* clang-format on */

/* The parameters are those of command_jobs, except that $6 is the number of further steps. */
/* clang-format off */
static const struct pg_statement resume_job = {
    "job_resume",
    "WITH asked AS MATERIALIZED (SELECT id FROM unnest($1::bigint[]) AS a(id)), "
    "old AS (SELECT j.id, j.state, j.steps, coalesce((SELECT max(c.step) FROM checkpoints c WHERE c.job = "
    "  j.id AND c.complete), 0) AS reached, j.owner, " OWNED("j", "$2", "$3") " AS owned, "
    "  j.state = 'held' AND j.held_by_admin AND NOT $3::boolean AS barred, j.files_gone_at FROM jobs j WHERE j.id IN (SELECT id FROM asked) AND " VISIBLE("j", "$2", "$3") " FOR UPDATE OF j), "
    "goal AS (SELECT *, CASE WHEN $6::bigint > 0 THEN reached + $6 ELSE steps END AS wanted FROM old), "
    "upd AS (UPDATE jobs j SET state = e.t, updated_at = now(), stop_why = NULL, why = NULL, code = NULL, "
    "  not_before = NULL, ended_at = NULL, swept_at = NULL, losses = 0, ended_by = NULL, held_by_admin = false, "
    "  depends = j.attempt = 0 AND EXISTS (SELECT 1 FROM job_after WHERE job = j.id), limit_from_ms = CASE WHEN "
    "  g.state = 'held' THEN j.limit_from_ms ELSE j.used_ms END, eligible_at = now(), steps = g.wanted, "
    "  spec = CASE WHEN $6 > 0 THEN jsonb_set(j.spec::jsonb, '{train,steps}', to_jsonb(g.wanted))::json ELSE j.spec END FROM goal g, unnest($4::text[], $5::text[]) AS e(f, t) WHERE "
    "  j.id = g.id AND g.owned AND NOT g.barred AND g.state = e.f AND (g.wanted > g.reached OR g.wanted = 0) AND g.wanted <= 1000000000 AND j.array_size = 0 AND j.files_gone_at IS NULL AND NOT " FETCHES("j") " RETURNING j.id, "
    "  j.state, j.steps, j.stop_why, g.state AS before), " AUDITED("$7", "$8::text") "said AS (INSERT INTO "
    "  events (job, type, body) "
    "SELECT id, 'state', json_build_object('state', state, 'from', before, 'why', 'resume') FROM upd) "
    "SELECT asked.id, g.state, upd.id IS NOT NULL, json_build_object('id', upd.id, 'state', upd.state, 'steps', "
    "  upd.steps), g.owned, (SELECT name FROM users WHERE id = g.owner), " NOTIFY "g.reached, g.wanted, g.barred, " FETCHES("g") ", motley_words(g.files_gone_at) "
    "FROM asked LEFT JOIN goal g ON g.id = asked.id LEFT JOIN upd ON upd.id = asked.id",
    PG_WRITE};
/* clang-format on */

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
    const long long id = pg_i64(result, row, COMMAND_ASKED), reached = pg_i64(result, row, COMMAND_REACHED),
                    wanted = pg_i64(result, row, COMMAND_WANTED);
    int from = state_from_name(&job_machine, pg_text(result, row, COMMAND_STATE));
    struct err refused;
    if (from < 0 || state_next(&job_machine, from, command->event, &refused) < 0)
        err_set(err, ERR_CONFLICT, "job %lld: %s", id, refused.text);
    else if (pg_bool(result, row, COMMAND_FETCHED))
        err_set(err, ERR_CONFLICT, "job %lld: its model %s", id,
                command->event == JOB_EVENT_RELEASE
                    ? "is still to be fetched, and then it is queued by itself"
                    : "was not fetched: submit the job again");
    else if (!pg_is_null(result, row, COMMAND_GONE))
        err_set(
            err, ERR_CONFLICT,
            "job %lld: its checkpoints went at %s, as its group does not keep them longer: submit it again",
            id, pg_text(result, row, COMMAND_GONE));
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
    const long long id = pg_i64(result, row, COMMAND_ASKED);
    err_clear(err);
    if (pg_is_null(result, row, COMMAND_STATE))
        err_set(err, ERR_NOT_FOUND, STORE_NO_JOB, id);
    else if (!pg_bool(result, row, COMMAND_OWNED))
        err_set(err, ERR_DENIED, "job %lld is %s's: only its owner or an administrator may change it", id,
                pg_text(result, row, COMMAND_OWNER));
    else if (pg_bool(result, row, COMMAND_BARRED))
        err_set(err, ERR_DENIED, "job %lld is held by an administrator, who alone may release it", id);
    else if (!pg_bool(result, row, COMMAND_CHANGED))
        explain(command, result, row, err);
}

static json_t *outcomes(const struct command_call *command, const struct pg_result *result)
{
    json_t *jobs = json_array(), *refused = json_array();
    for (int row = 0; row < pg_rows(result); row++) {
        struct err err;
        outcome_read(command, result, row, &err);
        if (err.code == ERR_NONE)
            json_array_append_new(jobs, pg_json(result, row, COMMAND_DOC));
        else
            json_array_append_new(refused, json_pack("{s:I, s:s, s:s}", "id",
                                                     (json_int_t)pg_i64(result, row, COMMAND_ASKED), "code",
                                                     err_code_name(err.code), "detail", err.text));
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
    json_t *doc = command->several ? outcomes(command, result) : pg_json(result, 0, COMMAND_DOC);
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

static int command_run(struct store *store, const struct principal *principal, const struct job_command *of,
                       bool several, store_doc_fn *done, void *arg, struct err *err)
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
    pg_params_init(&params);
    pg_param_i64_array(&params, of->ids, of->count);
    store_param_viewer(&params, principal);
    store_param_edges(&params, &job_machine, (int)of->event);
    if (of->event == JOB_EVENT_RESUME)
        pg_param_i64(&params, of->more_steps);
    else
        pg_param_text(&params, of->event == JOB_EVENT_CANCEL ? "cancel" : "hold");
    store_param_actor(&params, principal);
    pg_param_text(&params, audit_name(of->event));
    if (of->event != JOB_EVENT_RESUME)
        pg_param_text(&params, of->owner);
    const struct pg_step steps[] = {{&store_events_lock, NULL},
                                    {of->event == JOB_EVENT_RESUME ? &resume_job : &command_jobs, &params}};
    int rc = store_run(store, steps, 2, STORE_ALONE, &command->call, err);
    pg_params_fini(&params);
    return rc;
}

int store_job_command(struct store *store, const struct principal *principal, int64_t id,
                      enum job_event event, int64_t more_steps, store_doc_fn *done, void *arg,
                      struct err *err)
{
    const struct job_command of = {.event = event, .ids = &id, .count = 1, .more_steps = more_steps};
    return command_run(store, principal, &of, false, done, arg, err);
}

int store_jobs_command(struct store *store, const struct principal *principal, enum job_event event,
                       const int64_t *ids, size_t count, store_doc_fn *done, void *arg, struct err *err)
{
    const struct job_command of = {.event = event, .ids = ids, .count = count};
    if (count > STORE_PAGE_MAX)
        return err_set(err, ERR_INVALID, "ids: %zu jobs are more than %d", count, STORE_PAGE_MAX);
    return command_run(store, principal, &of, true, done, arg, err);
}

int store_owner_command(struct store *store, const struct principal *principal, enum job_event event,
                        const char *owner, store_doc_fn *done, void *arg, struct err *err)
{
    const struct job_command of = {.event = event, .owner = owner};
    return command_run(store, principal, &of, true, done, arg, err);
}

/* ---- changes of a job ---- */

void store_params_job(struct pg_params *params, int64_t id, const struct principal *principal)
{
    pg_params_init(params);
    pg_param_i64(params, id);
    store_param_viewer(params, principal);
}

int store_job_update(struct store *store, const struct pg_statement *statement, int64_t id,
                     struct pg_params *params, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[80], thing[64];
    snprintf(missing, sizeof(missing), STORE_NO_JOB, (long long)id);
    snprintf(thing, sizeof(thing), "job %lld", (long long)id);
    return store_one_change(store, statement, params, missing, thing, done, arg, err);
}

/* clang-format off */
static const struct pg_statement change_job = {
    "job_change",
    "WITH d AS (SELECT $4::jsonb AS d), "
    "old AS (SELECT id, owner, state, priority, begin_at, at_most, array_size, started_at, " OWNED("j", "$2", "$3") " AS owned FROM jobs j "
    "  WHERE id = $1 AND " VISIBLE("j", "$2", "$3") " FOR UPDATE), "
    "kept AS MATERIALIZED (SELECT CASE WHEN state IN ('succeeded', 'failed', 'cancelled') THEN "
    "      motley_refuse('MO005', format('job %s is %s', id, state)) "
    "    WHEN d ? 'begin' AND state NOT IN ('held', 'queued') THEN "
    "      motley_refuse('MO005', format('begin: job %s is %s', id, state)) "
    "    WHEN d ? 'begin' AND started_at IS NOT NULL THEN "
    "      motley_refuse('MO005', format('begin: job %s is %s and has started before', id, state)) "
    "    WHEN d ? 'at_most' AND array_size = 0 THEN motley_refuse('MO005', format('at_most: job %s is no array', id)) "
    "    ELSE true END AS kept FROM old, d WHERE owned), "
    "upd AS (UPDATE jobs j SET priority = coalesce((d ->> 'priority')::integer, j.priority), "
    "  begin_at = CASE WHEN d ? 'begin' THEN to_timestamp((d ->> 'begin_us')::bigint / 1e6) ELSE j.begin_at END, "
    "  at_most = CASE WHEN d ? 'at_most' AND j.id = old.id THEN coalesce((d ->> 'at_most')::integer, 0) ELSE j.at_most END, "
    "  spec = (j.spec::jsonb || (CASE WHEN j.id = old.id THEN d ELSE d - 'at_most' END) - 'begin_us')::json, updated_at = now() "
    "  FROM old, d, kept WHERE kept AND (j.id = old.id OR (j.array_of = old.id AND j.state IN ('held', 'queued'))) "
    "  RETURNING j.id, j.state, j.priority, j.begin_at, j.at_most), "
    "said AS ("
    AUDIT("$5", "'job.change'", "upd.id::text", "json_build_object('priority', old.priority, 'begin', motley_time(old.begin_at), 'at_most', old.at_most)", "(d.d - 'begin_us')::json", "upd JOIN old USING (id), d")
    "  ) "
    "SELECT old.owned, (SELECT name FROM users WHERE id = old.owner), json_build_object('id', upd.id, 'state', upd.state, "
    "  'priority', upd.priority, 'begins', motley_time(upd.begin_at), 'at_most', nullif(upd.at_most, 0)), "
    "  pg_notify('motley_jobs', '') FROM old LEFT JOIN upd ON upd.id = old.id",
    PG_WRITE};
/* clang-format on */

int store_job_change(struct store *store, const struct principal *principal, int64_t id,
                     const json_t *changes, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    store_params_job(&params, id, principal);
    pg_param_json(&params, changes);
    store_param_actor(&params, principal);
    return store_job_update(store, &change_job, id, &params, done, arg, err);
}

/* ---- longer time limits ---- */

/* clang-format off */
static const struct pg_statement extend_job = {
    "job_extend",
    "WITH old AS (SELECT id, owner, " OWNED("j", "$2", "$3") " AS owned FROM jobs j WHERE id = $1 AND " VISIBLE("j", "$2", "$3") "), "
    "upd AS (SELECT id, motley_extend(id, $4, $3::boolean) AS limit_ms FROM old WHERE owned), "
    "said AS ("
    AUDIT("$5", "'job.extend'", "upd.id::text", "NULL::json", "json_build_object('seconds', $4, 'limit_ms', upd.limit_ms)", "upd")
    "  ) "
    "SELECT old.owned, (SELECT name FROM users WHERE id = old.owner), json_build_object('id', upd.id, 'time_limit_s', "
    "  upd.limit_ms / 1000.0) FROM old LEFT JOIN upd ON true",
    PG_WRITE};
/* clang-format on */

int store_job_extend(struct store *store, const struct principal *principal, int64_t id, int64_t seconds,
                     store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    store_params_job(&params, id, principal);
    pg_param_i64(&params, seconds);
    store_param_actor(&params, principal);
    return store_job_update(store, &extend_job, id, &params, done, arg, err);
}

/* ---- visibility ---- */

/* clang-format off */
static const struct pg_statement share_job = {
    "job_share",
    "WITH old AS (SELECT id, owner, visibility, grp, " OWNED("j", "$2", "$3") " AS owned FROM jobs j WHERE id "
    "  = $1 AND " VISIBLE("j", "$2", "$3") " FOR UPDATE), "
    "upd AS (UPDATE jobs j SET visibility = $4, grp = motley_group($4, $5, $2, $3) FROM old WHERE "
    "  (j.id = old.id OR j.array_of = old.id) AND old.owned RETURNING j.id, j.visibility, old.visibility AS was), "
    "said AS ("
    AUDIT("$6", "'job.share'", "upd.id::text", "json_build_object('visibility', upd.was)", "json_build_object('visibility', upd.visibility, 'group', $5::text)", "upd")
    "  ) "
    "SELECT old.owned, (SELECT name FROM users WHERE id = old.owner), json_build_object('id', upd.id, "
    "  'visibility', upd.visibility, 'group', $5::text) "
    "FROM old LEFT JOIN upd ON upd.id = old.id",
    PG_WRITE};
/* clang-format on */

int store_job_share(struct store *store, const struct principal *principal, int64_t id,
                    const struct sharing *sharing, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    store_params_job(&params, id, principal);
    store_param_sharing(&params, sharing);
    store_param_actor(&params, principal);
    return store_job_update(store, &share_job, id, &params, done, arg, err);
}

/* ---- events ---- */

#define EVENTS_SQL(from_where)                                                                               \
    "SELECT json_build_object('events', coalesce(json_agg(json_build_object('id', t.id, 'job', t.job, "      \
    "       'type', t.type, 'at', motley_time(t.at), 'body', t.body) ORDER BY t.id), '[]'::json), "          \
    "       'next', CASE WHEN count(*) = $2 THEN max(t.id) END, 'last', coalesce(max(t.id), $1)) FROM "      \
    "(SELECT e.* FROM " from_where " ORDER BY e.id LIMIT $2) t"

static const struct pg_statement list_events = {
    "event_list", EVENTS_SQL("events e WHERE e.id > $1 AND e.job = $3 AND ($4::text IS NULL OR e.type = $4)"),
    PG_READ};

int store_event_list(struct store *store, int64_t job, const char *type, int64_t after, unsigned limit,
                     store_doc_fn *done, void *arg, struct err *err)
{
    if (limit < 1 || limit > 1000)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..1000", limit);
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, after);
    pg_param_i64(&params, limit);
    pg_param_i64(&params, job);
    pg_param_text(&params, type);
    return store_one_doc(store, &list_events, &params, NULL, done, arg, err);
}

static const struct pg_statement feed_events = {
    "event_feed",
    "SELECT json_build_object('events', coalesce(json_agg(json_build_object('id', t.id, 'job', t.job, "
    "'owner', "
    "       t.owner, 'type', t.type, 'at', motley_time(t.at), 'body', t.body) ORDER BY t.id), '[]'::json), "
    "       'horizon', (SELECT coalesce(max(id), 0) FROM events)) "
    "FROM (SELECT e.*, u.name AS owner FROM events e JOIN jobs j ON j.id = e.job JOIN users u ON u.id = "
    "j.owner "
    "      WHERE e.id > $1 AND ($3::boolean AND e.type = 'state' OR e.job = ANY ($4::bigint[])) "
    "      ORDER BY e.id LIMIT $2) t",
    PG_READ};

int store_event_feed(struct store *store, int64_t after, unsigned limit,
                     const struct store_feed_filter *filter, store_doc_fn *done, void *arg, struct err *err)
{
    if (limit < 1 || limit > 1000)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..1000", limit);
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, after);
    pg_param_i64(&params, limit);
    pg_param_bool(&params, filter->states);
    pg_param_i64_array(&params, filter->jobs, filter->job_count);
    return store_one_doc(store, &feed_events, &params, NULL, done, arg, err);
}
