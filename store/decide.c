/* Writes what the scheduler decided, as one transaction: runs, jobs and messages are written together or not
 * at all. */
#include "store/sched.h"
#include "store/store_private.h"

#include <stdio.h>
#include <string.h>

/* clang-format off */
#define UNFINISHED "('sent', 'ready', 'running')"

/* What a job with train.compute: auto is computed in is decided with its first run, and then stays.
 * The job is looked up in subqueries. A join would be slow: PostgreSQL expects 10,000 rows from two lists of
 * records, and so reads all jobs. */
static const struct pg_statement add_runs = {
    "decide_runs_new",
    "WITH c AS MATERIALIZED (SELECT * FROM "
    RECORDS("run bigint, job bigint, attempt integer, epoch bigint, plan json, answer json, timeline text, start_step bigint, "
            "step_s double precision, save_bytes bigint, load_bytes bigint, ranks json, compute text, key text") "), "
    "made AS (INSERT INTO runs (id, job, attempt, epoch, state, plan, answer, timeline, start_step, step_s, load_bytes, key, placement, corrected, save_bytes, reported) "
    "  SELECT run, job, attempt, epoch, 'starting', plan, answer, timeline, start_step, step_s, coalesce(load_bytes, 0), key, plan ->> 'placement', (plan -> 'costs' ->> 'corrected')::float8, coalesce((SELECT p.save_bytes FROM runs p "
    "    WHERE p.job = c.job AND p.saved_at IS NOT NULL ORDER BY p.attempt DESC LIMIT 1), c.save_bytes, 0), (SELECT step FROM jobs WHERE id = c.job) FROM c RETURNING 1), "
    "fixed AS (UPDATE jobs j SET inputs = (j.inputs::jsonb || jsonb_build_object('compute', c.compute))::json FROM c "
    "  WHERE j.id = c.job AND c.compute IS NOT NULL AND j.inputs ->> 'compute' IS NULL RETURNING 1), "
    "x AS MATERIALIZED (SELECT c.run, c.job, x.* FROM c, json_to_recordset(c.ranks) AS x(assignment bigint, rank integer, "
    "  node text, device text, busy_s double precision, speed double precision, origin text, factor double precision)), "
    "held AS (INSERT INTO ledger (assignment, run, job, user_id, account, device, speed, origin, factor) "
    "  SELECT x.assignment, x.run, x.job, (SELECT owner FROM jobs WHERE id = x.job), coalesce((SELECT g.name FROM jobs j "
    "    JOIN groups g ON g.id = j.account WHERE j.id = x.job), ''), x.device, coalesce(x.speed, 1), coalesce(x.origin, ''), "
    "    coalesce(x.factor, 1) FROM x) "
    "INSERT INTO assignments (id, run, rank, node, device, state, busy_s) "
    "SELECT assignment, run, rank, node, device, 'sent', busy_s FROM x",
    PG_WRITE};

static const struct pg_statement lose_ranks = {
    "decide_ranks_lost",
    "UPDATE assignments a SET state = 'lost', why = coalesce(a.why, c.why) FROM "
    RECORDS("run bigint, rank integer, why text")
    " WHERE a.run = c.run AND a.rank = c.rank AND a.state IN " UNFINISHED,
    PG_WRITE};

/* When a run ends, its unconfirmed messages are dropped and its unfinished ranks become lost. The first of its
 * steps fills caches and is no measure. */
static const struct pg_statement move_runs = {
    "decide_runs",
    "WITH c AS MATERIALIZED (SELECT *, state NOT IN ('starting', 'running', 'stopping') AS final FROM "
    RECORDS("run bigint, before text, state text, stop_why text, why text, kill boolean") "), "
    "upd AS (UPDATE runs r SET state = c.state, stop_why = coalesce(c.stop_why, r.stop_why), "
    "  why = coalesce(c.why, r.why), "
    "  started_at = CASE WHEN c.state = 'running' THEN now() ELSE r.started_at END, "
    "  stopping_at = CASE WHEN c.state = 'stopping' THEN coalesce(r.stopping_at, now()) ELSE r.stopping_at END, "
    "  killed_at = CASE WHEN c.kill THEN now() ELSE r.killed_at END, "
    "  ended_at = CASE WHEN c.final THEN now() END, measured_s = CASE WHEN c.final THEN (SELECT percentile_cont(0.5) "
    "    WITHIN GROUP (ORDER BY m.seconds) FROM (SELECT " STEP_SECONDS " AS seconds FROM metrics m WHERE m.job = r.job AND m.kind = 'step' "
    "      AND m.step > r.reported ORDER BY m.step LIMIT 200) m HAVING count(*) >= 4) END "
    "  FROM c WHERE r.id = c.run AND r.state = c.before RETURNING 1), "
    "dropped AS (DELETE FROM outbox WHERE run IN (SELECT run FROM c WHERE final) RETURNING 1), "
    "lost AS (UPDATE assignments SET state = 'lost' WHERE run IN (SELECT run FROM c WHERE final) "
    "  AND state IN " UNFINISHED " RETURNING 1) "
    "SELECT motley_expect((SELECT count(*) FROM upd), (SELECT count(*) FROM c), 'runs')",
    PG_WRITE};

static const struct pg_statement ask_saves = {
    "decide_saves",
    "UPDATE runs r SET save_asked_at = CASE WHEN c.wait_ms IS NULL THEN r.save_asked_at ELSE now() END, "
    "  save_by = now() + c.wait_ms * interval '1 ms', save_why = c.why, save_for = c.for_job, "
    "  saves_missed = r.saves_missed + CASE WHEN c.missed THEN 1 ELSE 0 END FROM "
    RECORDS("run bigint, wait_ms bigint, why text, for_job bigint, missed boolean")
    " WHERE r.id = c.run AND r.state = 'running'",
    PG_WRITE};

static const struct pg_statement move_jobs = {
    "decide_jobs",
    "WITH c AS MATERIALIZED (SELECT *, state IN ('succeeded', 'failed', 'cancelled') AS final FROM "
    RECORDS("job bigint, before text, state text, stop_why text, why text, code text, ended_by text, behind boolean, delay_ms bigint, losses integer, "
            "run bigint") "), "
    "upd AS (UPDATE jobs j SET state = c.state, "
    "  stop_why = CASE WHEN c.state = 'stopping' THEN coalesce(c.stop_why, j.stop_why) END, "
    "  why = c.why, code = c.code, ended_by = c.ended_by, eligible_at = CASE WHEN c.behind THEN now() ELSE j.eligible_at END, updated_at = now(), run = coalesce(c.run, j.run), "
    "  starts_at = NULL, starts_from = NULL, starts_to = NULL, wait_code = NULL, wait_subject = NULL, "
    "  attempt = j.attempt + CASE WHEN c.run IS NULL THEN 0 ELSE 1 END, "
    "  losses = coalesce(c.losses, j.losses), "
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

/* Drains the devices of a node on which three starts of at least two people's jobs failed within a day
 * without a fault of the jobs. A start has failed when its run ended before all ranks ran. A rank that only
 * lost the connection to its peers does not count, nor one whose agent was about to end. */
static const struct pg_statement drain_nodes = {
    "decide_drain_nodes",
    "WITH ended AS (SELECT DISTINCT a.node FROM " RECORDS("run bigint, state text") " JOIN runs r ON r.id = c.run "
    "    JOIN assignments a ON a.run = r.id WHERE c.state = 'lost' AND r.started_at IS NULL), "
    "bad AS (SELECT e.node, count(DISTINCT r.id) AS starts, count(DISTINCT j.owner) AS people, max(a.why) AS why "
    "  FROM ended e JOIN nodes n ON n.name = e.node JOIN assignments a ON a.node = e.node JOIN runs r ON r.id = a.run "
    "  JOIN jobs j ON j.id = r.job WHERE r.state = 'lost' AND r.started_at IS NULL AND a.state = 'failed' AND NOT a.own_fault "
    "  AND coalesce(a.code, '') NOT IN ('network', 'timeout') AND (coalesce(a.code, '') <> 'cancelled' OR r.killed_at IS NOT NULL) AND r.ended_at > greatest(n.starts_from, now() - interval '1 day') "
    "  GROUP BY e.node HAVING count(DISTINCT r.id) >= 3 AND count(DISTINCT j.owner) >= 2) "
    "UPDATE devices d SET drained = true, drain_at = 'infinity', drain_why = coalesce(d.drain_why, "
    "  format('%s starts of %s people failed on %s within a day; the last: %s', bad.starts, bad.people, bad.node, bad.why)) "
    "FROM bad WHERE d.node = bad.node AND NOT d.drained",
    PG_WRITE};

/* A row without a document only says which plan the job's next run begins with: none. */
static const struct pg_statement put_trials = {
    "decide_trials",
    "WITH c AS MATERIALIZED (SELECT * FROM " RECORDS("job bigint, open boolean, document json, plans json, plan text") "), "
    "pinned AS (UPDATE jobs j SET inputs = (CASE WHEN c.plan IS NULL THEN j.inputs::jsonb - 'plan' "
    "    ELSE j.inputs::jsonb || jsonb_build_object('plan', c.plan) END)::json FROM c "
    "  WHERE j.id = c.job AND j.inputs ->> 'plan' IS DISTINCT FROM c.plan RETURNING 1) "
    "INSERT INTO trials AS t (job, open, document, plans) SELECT job, open, document, coalesce(plans, '{}') FROM c WHERE document IS NOT NULL "
    "ON CONFLICT (job) DO UPDATE SET open = excluded.open, document = excluded.document, plans = CASE WHEN excluded.open THEN t.plans "
    "  ELSE (SELECT coalesce(json_object_agg(key, value), '{}') FROM json_each(t.plans) WHERE key = excluded.document ->> 'plan') END",
    PG_WRITE};

static const struct pg_statement say_waits = {
    "decide_waits",
    "UPDATE jobs j SET why = c.why FROM " RECORDS("job bigint, why text")
    " WHERE j.id = c.job AND j.state = 'queued' AND j.why IS DISTINCT FROM c.why",
    PG_WRITE};

static const struct pg_statement say_places = {
    "decide_places",
    "UPDATE jobs j SET starts_at = CASE WHEN c.starts_us > 0 THEN to_timestamp(c.starts_us / 1e6) END, "
    "  starts_from = to_timestamp(c.from_us / 1e6), starts_to = to_timestamp(c.to_us / 1e6), "
    "  wait_code = c.code, wait_subject = c.subject FROM "
    RECORDS("job bigint, starts_us bigint, from_us bigint, to_us bigint, code text, subject bigint")
    " WHERE j.id = c.job AND j.state = 'queued'",
    PG_WRITE};

/* Writes the list of the queue in place of the last one (migrations/0006_sharing.sql). */
static const struct pg_statement list_queue = {
    "decide_listing",
    "WITH c AS MATERIALIZED (SELECT * FROM " RECORDS("chunks json, reasons json") "), "
    "p AS MATERIALIZED (SELECT p.* FROM c, json_to_recordset(c.chunks) AS p(chunk bigint, jobs bigint[], places integer[], reasons integer[])), "
    "r AS MATERIALIZED (SELECT r.* FROM c, json_to_recordset(c.reasons) AS r(id integer, code text, subject bigint, why text)), "
    "gone AS (DELETE FROM queue_places WHERE chunk NOT IN (SELECT chunk FROM p)), "
    "lost AS (DELETE FROM queue_reasons WHERE id NOT IN (SELECT id FROM r)), "
    "said AS (INSERT INTO queue_reasons AS q (id, code, subject, why) SELECT id, code, subject, why FROM r "
    "  ON CONFLICT (id) DO UPDATE SET code = excluded.code, subject = excluded.subject, why = excluded.why "
    "  WHERE (q.code, q.subject, q.why) IS DISTINCT FROM (excluded.code, excluded.subject, excluded.why)) "
    "INSERT INTO queue_places AS q (chunk, jobs, places, reasons) SELECT chunk, jobs, places, reasons FROM p "
    "ON CONFLICT (chunk) DO UPDATE SET jobs = excluded.jobs, places = excluded.places, reasons = excluded.reasons "
    "WHERE (q.jobs, q.places, q.reasons) IS DISTINCT FROM (excluded.jobs, excluded.places, excluded.reasons)",
    PG_WRITE};

static const struct pg_statement free_jobs = {
    "decide_ready",
    "UPDATE jobs j SET depends = false, eligible_at = now(), why = NULL, wait_code = NULL, wait_subject = NULL FROM "
    RECORDS("job bigint") " WHERE j.id = c.job AND j.state = 'queued'",
    PG_WRITE};

/* Makes elements of arrays into jobs. An element takes everything from its array except what its own
 * specification says; it counts as waiting since the array does. */
static const struct pg_statement make_elements = {
    "decide_elements",
    "WITH c AS MATERIALIZED (SELECT * FROM " RECORDS("\"array\" bigint, index integer, name text, spec json, steps bigint") "), "
    "made AS (INSERT INTO jobs (owner, name, state, priority, spec, inputs, steps, retries_max, time_limit_ms, labels, account, "
    "    service, begin_at, eligible_at, visibility, grp, array_of, array_index) "
    "  SELECT j.owner, c.name, 'queued', j.priority, c.spec, (j.inputs::jsonb - 'rows')::json, c.steps, j.retries_max, "
    "    j.time_limit_ms, j.labels, j.account, j.service, j.begin_at, j.eligible_at, j.visibility, j.grp, j.id, c.index "
    "  FROM c JOIN jobs j ON j.id = c.\"array\" WHERE j.state = 'queued' AND c.index >= j.array_made ORDER BY j.id, c.index "
    "  RETURNING id, array_of, state), "
    "upd AS (UPDATE jobs j SET array_made = j.array_made + m.n, updated_at = now() "
    "  FROM (SELECT array_of, count(*) AS n FROM made GROUP BY array_of) m WHERE j.id = m.array_of), "
    "counted AS (INSERT INTO job_counts (state, n) SELECT state, count(*) FROM made GROUP BY state) "
    "SELECT count(*) FROM made",
    PG_WRITE};

static const struct pg_statement open_requests = {
    "decide_requests",
    "INSERT INTO requests AS r (id, kind, device, key, content, digest, deadline_at) "
    "SELECT DISTINCT ON (kind, device, key) id, kind, device, key, content, coalesce(digest, ''), now() + deadline_ms * interval '1 ms' FROM "
    RECORDS("id bigint, kind text, device text, key text, content text, digest text, deadline_ms bigint")
    " ORDER BY kind, device, key, id DESC ON CONFLICT (kind, device, key) DO UPDATE SET id = excluded.id, state = 'open', asked_at = now(), "
    "  deadline_at = excluded.deadline_at, content = excluded.content, digest = excluded.digest, "
    "  tries = CASE WHEN r.digest = excluded.digest THEN r.tries + 1 ELSE 1 END",
    PG_WRITE};

static const struct pg_statement put_links = {
    "decide_links",
    "INSERT INTO links (from_node, to_node, document) SELECT DISTINCT ON (c.\"from\", c.\"to\") c.\"from\", c.\"to\", c.document FROM "
    RECORDS("\"from\" text, \"to\" text, document json")
    " ORDER BY c.\"from\", c.\"to\" ON CONFLICT (from_node, to_node) DO UPDATE SET document = excluded.document, measured_at = now(), changed = excluded.changed",
    PG_WRITE};

static const struct pg_statement lose_nodes = {
    "decide_unreachable",
    "UPDATE nodes n SET state = 'unreachable', lost_at = now() + c.left_ms * interval '1 ms' FROM "
    RECORDS("node text, left_ms bigint") " WHERE n.state IN ('alive', 'unreachable') AND n.name = c.node",
    PG_WRITE};

static const struct pg_statement say_lines = {
    "decide_said",
    "WITH c AS MATERIALIZED (SELECT * FROM " RECORDS("job bigint, level text, text text, move json") "), "
    "made AS (INSERT INTO events (job, type, body) SELECT job, 'log', json_strip_nulls(json_build_object('level', level, "
    "  'text', text, 'move', move)) "
    "  FROM c RETURNING job) "
    "SELECT count(pg_notify('motley_events', job::text)) FROM made",
    PG_WRITE};

static const struct pg_statement put_speeds = {
    "decide_speeds",
    "WITH priced AS (UPDATE runs r SET priced_s = c.step_s FROM " RECORDS("run bigint, step_s double precision") " WHERE r.id = c.run RETURNING 1) "
    "INSERT INTO device_speeds (device, key, speed, run) SELECT DISTINCT ON (c.device, c.key) c.device, c.key, c.speed, c.run FROM "
    RECORDS("device text, key text, speed double precision, run bigint")
    " ORDER BY c.device, c.key, c.run DESC ON CONFLICT (device, key) DO UPDATE SET speed = excluded.speed, run = excluded.run, at = now()",
    PG_WRITE};

static const struct pg_statement want_measures = {
    "decide_measures",
    "INSERT INTO measures (key, spec, inputs, until) SELECT DISTINCT ON (c.key) c.key, c.spec, c.inputs, now() + interval '1 day' FROM "
    RECORDS("key text, spec json, inputs json")
    " ORDER BY c.key ON CONFLICT (key) DO UPDATE SET until = greatest(measures.until, excluded.until)",
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

/* clang-format off */
/* Begins the charge of a lease that began, and closes the charge of a lease that has ended. Maintenance, and
 * a lease that was given back before it began, are not charged. */
static const struct pg_statement idle_leases = {
    "decide_leases_idle",
    "UPDATE leases l SET ends = greatest(l.begins, now()), note = left(l.note || ' (idle: ended early)', 500) FROM "
    RECORDS("id bigint, idle boolean") " WHERE c.idle AND l.id = c.id AND l.ends > now()",
    PG_WRITE};
static const struct pg_statement open_leases = {
    "decide_leases_open",
    "WITH due AS (UPDATE leases l SET opened = true FROM " RECORDS("id bigint")
    " WHERE l.id = c.id AND NOT l.opened AND l.begins <= now() RETURNING l.*) "
    "INSERT INTO ledger (assignment, run, job, user_id, account, device, begins, origin) "
    "SELECT -id, 0, 0, user_id, account, device, f.begins, 'lease' FROM due CROSS JOIN LATERAL "
    "  (SELECT greatest(due.begins, max(coalesce(g.ends, now()))) AS begins FROM ledger g "
    "   WHERE g.device = due.device AND (g.ends IS NULL OR g.ends > due.begins)) f WHERE kind = 'lease' AND ends > f.begins",
    PG_WRITE};
static const struct pg_statement settle_leases = {
    "decide_leases_settle",
    "WITH due AS (UPDATE leases l SET settled = true FROM " RECORDS("id bigint")
    " WHERE l.id = c.id AND NOT l.settled AND l.ends <= now() RETURNING l.id, l.ends) "
    "UPDATE ledger g SET ends = due.ends, closed = nextval('ledger_closings') FROM due "
    "WHERE g.assignment = -due.id AND g.ends IS NULL",
    PG_WRITE};
/* clang-format on */

/* The statements in the order in which they run. */
static int decision_parts(const struct store_decision *decision, struct store_part parts[STORE_PARTS_MAX])
{
    const struct store_part all[] = {
        {&lose_nodes, decision->unreachable},
        {&add_runs, decision->runs_new},
        {&lose_ranks, decision->ranks_lost},
        {&ask_saves, decision->saves},
        {&move_jobs, decision->jobs},
        {&put_trials, decision->trials},
        {&move_runs, decision->runs},
        {&drain_nodes, decision->ends},
        {&store_put_forecasts, decision->forecasts},
        {&store_put_arrivals, decision->arrivals},
        {&store_end_forecasts, decision->ends},
        {&store_put_sharing, decision->sharing},
        {&store_put_sooner, decision->sooner},
        {&say_waits, decision->waits},
        {&say_places, decision->places},
        {&list_queue, decision->listing},
        {&free_jobs, decision->ready},
        {&idle_leases, decision->leases},
        {&open_leases, decision->leases},
        {&settle_leases, decision->leases},
        {&open_requests, decision->requests},
        {&put_links, decision->links},
        {&say_lines, decision->said},
        {&put_speeds, decision->speeds},
        {&want_measures, decision->measures},
        {&make_elements, decision->elements},
        {&add_messages, decision->messages},
    };
    _Static_assert(STORE_DECISION_ARRAYS == 24, "a new array of a decision needs a statement in `all`");
    memcpy(parts, all, sizeof(all));
    return sizeof(all) / sizeof(all[0]);
}

const json_t *store_decision_failed(const struct store_decision *decision, const struct err *err)
{
    struct store_part parts[STORE_PARTS_MAX];
    const int count = decision_parts(decision, parts);
    const size_t size = strcspn(err->text, ":"); /* the text begins with the statement's name */
    for (int i = 0; i < count; i++)
        if (strlen(parts[i].statement->name) == size &&
            strncmp(parts[i].statement->name, err->text, size) == 0)
            return parts[i].rows;
    return NULL;
}

int store_decide(struct store *store, const struct store_decision *decision, store_doc_fn *done, void *arg,
                 struct err *err)
{
    struct store_part parts[STORE_PARTS_MAX];
    struct store_work work;
    store_work_init(&work, decision->leader, parts, decision_parts(decision, parts));
    if (json_array_size(decision->messages) == 0)
        work.steps[work.count++] = (struct pg_step){&no_messages, NULL};
    int rc = store_run_doc(store, work.steps, work.count, STORE_ALONE, NULL, done, arg, err);
    store_work_fini(&work);
    return rc;
}

/* ---- refused events ---- */

/* clang-format off */
static const struct pg_statement mark_nodes = {
    "mark_nodes",
    /* the reason for which a node was barred is kept; later refusals do not replace it */
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
