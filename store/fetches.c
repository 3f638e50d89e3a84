/* Hands jobs to the api that fetches their model, and takes what came of it. */
#include "store/fetches.h"

#include <stdio.h>
#include <stdlib.h>

#include "store/store_private.h"

/* clang-format off */
/* $1: seconds; $2: rows. Of rows that two apis choose at once, each is updated by one of them: the other sees the new
 * `until`. */
static const struct pg_statement claim_fetches = {
    "fetch_claim",
    "WITH waits AS MATERIALIZED (SELECT f.job, f.hub, f.until >= now() AS taken FROM job_fetches f JOIN jobs j ON j.id = f.job "
    "    WHERE j.state = 'held'), "
    "due AS (SELECT min(job) AS job FROM waits GROUP BY hub HAVING NOT coalesce(bool_or(taken), false) ORDER BY 1 LIMIT $2), "
    "up AS (UPDATE job_fetches f SET until = now() + make_interval(secs => $1) FROM due WHERE f.job = due.job "
    "    AND coalesce(f.until < now(), true) RETURNING f.*) "
    "SELECT coalesce(json_agg(json_build_object('job', up.job, 'hub', up.hub, 'spec', j.spec, 'owner', u.id, 'name', u.name, "
    "    'priority_max', u.priority_max, 'admin', up.admin) ORDER BY up.job), '[]'::json) "
    "FROM up JOIN jobs j ON j.id = up.job JOIN users u ON u.id = j.owner",
    PG_WRITE};

static const struct pg_statement tell_fetch = {
    "fetch_tell",
    "WITH up AS (UPDATE job_fetches f SET until = now() + make_interval(secs => $2) FROM jobs j WHERE f.job = $1 "
    "    AND j.id = f.job AND j.state = 'held' RETURNING f.hub), "
    "said AS (UPDATE jobs j SET why = $3, updated_at = now() FROM job_fetches f JOIN up USING (hub) WHERE j.id = f.job "
    "    AND j.state = 'held' AND j.why IS DISTINCT FROM $3) "
    "SELECT count(*) FROM up",
    PG_WRITE};

#define SAY_STATE                                                                                                      \
    "said AS (INSERT INTO events (job, type, body) SELECT id, 'state', json_strip_nulls(json_build_object('state', "   \
    "  state, 'from', 'held', 'why', why, 'code', code, 'attempt', 0)) FROM up WHERE state <> 'held') "                \
    "SELECT id, pg_notify('motley_events', id::text), pg_notify('motley_jobs', '') FROM up"

static const struct pg_statement end_fetch = {
    "fetch_done",
    "WITH up AS (UPDATE jobs j SET spec = $2, inputs = $3, steps = $4, state = CASE WHEN $5::boolean THEN 'held' ELSE 'queued' END, "
    "    why = NULL, eligible_at = now(), updated_at = now() WHERE id = $1 AND state = 'held' "
    "    AND EXISTS (SELECT 1 FROM job_fetches WHERE job = $1) RETURNING j.id, j.state, j.why, j.code), "
    "gone AS (DELETE FROM job_fetches WHERE job IN (SELECT id FROM up)), "
    SAY_STATE,
    PG_WRITE};

static const struct pg_statement fail_fetch = {
    "fetch_fail",
    "WITH up AS (UPDATE jobs j SET state = 'failed', code = $2, why = $3, ended_at = now(), updated_at = now() "
    "    WHERE id = $1 AND state = 'held' AND EXISTS (SELECT 1 FROM job_fetches WHERE job = $1) "
    "    RETURNING j.id, j.state, j.why, j.code), "
    SAY_STATE,
    PG_WRITE};
/* clang-format on */

int store_fetch_claim(struct store *store, double seconds, int64_t most, store_doc_fn *done, void *arg,
                      struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_f64(&params, seconds);
    pg_param_i64(&params, most);
    return store_one_doc(store, &claim_fetches, &params, NULL, done, arg, err);
}

int store_fetch_tell(struct store *store, int64_t job, double seconds, const char *why, store_id_fn *done,
                     void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, job);
    pg_param_f64(&params, seconds);
    pg_param_text(&params, why);
    return store_one_id(store, &tell_fetch, &params, "", done, arg, err);
}

struct ended_call {
    store_done_fn *done;
    void *arg;
};

static void ended(void *arg, const struct err *err, int64_t id)
{
    struct ended_call call = *(struct ended_call *)arg;
    (void)id;
    free(arg);
    call.done(call.arg, err);
}

/* Runs the statement behind the lock of events. Releases the parameters. */
static int end_run(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                   int64_t job, const struct ended_call *of, struct err *err)
{
    const struct pg_step steps[] = {{&store_events_lock, NULL}, {statement, params}};
    char missing[64];
    struct ended_call *call = malloc(sizeof(*call));
    int rc = call ? 0 : err_set(err, ERR_NOMEM, "no memory for a database call");
    snprintf(missing, sizeof(missing), "job %lld waits for no model", (long long)job);
    if (rc == 0) {
        *call = *of;
        rc = store_run_id(store, steps, 2, STORE_ALONE, missing, ended, call, err);
    }
    if (rc < 0)
        free(call);
    pg_params_fini(params);
    return rc;
}

int store_fetch_done(struct store *store, int64_t job, const struct store_fetched *fetched,
                     store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, job);
    pg_param_json(&params, fetched->spec);
    pg_param_json(&params, fetched->inputs);
    pg_param_i64(&params, fetched->steps);
    pg_param_bool(&params, fetched->held);
    return end_run(store, &end_fetch, &params, job, &(struct ended_call){done, arg}, err);
}

int store_fetch_fail(struct store *store, int64_t job, const struct err *why, store_done_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, job);
    pg_param_text(&params, err_code_name(why->code));
    pg_param_text(&params, why->text);
    return end_run(store, &fail_fetch, &params, job, &(struct ended_call){done, arg}, err);
}
