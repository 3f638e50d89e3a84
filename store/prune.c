/* Keeps the tables bounded. One call is one transaction that removes at most `rows` rows of a table, so it
 * holds no lock for long. Of a job that has not ended it removes only old lines of ranks, and it takes no
 * lock that a submit would wait for. */
#include "store/sched.h"
#include "store/store_private.h"

/* clang-format off */
/* $1: days; $2: rows */
static const struct pg_statement old_events = {
    "prune_events",
    "WITH e AS (DELETE FROM events WHERE id IN (SELECT id FROM events "
    "           WHERE at < now() - $1::integer * interval '1 day' ORDER BY id LIMIT $2) RETURNING 1), "
    "t AS (DELETE FROM traces WHERE ctid = ANY (ARRAY(SELECT t.ctid FROM traces t JOIN runs r ON r.id = t.run "
    "      WHERE r.ended_at < now() - $1::integer * interval '1 day' LIMIT $2)) RETURNING 1), "
    "w AS (DELETE FROM join_tokens WHERE expires_at < now() - interval '7 days' RETURNING 1), "
    "q AS (DELETE FROM requests WHERE state = 'failed' AND deadline_at < now() - interval '10 minutes' RETURNING 1), "
    "u AS (DELETE FROM unknown_jobs WHERE reported_at < now() - $1::integer * interval '1 day' RETURNING 1) "
    "SELECT set_config('motley.pruned', greatest((SELECT count(*) FROM e), (SELECT count(*) FROM t), "
    "  (SELECT count(*) FROM w) + (SELECT count(*) FROM q) + (SELECT count(*) FROM u))::text, true)",
    PG_WRITE};

/* A running job adds one line per rank and step. $1: steps to keep; $2: rows. */
static const struct pg_statement old_ranks = {
    "prune_ranks",
    "WITH k AS (DELETE FROM metrics WHERE ctid = ANY (ARRAY(SELECT x.ctid FROM jobs j JOIN metrics x "
    "    ON x.job = j.id AND x.kind = 'ranks' AND x.step < j.step - $1::bigint "
    "    WHERE j.state IN ('starting', 'running', 'stopping') AND j.step > $1::bigint LIMIT $2)) RETURNING 1) "
    "SELECT set_config('motley.pruned', greatest(current_setting('motley.pruned')::bigint, (SELECT count(*) FROM k))::text, "
    "  true)",
    PG_WRITE};

/* The 50 jobs that ended longest ago lose their lines of single steps except the last, and all runs except
 * the newest and those that a checkpoint or an artifact comes from (motley_made decides by the run who may
 * read such a file). The next statement marks the jobs that are done. */
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

/* A data set that a queued or active job needs is kept, however old it is. */
static const struct pg_statement old_datasets = {
    "prune_datasets",
    "WITH d AS (DELETE FROM datasets WHERE key IN (SELECT d.key FROM datasets d "
    "    WHERE d.used_at < now() - $1::integer * interval '1 day' AND NOT EXISTS (SELECT 1 FROM jobs j "
    "      WHERE j.ended_at IS NULL AND (j.inputs ->> 'train' = d.key OR j.inputs ->> 'eval' = d.key)) "
    "    ORDER BY d.used_at LIMIT $2) RETURNING 1) "
    "SELECT json_build_object('more', greatest(current_setting('motley.pruned')::bigint, "
    "  (SELECT count(*) FROM d)) >= $2)",
    PG_WRITE};
/* clang-format on */

int store_prune(struct store *store, int64_t leader, const struct store_retention *keep, store_doc_fn *done,
                void *arg, struct err *err)
{
    const unsigned bounds[] = {keep->event_days, keep->rank_steps, keep->history_days, keep->history_days,
                               keep->dataset_days};
    static const struct pg_statement *const statements[] = {&old_events, &old_ranks, &old_jobs, &mark_jobs,
                                                            &old_datasets};
    enum { PARTS = 5 };
    struct pg_params fenced, params[PARTS];
    struct pg_step steps[PARTS + 1];
    pg_params_init(&fenced);
    pg_param_i64(&fenced, leader);
    steps[0] = (struct pg_step){&store_fence, &fenced};
    for (int i = 0; i < PARTS; i++) {
        pg_params_init(&params[i]);
        pg_param_i64(&params[i], bounds[i]);
        pg_param_i64(&params[i], keep->rows);
        steps[i + 1] = (struct pg_step){statements[i], &params[i]};
    }
    int rc = store_run_doc(store, steps, PARTS + 1, STORE_ALONE, NULL, done, arg, err);
    pg_params_fini(&fenced);
    for (int i = 0; i < PARTS; i++) {
        pg_params_fini(&params[i]);
    }
    return rc;
}
