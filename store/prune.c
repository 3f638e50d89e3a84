/* Keeps the tables bounded. One call is one transaction that removes at most `rows` rows of a table, so it
 * holds no lock for long. Of a job that has not ended it removes only old events and old lines of ranks, and
 * it takes no lock that a submit would wait for. */
#include "store/sched.h"
#include "store/store_private.h"

/* clang-format off */
/* Parameters: $1: days; $2: rows; $3: milliseconds that a request is kept after its deadline. */
static const struct pg_statement old_events = {
    "prune_events",
    "WITH e AS (DELETE FROM events WHERE id IN (SELECT id FROM events "
    "           WHERE at < now() - $1::integer * interval '1 day' ORDER BY id LIMIT $2) RETURNING 1), "
    "t AS (DELETE FROM traces WHERE ctid = ANY (ARRAY(SELECT t.ctid FROM traces t JOIN runs r ON r.id = t.run "
    "      WHERE r.ended_at < now() - $1::integer * interval '1 day' LIMIT $2)) RETURNING 1), "
    "w AS (DELETE FROM join_tokens WHERE expires_at < now() - interval '7 days' RETURNING 1), "
    "q AS (DELETE FROM requests WHERE deadline_at < now() - $3::bigint * interval '1 ms' RETURNING 1), "
    "u AS (DELETE FROM unknown_jobs WHERE reported_at < now() - $1::integer * interval '1 day' RETURNING 1), "
    "n AS (DELETE FROM notices WHERE id IN (SELECT id FROM notices WHERE at < now() - $1::integer * interval '1 day' "
    "      ORDER BY at LIMIT $2) RETURNING 1), "
    "a AS (DELETE FROM answers WHERE (asker, key) IN (SELECT asker, key FROM answers WHERE at < now() - interval '1 day' LIMIT $2) "
    "      RETURNING 1) "
    "SELECT set_config('motley.pruned', greatest((SELECT count(*) FROM e), (SELECT count(*) FROM t), "
    "  (SELECT count(*) FROM w) + (SELECT count(*) FROM q) + (SELECT count(*) FROM u), (SELECT count(*) FROM a), (SELECT count(*) FROM n))::text, true)",
    PG_WRITE};

/* A running job adds one metrics line per rank and step. $1: steps to keep; $2: rows. */
static const struct pg_statement old_ranks = {
    "prune_ranks",
    "WITH k AS (DELETE FROM metrics WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM jobs j JOIN metrics x "
    "    ON x.job = j.id AND x.kind = 'ranks' AND x.step < j.step - $1::bigint "
    "    WHERE j.state IN ('starting', 'running', 'stopping') AND j.step > $1::bigint LIMIT $2)) RETURNING 1) "
    "SELECT set_config('motley.pruned', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM k))::text, "
    "  true)",
    PG_WRITE};

/* The 50 jobs that ended longest ago lose their metrics lines of single steps except the last, and all runs
 * except the newest and those that a checkpoint or an artifact comes from (motley_made decides by the run who
 * may read such a file). The next statement marks the jobs of which nothing more is to be removed. */
#define OLD_JOBS \
    "(SELECT id, run FROM jobs WHERE ended_at < now() - $1::integer * interval '1 day' AND swept_at IS NULL " \
    " ORDER BY ended_at LIMIT 50)"
static const struct pg_statement old_jobs = {
    "prune_jobs",
    "WITH old AS MATERIALIZED " OLD_JOBS ", "
    "m AS (DELETE FROM metrics WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM old JOIN metrics x ON x.job = old.id "
    "      WHERE x.kind = 'ranks' OR (x.kind = 'step' AND x.step < (SELECT max(l.step) FROM metrics l "
    "        WHERE l.job = old.id AND l.kind = 'step')) LIMIT $2)) RETURNING 1), "
    "gone AS MATERIALIZED (SELECT r.id FROM old JOIN runs r ON r.job = old.id WHERE r.id <> old.run "
    "      AND NOT EXISTS (SELECT 1 FROM checkpoints c WHERE c.run = r.id) "
    "      AND NOT EXISTS (SELECT 1 FROM artifacts f JOIN holds h ON h.what = f.sha256 JOIN assignments n "
    "        ON n.node = h.node AND n.run = r.id WHERE f.job = r.job) "
    "      AND NOT EXISTS (SELECT 1 FROM traces t WHERE t.run = r.id) LIMIT $2), "
    "a AS (DELETE FROM assignments WHERE run IN (SELECT id FROM gone) RETURNING 1), "
    "p AS (UPDATE trials SET plans = '{}' WHERE job IN (SELECT id FROM old) RETURNING 1), "
    "r AS (DELETE FROM runs WHERE id IN (SELECT id FROM gone) RETURNING 1) "
    "SELECT set_config('motley.pruned', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM m), "
    "  (SELECT count(*) FROM r), (SELECT count(*) FROM a) / 64)::text, true), "
    "  set_config('motley.swept', ((SELECT count(*) FROM m) < $2 AND (SELECT count(*) FROM r) < $2)::text, true)",
    PG_WRITE};
static const struct pg_statement mark_jobs = {
    "prune_jobs_mark",
    "WITH up AS (UPDATE jobs j SET swept_at = now() FROM " OLD_JOBS " old WHERE j.id = old.id "
    "  AND current_setting('motley.swept')::boolean RETURNING 1) "
    "SELECT set_config('motley.pruned', CASE WHEN (SELECT count(*) FROM up) = 50 THEN $2::bigint::text "
    "  ELSE current_setting('motley.pruned') END, true)",
    PG_WRITE};

/* What jobs left longer ago than their groups keep it. Jobs at a time are few, as each may have many files. $1: rows. */
static const struct pg_statement old_files = {
    "prune_files",
    "WITH gone AS MATERIALIZED (SELECT motley_files_prune(least($1::bigint, 20)) AS count) "
    "SELECT set_config('motley.pruned', greatest(current_setting('motley.pruned')::bigint, CASE WHEN count = least($1::bigint, 20) "
    "  THEN $1::bigint END)::text, true) FROM gone",
    PG_WRITE};

/* A data set that a queued or active job needs is kept, however old it is. */
static const struct pg_statement old_datasets = {
    "prune_datasets",
    "WITH d AS (DELETE FROM datasets WHERE key IN (SELECT d.key FROM datasets d "
    "    WHERE d.used_at < now() - $1::integer * interval '1 day' AND NOT EXISTS (SELECT 1 FROM jobs j "
    "      WHERE j.ended_at IS NULL AND (j.inputs ->> 'train' = d.key OR j.inputs ->> 'eval' = d.key)) "
    "    ORDER BY d.used_at LIMIT $2) RETURNING 1) "
    "SELECT set_config('motley.pruned', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM d))::text, "
    "  true)",
    PG_WRITE};

/* Rows of the ledger become sums by day. An interval that crosses midnight (UTC) is divided among its days,
 * so the sums equal those of the rows to the microsecond. */
static const struct pg_statement old_ledger = {
    "prune_ledger",
    "WITH gone AS (DELETE FROM ledger WHERE assignment IN (SELECT assignment FROM ledger "
    "    WHERE ends < now() - $1::integer * interval '1 day' ORDER BY ends LIMIT $2) RETURNING *), "
    "parts AS (SELECT d.day::date AS day, g.user_id, g.account, g.device, g.speed * g.factor AS rate, (extract(epoch FROM "
    "    least(g.ends, (d.day + interval '1 day') AT TIME ZONE 'UTC') - greatest(g.begins, d.day AT TIME ZONE 'UTC')) * 1e6)::bigint "
    "    AS us "
    "  FROM gone g, generate_series(date_trunc('day', g.begins AT TIME ZONE 'UTC'), g.ends AT TIME ZONE 'UTC', "
    "    interval '1 day') AS d(day)), "
    "put AS (INSERT INTO usage_days AS u (day, user_id, account, device, held_us, charged_s) "
    "  SELECT day, user_id, account, device, sum(us), sum(us * rate / 1e6) FROM parts GROUP BY day, user_id, account, device "
    "  ON CONFLICT (day, user_id, account, device) DO UPDATE SET held_us = u.held_us + excluded.held_us, "
    "    charged_s = u.charged_s + excluded.charged_s) "
    "SELECT set_config('motley.pruned', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM gone))::text, "
    "  true)",
    PG_WRITE};
/* Loads of minutes that are two days old are summed into hours. $1: days to keep hours; $2: rows. */
static const struct pg_statement old_load = {
    "prune_load",
    "WITH gone AS (DELETE FROM device_load WHERE ctid = ANY (ARRAY(SELECT ctid FROM device_load "
    "    WHERE seconds = 60 AND begins < date_trunc('hour', now()) - interval '2 days' ORDER BY begins LIMIT $2)) RETURNING *), "
    "old AS (DELETE FROM device_load WHERE ctid = ANY (ARRAY(SELECT ctid FROM device_load "
    "    WHERE seconds = 3600 AND begins < now() - $1::integer * interval '1 day' LIMIT $2)) RETURNING 1), "
    "put AS (INSERT INTO device_load AS l (device, begins, seconds, compute_s, wait_s, send_s, temperature_c) "
    "  SELECT device, date_trunc('hour', begins, 'UTC'), 3600, sum(compute_s), sum(wait_s), sum(send_s), max(temperature_c) FROM gone "
    "  GROUP BY 1, 2 ON CONFLICT (device, begins, seconds) DO UPDATE SET compute_s = l.compute_s + excluded.compute_s, "
    "    wait_s = l.wait_s + excluded.wait_s, send_s = l.send_s + excluded.send_s, "
    "    temperature_c = greatest(l.temperature_c, excluded.temperature_c)) "
    "SELECT set_config('motley.pruned', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM gone), "
    "  (SELECT count(*) FROM old))::text, true)",
    PG_WRITE};
static const struct pg_statement old_usage = {
    "prune_usage",
    "WITH u AS (DELETE FROM usage_days WHERE ctid = ANY (ARRAY(SELECT ctid FROM usage_days "
    "    WHERE day < (now() - $1::integer * interval '1 day')::date LIMIT $2)) RETURNING 1) "
    ", r AS (DELETE FROM arrivals WHERE job IN (SELECT job FROM arrivals "
    "    WHERE arrived_at < now() - $1::integer * interval '1 day' ORDER BY arrived_at LIMIT $2) RETURNING 1), "
    "w AS (DELETE FROM sooner WHERE asked_at < now() - interval '1 day' RETURNING 1) "
    "SELECT json_build_object('more', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM u), "
    "  (SELECT count(*) FROM r)) >= $2)",
    PG_WRITE};
/* clang-format on */

int store_prune(struct store *store, int64_t leader, const struct store_retention *keep, store_doc_fn *done,
                void *arg, struct err *err)
{
    const unsigned bounds[] = {
        keep->event_days,   keep->rank_steps,  keep->history_days, keep->history_days, 0,
        keep->dataset_days, keep->ledger_days, keep->usage_days,   keep->usage_days};
    static const struct pg_statement *const statements[] = {&old_events, &old_ranks, &old_jobs,
                                                            &mark_jobs,  &old_files, &old_datasets,
                                                            &old_ledger, &old_load,  &old_usage};
    enum { PARTS = 9 };
    struct pg_params fenced, params[PARTS];
    struct pg_step steps[PARTS + 1];
    pg_params_init(&fenced);
    pg_param_i64(&fenced, leader);
    steps[0] = (struct pg_step){&store_fence, &fenced};
    for (int i = 0; i < PARTS; i++) {
        pg_params_init(&params[i]);
        if (statements[i] != &old_files)
            pg_param_i64(&params[i], bounds[i]);
        pg_param_i64(&params[i], keep->rows);
        if (statements[i] == &old_events)
            pg_param_i64(&params[i], (int64_t)keep->request_ms);
        steps[i + 1] = (struct pg_step){statements[i], &params[i]};
    }
    int rc = store_run_doc(store, steps, PARTS + 1, STORE_ALONE, NULL, done, arg, err);
    pg_params_fini(&fenced);
    for (int i = 0; i < PARTS; i++)
        pg_params_fini(&params[i]);
    return rc;
}
