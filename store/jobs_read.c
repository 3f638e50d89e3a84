/* Jobs as documents. The database builds the JSON, so a further field is one change in a statement. */
#include "store/jobs.h"
#include "store/store_private.h"

#include <stdio.h>
#include <string.h>

#define RANKS_JSON                                                                                           \
    "(SELECT coalesce(json_agg(json_build_object('rank', a.rank, 'node', a.node, 'device', a.device, "       \
    "'state', a.state, 'code', a.code, 'why', a.why, 'memory', a.memory) ORDER BY a.rank), '[]'::json) "     \
    "FROM assignments a WHERE a.run = r.id)"

/* clang-format off */
static const struct pg_statement get_job = {
    "job_get",
    "SELECT json_build_object('id', j.id, 'name', j.name, 'owner', u.name, 'visibility', j.visibility, "
    "  'group', (SELECT name FROM groups WHERE id = j.grp), 'state', j.state, 'priority', j.priority, "
    "  'created', motley_time(j.created_at), 'updated', motley_time(j.updated_at), 'started', "
    "  motley_time(j.started_at), 'ended', motley_time(j.ended_at), 'attempt', j.attempt, 'losses', j.losses, "
    "  'step', j.step, 'steps', j.steps, 'loss', j.loss, 'stop_why', j.stop_why, 'why', j.why, 'code', j.code, "
    "  'spec', j.spec, 'inputs', j.inputs, 'run', (SELECT json_build_object('id', r.id, 'attempt', r.attempt, "
    "  'epoch', r.epoch, 'state', r.state, 'why', r.why, 'plan_answer', r.answer, 'ranks', " RANKS_JSON ", "
    "  'started', motley_time(r.started_at), 'ended', motley_time(r.ended_at)) FROM runs r WHERE r.id = "
    "  j.run), 'checkpoints', (SELECT coalesce(json_agg(json_build_object('step', c.step, 'best', c.best, "
    "  'at', motley_time(c.created_at), 'blobs', c.blobs) ORDER BY c.step), '[]'::json) FROM checkpoints c "
    "  WHERE c.job = j.id AND c.complete), 'artifacts', (SELECT coalesce(json_agg(json_build_object('name', "
    "  f.name, 'sha256', f.sha256, 'size', f.size) ORDER BY f.name), '[]'::json) FROM artifacts f WHERE f.job "
    "  = j.id)) FROM jobs j JOIN users u ON u.id = j.owner WHERE j.id = $1 AND " VISIBLE("j", "$2", "$3"),
    PG_READ};
/* clang-format on */

int store_job_get(struct store *store, const struct principal *principal, int64_t id, store_doc_fn *done,
                  void *arg, struct err *err)
{
    char missing[64];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no job %lld", (long long)id);
    pg_params_init(&params);
    pg_param_i64(&params, id);
    store_param_viewer(&params, principal);
    return store_one_doc(store, &get_job, &params, missing, done, arg, err);
}

/* ---- pages: four statements, so that each has the plan of its own index ---- */

#define PAGE_SQL(from, where)                                                                                \
    "SELECT json_build_object('jobs', coalesce(json_agg(t.doc ORDER BY t.id DESC), '[]'::json), "            \
    "       'next', CASE WHEN count(*) = $2 THEN min(t.id) END) "                                            \
    "FROM (SELECT j.id, json_build_object('id', j.id, 'name', j.name, 'owner', u.name, 'visibility', "       \
    "      j.visibility, 'state', j.state, 'priority', j.priority, 'created', motley_time(j.created_at), "   \
    "      'updated', motley_time(j.updated_at), 'attempt', j.attempt, 'step', j.step, 'steps', j.steps, "   \
    "      'loss', j.loss, 'why', j.why) AS doc "                                                            \
    "      FROM " from " j JOIN users u ON u.id = j.owner WHERE j.id < $1 " where                            \
    "      ORDER BY j.id DESC LIMIT $2) t"
/* The jobs that a person sees: a page of their own and a page of shared ones, each found by its own index. */
#define SEEN_SQL(where)                                                                                      \
    "((SELECT * FROM jobs j WHERE j.id < $1 AND j.owner = $3 " where " ORDER BY j.id DESC LIMIT $2) "        \
    "UNION ALL (SELECT * FROM jobs j WHERE j.id < $1 AND j.visibility <> 'mine' AND j.owner <> $3 "          \
    "AND " VISIBLE("j", "$3", "$4") " " where " ORDER BY j.id DESC LIMIT $2))"

static const struct pg_statement page_all = {"job_page_all", PAGE_SQL("jobs", ""), PG_READ};
static const struct pg_statement page_state = {"job_page_state", PAGE_SQL("jobs", "AND j.state = $3"),
                                               PG_READ};
static const struct pg_statement page_seen = {"job_page_seen", PAGE_SQL(SEEN_SQL(""), ""), PG_READ};
static const struct pg_statement page_both = {"job_page_both", PAGE_SQL(SEEN_SQL("AND j.state = $5"), ""),
                                              PG_READ};

int store_job_page(struct store *store, const struct principal *principal,
                   const struct store_job_filter *filter, store_doc_fn *done, void *arg, struct err *err)
{
    if (filter->limit < 1 || filter->limit > STORE_PAGE_MAX) {
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..%d", filter->limit, STORE_PAGE_MAX);
    }
    if (filter->state < -1 || filter->state >= JOB_STATES) {
        return err_set(err, ERR_INVALID, "state: there is no such job state");
    }
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, filter->before_id > 0 ? filter->before_id : INT64_MAX);
    pg_param_i64(&params, filter->limit);
    const struct pg_statement *statement = &page_all;
    if (!principal->admin) {
        store_param_viewer(&params, principal);
        statement = &page_seen;
    }
    if (filter->state >= 0) {
        pg_param_text(&params, state_name(&job_machine, filter->state));
        statement = !principal->admin ? &page_both : &page_state;
    }
    return store_one_doc(store, statement, &params, NULL, done, arg, err);
}

#define COUNT_JOBS                                                                                           \
    "SELECT json_object_agg(s.state, coalesce(c.n, 0)) FROM unnest($1::text[]) AS s(state) "                 \
    "LEFT JOIN (SELECT state, sum(n)::bigint AS n FROM job_counts GROUP BY state) c USING (state)"
static const struct pg_statement count_jobs = {"job_counts", COUNT_JOBS, PG_READ};
static const struct pg_statement count_all = {
    "counts",
    "SELECT json_build_object('jobs', (" COUNT_JOBS "), 'refused', "
    "  (SELECT coalesce(json_object_agg(reason, n), '{}') FROM refused_events), 'devices', "
    "  (SELECT coalesce(json_agg(json_build_object('name', name, 'drained', drained, 'health', health) ORDER "
    "BY name), "
    "    '[]') FROM devices WHERE present))",
    PG_READ};

static int count(struct store *store, const struct pg_statement *what, store_doc_fn *done, void *arg,
                 struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text_array(&params, job_machine.states, job_machine.state_count);
    return store_one_doc(store, what, &params, NULL, done, arg, err);
}

int store_job_counts(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    return count(store, &count_jobs, done, arg, err);
}

int store_counts(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    return count(store, &count_all, done, arg, err);
}

/* ---- metrics ---- */

static const struct pg_statement list_metrics = {
    "job_metrics",
    "SELECT json_build_object('lines', coalesce(json_agg(t.document ORDER BY t.step, t.kind, t.rank), "
    "'[]'::json), "
    "       'next', CASE WHEN count(*) >= $4 THEN max(t.step) END) "
    "FROM (SELECT step, kind, rank, document FROM metrics "
    "      WHERE job = $1 AND kind = ANY ($2::text[]) AND step > $3 "
    "      ORDER BY step FETCH FIRST $4 ROWS WITH TIES) t",
    PG_READ};

static const char *const metric_kinds[] = {"step", "eval", "sample", "ranks"};

int store_job_metrics(struct store *store, int64_t id, const char *kind, int64_t after_step, unsigned limit,
                      store_doc_fn *done, void *arg, struct err *err)
{
    const char *const *kinds = metric_kinds;
    size_t count = 3;
    if (strcmp(kind, "all") != 0) {
        count = 1;
        size_t i = 0;
        while (i < 4 && strcmp(metric_kinds[i], kind) != 0) {
            i++;
        }
        if (i == 4) {
            return err_set(err, ERR_INVALID, "kind: \"%.40s\" is none of step, eval, sample, ranks, all",
                           kind);
        }
        kinds = &metric_kinds[i];
    }
    if (limit < 1 || limit > 10000) {
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..10000", limit);
    }
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, id);
    pg_param_text_array(&params, kinds, count);
    pg_param_i64(&params, after_step);
    pg_param_i64(&params, limit);
    return store_one_doc(store, &list_metrics, &params, NULL, done, arg, err);
}

/* ---- runs, plans, traces ---- */

static const struct pg_statement get_plan = {
    "job_plan",
    "SELECT json_build_object('run', r.id, 'attempt', r.attempt, 'epoch', r.epoch, 'plan', r.plan, "
    "       'answer', r.answer) FROM jobs j JOIN runs r ON r.id = j.run WHERE j.id = $1",
    PG_READ};

static const struct pg_statement list_runs = {
    "job_runs",
    "SELECT json_build_object('runs', coalesce(json_agg(json_build_object('id', r.id, 'attempt', r.attempt, "
    " 'epoch', r.epoch, 'state', r.state, 'why', r.why, 'start_step', r.start_step, "
    " 'created', motley_time(r.created_at), 'started', motley_time(r.started_at), "
    " 'ended', motley_time(r.ended_at), 'ranks', " RANKS_JSON ") ORDER BY r.id DESC), '[]'::json)) "
    "FROM (SELECT * FROM runs WHERE job = $1 ORDER BY id DESC LIMIT 100) r",
    PG_READ};

static const struct pg_statement get_trace = {
    "job_trace",
    "SELECT json_build_object('run', t.run, 'parts', json_agg(json_build_object('rank', t.rank, 'doc', "
    "t.document) "
    "       ORDER BY t.rank, t.seq)) "
    "FROM traces t WHERE t.run = (SELECT max(r.id) FROM runs r WHERE r.job = $1 "
    "                             AND EXISTS (SELECT 1 FROM traces x WHERE x.run = r.id)) GROUP BY t.run",
    PG_READ};

static int read_by_job(struct store *store, const struct pg_statement *statement, const char *missing_what,
                       int64_t id, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[96];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "job %lld has no %s", (long long)id, missing_what);
    pg_params_init(&params);
    pg_param_i64(&params, id);
    return store_one_doc(store, statement, &params, missing, done, arg, err);
}

int store_job_plan(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err)
{
    return read_by_job(store, &get_plan, "plan yet", id, done, arg, err);
}

int store_job_runs(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err)
{
    return read_by_job(store, &list_runs, "runs", id, done, arg, err);
}

int store_job_trace(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err)
{
    return read_by_job(store, &get_trace, "trace", id, done, arg, err);
}
