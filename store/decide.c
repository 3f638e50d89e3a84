/* Writes what the scheduler decided, as one transaction: runs, jobs and messages are written together or not
 * at all. */
#include "store/sched.h"
#include "store/store_private.h"

#include <stdio.h>

/* clang-format off */
#define UNFINISHED "('sent', 'ready', 'running')"

static const struct pg_statement add_runs = {
    "decide_runs_new",
    "WITH c AS MATERIALIZED (SELECT * FROM "
    RECORDS("run bigint, job bigint, attempt integer, epoch bigint, plan json, answer json, start_step bigint, "
            "ranks json") "), "
    "made AS (INSERT INTO runs (id, job, attempt, epoch, state, plan, answer, start_step) "
    "  SELECT run, job, attempt, epoch, 'starting', plan, answer, start_step FROM c RETURNING 1) "
    "INSERT INTO assignments (id, run, rank, node, device, state) "
    "SELECT x.assignment, c.run, x.rank, x.node, x.device, 'sent' FROM c, "
    "json_to_recordset(c.ranks) AS x(assignment bigint, rank integer, node text, device text)",
    PG_WRITE};

static const struct pg_statement lose_ranks = {
    "decide_ranks_lost",
    "UPDATE assignments a SET state = 'lost', why = coalesce(a.why, c.why) FROM "
    RECORDS("run bigint, rank integer, why text")
    " WHERE a.run = c.run AND a.rank = c.rank AND a.state IN " UNFINISHED,
    PG_WRITE};

/* A run that ends also drops its unconfirmed messages, and its unfinished ranks become lost. */
static const struct pg_statement move_runs = {
    "decide_runs",
    "WITH c AS MATERIALIZED (SELECT *, state NOT IN ('starting', 'running', 'stopping') AS final FROM "
    RECORDS("run bigint, before text, state text, stop_why text, why text, kill boolean") "), "
    "upd AS (UPDATE runs r SET state = c.state, stop_why = coalesce(c.stop_why, r.stop_why), "
    "  why = coalesce(c.why, r.why), "
    "  started_at = CASE WHEN c.state = 'running' THEN now() ELSE r.started_at END, "
    "  stopping_at = CASE WHEN c.state = 'stopping' THEN coalesce(r.stopping_at, now()) ELSE r.stopping_at END, "
    "  killed_at = CASE WHEN c.kill THEN now() ELSE r.killed_at END, "
    "  ended_at = CASE WHEN c.final THEN now() END "
    "  FROM c WHERE r.id = c.run AND r.state = c.before RETURNING 1), "
    "dropped AS (DELETE FROM outbox WHERE run IN (SELECT run FROM c WHERE final) RETURNING 1), "
    "lost AS (UPDATE assignments SET state = 'lost' WHERE run IN (SELECT run FROM c WHERE final) "
    "  AND state IN " UNFINISHED " RETURNING 1) "
    "SELECT motley_expect((SELECT count(*) FROM upd), (SELECT count(*) FROM c), 'runs')",
    PG_WRITE};

static const struct pg_statement move_jobs = {
    "decide_jobs",
    "WITH c AS MATERIALIZED (SELECT *, state IN ('succeeded', 'failed', 'cancelled') AS final FROM "
    RECORDS("job bigint, before text, state text, stop_why text, why text, code text, delay_ms bigint, loss boolean, "
            "run bigint") "), "
    "upd AS (UPDATE jobs j SET state = c.state, "
    "  stop_why = CASE WHEN c.state = 'stopping' THEN coalesce(c.stop_why, j.stop_why) END, "
    "  why = c.why, code = c.code, updated_at = now(), run = coalesce(c.run, j.run), "
    "  attempt = j.attempt + CASE WHEN c.run IS NULL THEN 0 ELSE 1 END, "
    "  losses = j.losses + CASE WHEN c.loss THEN 1 ELSE 0 END, "
    "  not_before = CASE WHEN c.delay_ms > 0 THEN now() + c.delay_ms * interval '1 ms' END, "
    "  started_at = CASE WHEN c.state = 'running' THEN coalesce(j.started_at, now()) ELSE j.started_at END, "
    "  ended_at = CASE WHEN c.final THEN now() END, "
    "  used_ms = j.used_ms + CASE WHEN c.before IN ('starting', 'running', 'stopping') "
    "    AND c.state NOT IN ('starting', 'running', 'stopping') THEN coalesce((SELECT "
    "    (extract(epoch FROM now() - r.created_at) * 1000)::bigint FROM runs r WHERE r.id = j.run), 0) ELSE 0 END "
    "  FROM c WHERE j.id = c.job AND j.state = c.before "
    "  RETURNING j.id, c.before, j.state, j.why, j.code, j.stop_why, j.attempt), "
    "said AS (INSERT INTO events (job, type, body) SELECT id, 'state', json_strip_nulls(json_build_object("
    "  'state', state, 'from', before, 'why', coalesce(why, stop_why), 'code', code, 'attempt', attempt)) "
    "  FROM upd WHERE state <> before RETURNING job) "
    "SELECT motley_expect((SELECT count(*) FROM upd), (SELECT count(*) FROM c), 'jobs'), "
    "       (SELECT count(pg_notify('motley_events', job::text)) FROM said)",
    PG_WRITE};

static const struct pg_statement say_waits = {
    "decide_waits",
    "UPDATE jobs j SET why = c.why FROM " RECORDS("job bigint, why text")
    " WHERE j.id = c.job AND j.state = 'queued' AND j.why IS DISTINCT FROM c.why",
    PG_WRITE};

static const struct pg_statement open_requests = {
    "decide_requests",
    "INSERT INTO requests AS r (id, kind, device, key, content, digest, deadline_at) "
    "SELECT id, kind, device, key, content, coalesce(digest, ''), now() + deadline_ms * interval '1 ms' FROM "
    RECORDS("id bigint, kind text, device text, key text, content text, digest text, deadline_ms bigint")
    " ON CONFLICT (kind, device, key) DO UPDATE SET id = excluded.id, state = 'open', why = NULL, asked_at = now(), "
    "  deadline_at = excluded.deadline_at, content = excluded.content, digest = excluded.digest, "
    "  tries = CASE WHEN r.digest = excluded.digest THEN r.tries + 1 ELSE 1 END",
    PG_WRITE};

static const struct pg_statement put_links = {
    "decide_links",
    "INSERT INTO links (from_node, to_node, document) SELECT c.\"from\", c.\"to\", c.document FROM "
    RECORDS("\"from\" text, \"to\" text, document json")
    " ON CONFLICT (from_node, to_node) DO UPDATE SET document = excluded.document, measured_at = now()",
    PG_WRITE};

static const struct pg_statement lose_nodes = {
    "decide_unreachable",
    "UPDATE nodes SET state = 'unreachable' WHERE state = 'alive' "
    "AND name IN (SELECT json_array_elements_text($1::json))",
    PG_WRITE};

static const struct pg_statement say_lines = {
    "decide_said",
    "WITH c AS MATERIALIZED (SELECT * FROM " RECORDS("job bigint, level text, text text") "), "
    "made AS (INSERT INTO events (job, type, body) SELECT job, 'log', json_build_object('level', level, 'text', text) "
    "  FROM c RETURNING job) "
    "SELECT count(pg_notify('motley_events', job::text)) FROM made",
    PG_WRITE};

static const struct pg_statement add_messages = {
    "decide_messages",
    "WITH c AS MATERIALIZED (SELECT nextval('outbox_id_seq') AS id, x.* FROM (SELECT *, row_number() OVER () AS n "
    "  FROM " RECORDS("node text, run bigint, type text, payload json") ") x), "
    "made AS (INSERT INTO outbox (id, node, run, type, payload) SELECT id, node, run, type, payload FROM c ORDER BY n "
    "  RETURNING 1) "
    "SELECT json_agg(id ORDER BY n) FROM c",
    PG_WRITE};

static const struct pg_statement no_messages = {"decide_no_messages", "SELECT '[]'::json", PG_READ};
/* clang-format on */

int store_decide(struct store *store, const struct store_decision *decision, store_doc_fn *done, void *arg,
                 struct err *err)
{
    const struct store_part parts[] = {
        {&lose_nodes, decision->unreachable}, {&add_runs, decision->runs_new},
        {&lose_ranks, decision->ranks_lost},  {&move_jobs, decision->jobs},
        {&move_runs, decision->runs},         {&say_waits, decision->waits},
        {&open_requests, decision->requests}, {&put_links, decision->links},
        {&say_lines, decision->said},         {&add_messages, decision->messages},
    };
    struct store_work work;
    store_work_init(&work, decision->leader, parts, sizeof(parts) / sizeof(parts[0]));
    if (json_array_size(decision->messages) == 0) {
        work.steps[work.count++] = (struct pg_step){&no_messages, NULL};
    }
    int rc = store_run_doc(store, work.steps, work.count, STORE_ALONE, NULL, done, arg, err);
    store_work_fini(&work);
    return rc;
}

/* ---- what was refused ---- */

/* clang-format off */
static const struct pg_statement mark_nodes = {
    "mark_nodes",
    /* the reason of a bar is kept; messages refused later do not replace it */
    "UPDATE nodes n SET refused = n.refused + c.refused, "
    "mark = CASE WHEN n.barred THEN n.mark ELSE c.why END, marked_at = now(), barred = n.barred OR c.barred FROM "
    RECORDS("node text, generation bigint, refused bigint, why text, barred boolean")
    " WHERE n.name = c.node AND n.generation = c.generation",
    PG_WRITE};
static const struct pg_statement count_refused = {
    "count_refused",
    "INSERT INTO refused_events AS e (reason, n) SELECT r.key, sum(r.value::bigint) FROM " RECORDS("reasons json")
    ", json_each_text(c.reasons) r GROUP BY r.key ON CONFLICT (reason) DO UPDATE SET n = e.n + excluded.n",
    PG_WRITE};
/* clang-format on */

int store_node_mark(struct store *store, int64_t leader, const json_t *marks, store_done_fn *done, void *arg,
                    struct err *err)
{
    const struct store_part parts[] = {{&mark_nodes, marks}, {&count_refused, marks}};
    struct store_work work;
    store_work_init(&work, leader, parts, sizeof(parts) / sizeof(parts[0]));
    int rc = store_run_done(store, work.steps, work.count, STORE_ALONE, done, arg, err);
    store_work_fini(&work);
    return rc;
}
