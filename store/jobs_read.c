/* Reads jobs as documents. The database builds the JSON, so a further field is one change in a statement. */
#include "store/health.h"
#include "store/jobs.h"
#include "store/store_private.h"

#include <stdio.h>
#include <string.h>

/* The reason of a rank that has not ended is what it waits for, or what is wrong with its node. */
#define RANKS_JSON                                                                                           \
    "(SELECT coalesce(json_agg(json_build_object('rank', a.rank, 'node', a.node, 'device', a.device, "       \
    "'state', a.state, 'code', a.code, 'why', coalesce(CASE WHEN a.state IN ('sent', 'ready', 'running') "   \
    "THEN CASE WHEN n.state = 'unreachable' THEN format('its node has not been heard since %s%s', "          \
    "motley_words(n.last_seen), CASE WHEN n.lost_at > now() THEN "                                           \
    "'; unless it is heard before ' || "                                                                     \
    "motley_words(n.lost_at) || ', the attempt is given up, and the job goes "                               \
    "on from its last checkpoint' END) "                                                                     \
    "ELSE n.inventory -> 'lacking' ->> a.device END END, nullif(a.why, '')), 'memory', a.memory) "           \
    "ORDER BY a.rank), '[]'::json) FROM assignments a LEFT JOIN nodes n ON n.name = a.node "                 \
    "WHERE a.run = r.id)"

/* The reason of a job, or who may let it go on where it is held. */
#define JOB_WHY                                                                                              \
    "coalesce(j.why, CASE WHEN j.state = 'held' THEN CASE WHEN j.held_by_admin "                             \
    "THEN 'an administrator holds it, and only one may release it (motley release ' || j.id || ')' "         \
    "ELSE 'until motley release ' || j.id END END)"

/* clang-format off */
static const struct pg_statement get_job = {
    "job_get",
    "SELECT json_build_object('id', j.id, 'name', j.name, 'owner', u.name, 'visibility', j.visibility, "
    "  'group', (SELECT name FROM groups WHERE id = j.grp), 'state', j.state, 'priority', j.priority, "
    "  'created', motley_time(j.created_at), 'updated', motley_time(j.updated_at), 'started', "
    "  motley_time(j.started_at), 'ended', motley_time(j.ended_at), 'files_until', CASE WHEN j.files_gone_at IS NULL THEN motley_time(j.ended_at "
    "  + motley_retention(j.account) * interval '1 s') END, 'files_gone', motley_time(j.files_gone_at), 'attempt', j.attempt, 'losses', j.losses, "
    "  'labels', coalesce(j.labels, '{}'), 'step', j.step, 'steps', j.steps, 'loss', j.loss, 'stop_why', j.stop_why, 'held_by_admin', j.held_by_admin, 'why', coalesce(q.why, " JOB_WHY "), 'code', j.code, 'ended_by', j.ended_by, "
    "  'account', (SELECT name FROM groups WHERE id = j.account), 'service', (ARRAY['urgent', 'normal', 'scavenger'])[j.service + 1], "
    "  'begins', motley_time(j.begin_at), 'place', q.place, 'wait', coalesce(q.code, j.wait_code), "
    "  'waits_for', CASE WHEN q.code IS NULL THEN j.wait_subject ELSE q.subject END, "
    "  'array_of', j.array_of, 'index', j.array_index, 'array', CASE WHEN j.array_size > 0 THEN json_build_object('size', j.array_size, "
    "    'made', j.array_made, 'at_most', nullif(j.at_most, 0), 'states', (SELECT coalesce(json_object_agg(state, n), '{}') FROM "
    "    (SELECT state, count(*) AS n FROM jobs e WHERE e.array_of = j.id GROUP BY state) c)) END, "
    "  'starts', motley_time(j.starts_at), 'trial', (SELECT document FROM trials t WHERE t.job = j.id), 'spec', j.spec, 'inputs', j.inputs, 'run', (SELECT json_build_object('id', r.id, 'attempt', r.attempt, "
    "  'epoch', r.epoch, 'state', r.state, 'why', r.why, 'yields', CASE WHEN r.save_by IS NOT NULL THEN json_build_object('why', r.save_why, "
    "  'job', r.save_for, 'by', motley_time(r.save_by)) END, 'plan_answer', r.answer, 'limit_at', motley_time(" RUN_LIMIT_AT("j", "r") "), 'step_s', " RUN_STEP_S ", 'ranks', " RANKS_JSON ", "
    "  'started', motley_time(r.started_at), 'ended', motley_time(r.ended_at)) FROM runs r WHERE r.id = "
    "  j.run), 'checkpoints', (SELECT coalesce(json_agg(json_build_object('step', c.step, 'best', c.best, "
    "  'at', motley_time(c.created_at), 'blobs', c.blobs) ORDER BY c.step), '[]'::json) FROM checkpoints c "
    "  WHERE c.job = j.id AND c.complete), 'artifacts', (SELECT coalesce(json_agg(json_build_object('name', "
    "  f.name, 'sha256', f.sha256, 'size', f.size) ORDER BY f.name COLLATE \"C\"), '[]'::json) FROM artifacts f WHERE f.job "
    "  = j.id), 'notices', CASE WHEN " OWNED("j", "$2", "$3") " THEN (SELECT coalesce(json_agg(json_build_object('id', n.id, 'event', n.event, "
    "  'state', n.state, 'attempts', n.attempts, 'at', motley_time(n.at), 'next', CASE WHEN n.state = 'waiting' THEN motley_time(n.due_at) END, "
    "  'why', n.why) ORDER BY n.id), '[]'::json) FROM (SELECT * FROM notices WHERE job = j.id ORDER BY id DESC LIMIT 20) n) END) "
    "FROM jobs j JOIN users u ON u.id = j.owner LEFT JOIN LATERAL motley_place(j.id) q ON j.state = 'queued' "
    "WHERE j.id = $1 AND " VISIBLE("j", "$2", "$3"),
    PG_READ};
/* clang-format on */

int store_job_get(struct store *store, const struct principal *principal, int64_t id, store_doc_fn *done,
                  void *arg, struct err *err)
{
    char missing[80];
    struct pg_params params;
    snprintf(missing, sizeof(missing), STORE_NO_JOB, (long long)id);
    store_params_job(&params, id, principal);
    return store_one_doc(store, &get_job, &params, missing, done, arg, err);
}

static const struct pg_statement unseen_jobs = {
    "jobs_unseen",
    "SELECT coalesce(json_agg(json_build_array(q.job, q.viewer)), '[]'::json) "
    "FROM unnest($1::bigint[], $2::bigint[]) AS q(job, viewer) "
    "WHERE NOT EXISTS (SELECT 1 FROM jobs j WHERE j.id = q.job AND " VISIBLE("j", "q.viewer", "false") ")",
    PG_READ};

int store_jobs_unseen(struct store *store, const int64_t *jobs, const int64_t *viewers, size_t count,
                      store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64_array(&params, jobs, count);
    pg_param_i64_array(&params, viewers, count);
    return store_one_doc(store, &unseen_jobs, &params, "", done, arg, err);
}

/* ---- pages: one statement for each kind of filter, so that PostgreSQL plans each with its own index ---- */

#define PAGE_SQL(from, where)                                                                                \
    "SELECT json_build_object('jobs', coalesce(json_agg(t.doc ORDER BY t.id DESC), '[]'::json), "            \
    "       'next', CASE WHEN count(*) = $2 THEN min(t.id) END) "                                            \
    "FROM (SELECT j.id, json_build_object('id', j.id, 'name', j.name, 'owner', u.name, 'visibility', "       \
    "      j.visibility, 'group', (SELECT name FROM groups WHERE id = j.grp), 'labels', "                    \
    "      coalesce(j.labels, '{}'), 'state', j.state, 'priority', j.priority, 'created', "                  \
    "      motley_time(j.created_at), 'updated', motley_time(j.updated_at), 'attempt', j.attempt, 'step', "  \
    "      j.step, 'steps', j.steps, 'loss', j.loss, 'why', coalesce(CASE WHEN j.state = 'queued' THEN "     \
    "(SELECT why FROM motley_place(j.id)) END, " JOB_WHY "), 'ended_by', j.ended_by, 'array_of', "           \
    "j.array_of, 'index', "                                                                                  \
    "      j.array_index, 'elements', nullif(j.array_size, 0)) AS doc "                                      \
    "      FROM " from " j JOIN users u ON u.id = j.owner WHERE j.id < $1 " where                            \
    "      ORDER BY j.id DESC LIMIT $2) t"
/* The jobs that a person sees: a page of their own jobs and a page of shared ones, each found by its own
 * index. */
#define SEEN_SQL(where)                                                                                      \
    "((SELECT * FROM jobs j WHERE j.id < $1 AND j.owner = $3 " where " ORDER BY j.id DESC LIMIT $2) "        \
    "UNION ALL (SELECT * FROM jobs j WHERE j.id < $1 AND j.visibility <> 'mine' AND j.owner <> $3 "          \
    "AND " VISIBLE("j", "$3", "$4") " " where " ORDER BY j.id DESC LIMIT $2))"
#define STATES "AND j.state = ANY ($5::text[]) "
/* Parameters: $6: owner; $7: group; $8: labels with values; $9: labels with any value; $10, $11: from and to
 * in µs; $12: array. Null stands for any. */
#define FILTERS                                                                                              \
    STATES "AND ($6::text IS NULL OR j.owner = (SELECT id FROM users WHERE name = $6)) "                     \
           "AND ($7::text IS NULL OR (SELECT id FROM groups WHERE name = $7) IN (j.grp, j.account)) "        \
           "AND ($8::jsonb IS NULL OR j.labels @> $8) AND ($9::text[] IS NULL OR j.labels ?& $9) "           \
           "AND ($10::bigint IS NULL OR j.created_at >= to_timestamp($10 / 1e6)) "                           \
           "AND ($11::bigint IS NULL OR j.created_at < to_timestamp($11 / 1e6)) "                            \
           "AND ($12::bigint IS NULL OR j.array_of = $12) "
/* Mentions both parameters of the asker, so that an administrator's statements have as many parameters as the
 * others. $4 says whether the asker is an administrator. */
#define ADMIN "AND $3::bigint IS NOT NULL AND $4::boolean "

/* Indices: [0: an administrator asks, 1: somebody else][0: no filter, 1: by state, 2: by all filters]. */
static const struct pg_statement pages[2][3] = {
    {{"job_page_all", PAGE_SQL("jobs", ADMIN), PG_READ},
     {"job_page_state", PAGE_SQL("jobs", ADMIN STATES), PG_READ},
     {"job_page_filtered", PAGE_SQL("jobs", ADMIN FILTERS), PG_READ}},
    {{"job_page_seen", PAGE_SQL(SEEN_SQL(""), ""), PG_READ},
     {"job_page_both", PAGE_SQL(SEEN_SQL(STATES), ""), PG_READ},
     {"job_page_seen_filtered", PAGE_SQL(SEEN_SQL(FILTERS), ""), PG_READ}},
};

static void param_states(struct pg_params *params, unsigned states)
{
    const char *names[JOB_STATES];
    size_t count = 0;
    for (int state = 0; state < JOB_STATES; state++)
        if (!states || (states & 1u << state) != 0)
            names[count++] = state_name(&job_machine, state);
    pg_param_text_array(params, names, count);
}

/* Adds two parameters: the labels with a value, as an object, and the keys of the labels with any value; null
 * for none. */
static void param_labels(struct pg_params *params, const json_t *labels)
{
    json_t *valued = json_object(), *value;
    const char *keys[STORE_LABELS_MAX], *key;
    size_t count = 0;
    json_object_foreach ((json_t *)(uintptr_t)labels, key, value)
        if (json_is_null(value) && count < STORE_LABELS_MAX)
            keys[count++] = key;
        else
            json_object_set(valued, key, value);
    if (json_object_size(valued) > 0)
        pg_param_json(params, valued);
    else
        pg_param_null(params);
    if (count > 0)
        pg_param_text_array(params, keys, count);
    else
        pg_param_null(params);
    json_decref(valued);
}

/* Adds a number, or null for 0. */
static void param_given(struct pg_params *params, int64_t value)
{
    if (value)
        pg_param_i64(params, value);
    else
        pg_param_null(params);
}

int store_job_page(struct store *store, const struct principal *principal,
                   const struct store_job_filter *filter, store_doc_fn *done, void *arg, struct err *err)
{
    if (filter->limit < 1 || filter->limit > STORE_PAGE_MAX)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..%d", filter->limit, STORE_PAGE_MAX);
    if (filter->states >= 1u << JOB_STATES)
        return err_set(err, ERR_INVALID, "state: there is no such job state");
    bool more =
        filter->owner || filter->group || filter->labels || filter->from_us || filter->to_us || filter->array;
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, filter->before_id > 0 ? filter->before_id : INT64_MAX);
    pg_param_i64(&params, filter->limit);
    store_param_viewer(&params, principal);
    if (more || filter->states)
        param_states(&params, filter->states);
    if (more) {
        pg_param_text(&params, filter->owner);
        pg_param_text(&params, filter->group);
        param_labels(&params, filter->labels);
        param_given(&params, filter->from_us);
        param_given(&params, filter->to_us);
        param_given(&params, filter->array);
    }
    return store_one_doc(store,
                         &pages[!principal->admin][more             ? 2
                                                   : filter->states ? 1
                                                                    : 0],
                         &params, NULL, done, arg, err);
}

static const struct pg_statement count_all = {
    "counts",
    "SELECT json_build_object('jobs', (" COUNT_JOBS "), 'refused', "
    "  (SELECT coalesce(json_object_agg(reason, n), '{}') FROM refused_events), 'devices', "
    "  (SELECT coalesce(json_agg(json_build_object('name', name, 'drained', drained, 'health', health) ORDER "
    "BY name), "
    "    '[]') FROM devices WHERE present), 'nodes', (SELECT coalesce(json_agg(json_strip_nulls("
    "json_build_object('name', n.name, 'alive', n.state = 'alive' AND NOT n.barred, 'left', " LEFT ", "
    "    'heard_s', extract(epoch FROM now() - n.last_seen), "
    "    'certified_s', extract(epoch FROM n.certified_until - now()), "
    "    'disk_bytes', CASE n.state WHEN 'alive' THEN n.inventory -> 'disk_bytes' END, "
    "    'disk_free_bytes', CASE n.state WHEN 'alive' THEN n.inventory -> 'disk_free_bytes' END)) ORDER BY "
    "    n.name), '[]') FROM nodes n WHERE n.removed_at IS NULL), 'waits_s', (SELECT extract(epoch FROM "
    "    now() - created_at) FROM jobs WHERE state = 'queued' ORDER BY id LIMIT 1), 'scheduler', (SELECT "
    "json_build_object('state', s.state, "
    "  'age_s', s.age, 'set_aside_count', coalesce(s.aside_count, 0)) FROM " SCHEDULER_ROW "))",
    PG_READ};

int store_counts(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text_array(&params, job_machine.states, job_machine.state_count);
    return store_one_doc(store, &count_all, &params, NULL, done, arg, err);
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
        while (i < 4 && strcmp(metric_kinds[i], kind) != 0)
            i++;
        if (i == 4) {
            return err_set(err, ERR_INVALID, "kind: \"%.40s\" is none of step, eval, sample, ranks, all",
                           kind);
        }
        kinds = &metric_kinds[i];
    }
    if (limit < 1 || limit > 10000)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..10000", limit);
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
    " 'ended', motley_time(r.ended_at), 'ranks', " RANKS_JSON ") ORDER BY r.id DESC), '[]'::json), "
    " 'next', CASE WHEN count(*) = $3 THEN min(r.id) END) "
    "FROM (SELECT * FROM runs WHERE job = $1 AND id < $2 ORDER BY id DESC LIMIT $3) r",
    PG_READ};

static const struct pg_statement get_trace = {
    "job_trace",
    "SELECT json_build_object('run', t.run, 'parts', json_agg(json_build_object('rank', t.rank, 'doc', "
    "t.document) "
    "       ORDER BY t.rank, t.seq)) "
    "FROM traces t WHERE t.run = (SELECT max(r.id) FROM runs r WHERE r.job = $1 "
    "                             AND EXISTS (SELECT 1 FROM traces x WHERE x.run = r.id)) GROUP BY t.run",
    PG_READ};

static const struct pg_statement get_lanes = {
    "job_lanes",
    "SELECT json_build_object('run', r.id, 'plan', r.plan, 'timeline', r.timeline, 'parts', "
    " (SELECT coalesce(json_agg(t.document ORDER BY t.rank, t.seq), '[]'::json) FROM traces t "
    "  WHERE t.run = r.id)) FROM runs r WHERE r.job = $1 "
    "ORDER BY EXISTS (SELECT 1 FROM traces t WHERE t.run = r.id) DESC, r.id DESC LIMIT 1",
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

int store_job_lanes(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err)
{
    return read_by_job(store, &get_lanes, "plan yet", id, done, arg, err);
}

int store_job_runs(struct store *store, int64_t id, int64_t before_id, unsigned limit, store_doc_fn *done,
                   void *arg, struct err *err)
{
    if (limit < 1 || limit > STORE_PAGE_MAX)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..%d", limit, STORE_PAGE_MAX);
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, id);
    pg_param_i64(&params, before_id > 0 ? before_id : INT64_MAX);
    pg_param_i64(&params, limit);
    return store_one_doc(store, &list_runs, &params, NULL, done, arg, err);
}

int store_job_trace(struct store *store, int64_t id, store_doc_fn *done, void *arg, struct err *err)
{
    return read_by_job(store, &get_trace, "trace", id, done, arg, err);
}
