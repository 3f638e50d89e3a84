/* Declarations that the files of store/ share: how a statement's results become the arguments of a typed
 * callback. */
#ifndef MOTLEY_STORE_STORE_PRIVATE_H
#define MOTLEY_STORE_STORE_PRIVATE_H

#include "common/pg.h"
#include "store/principal.h"
#include "store/states.h"
#include "store/store.h"

struct event;
struct job_batcher;

struct store {
    struct event_base *base;
    struct pg *pg;
    struct store_config config;
    struct event *watch; /* store_watch_schema; or NULL */
    store_newer_fn *newer;
    void *newer_arg;
    struct job_batcher *batcher; /* collects submitted jobs for the next commit (jobs_insert.c) */
};

/* Converts the results of a successful call into the callback's arguments and calls the user's callback, so
 * that the arguments can live on its stack. */
struct store_call;
typedef void store_deliver_fn(struct store_call *call, const struct pg_result *const *results, int count);

struct store_call {
    store_deliver_fn *deliver;
    void (*fail)(struct store_call *call, const struct err *err);
    void (*done)(void); /* the user's callback, cast back to its type by deliver and fail */
    void *arg;
    int picked;        /* index of the result that holds the document or id */
    char missing[320]; /* text of ERR_NOT_FOUND when there is no row */
    char thing[160];   /* name of the object in the text of ERR_DENIED (store_one_change) */
};

/* A flag of store_run: the statements run as a transaction of their own, because they take the events lock or
 * may wait. */
enum { STORE_ALONE = 1 };

/* Run one or several statements as one transaction. Column 0 of row 0 of the last result is the document
 * (store_run_doc) or id (store_run_id) of the answer. `missing` is the text of ERR_NOT_FOUND when there is no
 * row. */
int store_run_doc(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                  const char *missing, store_doc_fn *done, void *arg, struct err *err);
int store_run_id(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                 const char *missing, store_id_fn *done, void *arg, struct err *err);
int store_run_done(struct store *store, const struct pg_step *steps, int count, unsigned flags,
                   store_done_fn *done, void *arg, struct err *err);
/* Run one statement. `params` (NULL: none) is released in any case. store_one_touched answers ERR_NOT_FOUND
 * with `missing` when the statement changed no row. */
int store_one_doc(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                  const char *missing, store_doc_fn *done, void *arg, struct err *err);
int store_one_id(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                 const char *missing, store_id_fn *done, void *arg, struct err *err);
int store_one_done(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                   store_done_fn *done, void *arg, struct err *err);
int store_one_touched(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                      const char *missing, store_done_fn *done, void *arg, struct err *err);

/* One statement of a leader's transaction, with its rows (a JSON array of objects). */
struct store_part {
    const struct pg_statement *statement;
    const json_t *rows;
};
enum { STORE_PARTS_MAX = 32 };

/* A transaction of the leader: the fence of `leader` and the events lock, then the parts that have rows, in
 * their order. Release it with store_work_fini, even after a failure. */
struct store_work {
    struct pg_params params[STORE_PARTS_MAX + 1];
    /* the fence and the lock, all parts, and one further step of the caller */
    struct pg_step steps[STORE_PARTS_MAX + 2];
    int count;
};
_Static_assert(STORE_PARTS_MAX + 2 <= PG_STEPS_MAX, "one work holds the fence, all parts and one more");
void store_work_init(struct store_work *work, int64_t leader, const struct store_part *parts, int count);
void store_work_fini(struct store_work *work);
extern const struct pg_statement store_fence; /* $1: the leader's epoch */

/* records.c. The parts of a decision that only simulations read. */
extern const struct pg_statement store_put_arrivals, store_put_forecasts, store_end_forecasts,
    store_put_sharing, store_put_sooner;

/* Gives the rows of a part as a table `c`. */
#define RECORDS(columns) "json_to_recordset($1::json) AS c(" columns ")"

/* Runs statements with a call from store_call_create, which is freed here. The functions above call it. */
int store_run(struct store *store, const struct pg_step *steps, int count, unsigned flags,
              struct store_call *call, struct err *err);
struct store_call *store_call_create(store_deliver_fn *deliver,
                                     void (*fail)(struct store_call *, const struct err *),
                                     void (*done)(void), void *arg, const char *missing, struct err *err);

/* The statement that every writer of events runs first, so that event ids become visible in order. */
extern const struct pg_statement store_events_lock;

/* Copies the error `from`, and maps the SQLSTATEs that Motley's own SQL functions raise (migrations/) to
 * ERR_STALE, ERR_CONFLICT and ERR_INVALID. */
void store_map_err(const struct err *from, struct err *to);

/* Adds the machine's edges for `event` as two text[] parameters of equal length: states from, states to. */
void store_param_edges(struct pg_params *params, const struct state_machine *machine, int event);

/* Adds two parameters for the rules of migrations/0005_access.sql: the asker's users.id (0 if it is not a
 * person), and whether the asker is an administrator. */
void store_param_viewer(struct pg_params *params, const struct principal *principal);
/* Adds two parameters: the visibility, and the group's name or null. */
void store_param_sharing(struct pg_params *params, const struct sharing *sharing);
/* Adds one parameter for AUDIT: who makes the change. */
void store_param_actor(struct pg_params *params, const struct principal *principal);

/* SQL conditions over a row `o` of an owned object; `viewer` and `admin` are the parameters of
 * store_param_viewer. */
#define VISIBLE(o, viewer, admin)                                                                            \
    "motley_visible(" o ".owner, " o ".visibility, " o ".grp, " viewer                                       \
    "::bigint, (SELECT motley_groups(" viewer "::bigint)), " admin "::boolean)"
#define OWNED(o, viewer, admin) "motley_owns(" o ".owner, " viewer "::bigint, " admin "::boolean)"

/* Whether a rank holds its device. */
#define RANK_LIVES(a) a ".state IN ('sent', 'ready', 'running')"

/* The body of a CTE that inserts one audit row for every row of `from`. It stands in the same statement as
 * the change, so that neither exists without the other. `actor` is the parameter of store_param_actor; the
 * other arguments are SQL. */
#define AUDIT(actor, what, object, before, after, from)                                                      \
    "INSERT INTO audit (who, user_id, token, address, what, object, before, after) "                         \
    "SELECT a.who, a.user_id, a.token, a.address, " what ", " object ", " before ", " after " FROM " from    \
    ", json_to_record(" actor "::json) AS a(who text, user_id bigint, token bigint, address text)"

/* Runs one statement whose columns are: whether the change was made, the owner's name, the document (NULL:
 * none). Without a row it answers ERR_NOT_FOUND with `missing`; without a change ERR_DENIED with `thing` and
 * its owner. `params` is released. */
int store_one_change(struct store *store, const struct pg_statement *statement, struct pg_params *params,
                     const char *missing, const char *thing, store_doc_fn *done, void *arg, struct err *err);

/* jobs_command.c. What concerns one job: store_params_job begins its statement's parameters ($1: the job;
 * $2, $3: the asker), and store_job_update runs a change of it, as store_one_change does. */
#define STORE_NO_JOB "there is no job %lld that you may see"
void store_params_job(struct pg_params *params, int64_t id, const struct principal *principal);
int store_job_update(struct store *store, const struct pg_statement *statement, int64_t id,
                     struct pg_params *params, store_doc_fn *done, void *arg, struct err *err);

/* Seconds of a step by its metrics line m, where it has a number; null elsewhere. */
#define STEP_SECONDS                                                                                         \
    "CASE json_typeof(m.document -> 'seconds') WHEN 'number' THEN (m.document ->> 'seconds')::float8 END"
/* Seconds per step of the run r: predicted, times how much longer than predicted its slowest rank computes.
 * Ranks that compute for less than a tenth of a step do not count, as in replay/replan.h (REPLAN_PART). Where
 * earlier runs corrected the prediction, that may be in it already, so the longer of the two counts. */
#define RUN_STEP_S                                                                                           \
    "r.step_s * (SELECT CASE WHEN r.corrected IS NULL THEN coalesce(max(a.compute_s / a.busy_s), 1) "        \
    "ELSE greatest(max(a.compute_s / a.busy_s) / r.corrected, 1) END FROM assignments a WHERE a.run = r.id " \
    "AND a.measured > 0 AND a.busy_s > 0 AND greatest(a.compute_s, a.busy_s) >= r.step_s / 10)"
/* The latest runs that tell how far forecasts are off, by the device of their first rank: rows of (device,
 * runs), in which `runs` is a document as planner/given/taught.h has it. $1: the key of a job's profiles.
 *
 * A run whose devices were measured anew since it was planned, or have other speeds by now, tells only what
 * its ranks' computing does not explain. What a part of a layer computes depends on the division, too, so for
 * tensor and expert runs that cannot be told apart. */
/* clang-format off */
#define TAUGHT_RUNS \
    "(SELECT device, json_agg(json_build_object('placement', placement, 'devices', devices, 'times', measured_s / priced_s * CASE " \
    "  WHEN alike OR rebased OR placement IN ('tensor', 'expert') THEN 1 ELSE coalesce(planned_s / nullif(computed_s, 0), 1) END, " \
    "  'age_days', age_days, 'alike', alike AND key = $1) ORDER BY id DESC) AS runs FROM (" \
    "SELECT r.id, r.key, r.placement, r.measured_s, coalesce(r.priced_s, r.step_s / coalesce(r.corrected, 1)) AS priced_s, " \
    "  r.priced_s IS NOT NULL AS rebased, (array_agg(a.device ORDER BY a.rank))[1] AS device, json_agg(DISTINCT a.device) AS devices, " \
    "  floor(extract(epoch FROM now() - r.ended_at) / 86400) AS age_days, " \
    "  sum(a.busy_s) FILTER (WHERE a.measured > 0) AS planned_s, sum(a.compute_s) FILTER (WHERE a.measured > 0) AS computed_s, " \
    "  bool_and(coalesce(p.measured_at < r.created_at, true) AND coalesce(s.at < r.created_at OR s.run = r.id, true)) AS alike " \
    "FROM (SELECT id, key, placement, measured_s, step_s, priced_s, corrected, created_at, ended_at FROM runs " \
    "  WHERE measured_s > 0 AND step_s > 0 ORDER BY id DESC LIMIT 64) r " \
    "JOIN assignments a ON a.run = r.id LEFT JOIN profiles p ON p.device = a.device AND p.key = r.key " \
    "LEFT JOIN device_speeds s ON s.device = a.device AND s.key = r.key WHERE r.key IS NOT NULL AND r.placement IS NOT NULL " \
    "GROUP BY r.id, r.key, r.placement, r.measured_s, r.step_s, r.priced_s, r.corrected, r.created_at, r.ended_at) m GROUP BY device)"
/* clang-format on */
/* When the run r of the job j has used up the job's time limit; null: it has none. */
#define RUN_LIMIT_AT(j, r)                                                                                   \
    "CASE WHEN " j ".time_limit_ms > 0 THEN " r ".created_at + (" j ".time_limit_ms - " j ".used_ms + " j    \
    ".limit_from_ms) * interval '1 ms' END"
/* Parts of statements that change named rows by a document `d` of changes: the limits as members of a
 * document, and the columns of limits as they are after the change. */
#define LIMITS_OF(t)                                                                                         \
    "'devices_max', " t ".devices_max, 'running_max', " t ".running_max, 'queued_max', " t                   \
    ".queued_max, 'month_seconds_max', " t ".month_seconds_max, 'kept_bytes_max', " t ".kept_bytes_max"
#define SET_LIMITS(t)                                                                                        \
    "devices_max = coalesce((d ->> 'devices_max')::integer, " t ".devices_max), "                            \
    "running_max = coalesce((d ->> 'running_max')::integer, " t ".running_max), "                            \
    "queued_max = coalesce((d ->> 'queued_max')::integer, " t ".queued_max), "                               \
    "month_seconds_max = coalesce((d ->> 'month_seconds_max')::float8, " t ".month_seconds_max), "           \
    "kept_bytes_max = coalesce((d ->> 'kept_bytes_max')::bigint, " t ".kept_bytes_max) "
/* Initialises the parameters of a statement that changes a named row: $1: the name; $2: the changes; $3: the
 * actor. */
void store_params_change(struct pg_params *params, const char *name, const json_t *changes,
                         const struct principal *principal);

/* A subquery that gives {state: number of jobs}. $1: the names of all states. */
/* Whether the agent of node n is ending (leaving), or has ended after it said so (left). */
#define LEAVES(which) "(" which " AND NOT n.barred AND coalesce(n.leaves_at <= now(), false))"
#define LEAVING LEAVES("n.state = 'alive'")
#define LEFT LEAVES("n.state = 'unreachable'")

#define COUNT_JOBS                                                                                           \
    "SELECT json_object_agg(s.state, coalesce(c.n, 0)) FROM unnest($1::text[]) AS s(state) "                 \
    "LEFT JOIN (SELECT state, sum(n)::bigint AS n FROM job_counts GROUP BY state) c USING (state)"

/* Checks that a text is not empty and has at most `max` bytes. */
int store_check_text(const char *what, const char *text, size_t max, struct err *err);

/* The batcher collects submitted jobs (jobs_insert.c). When it is destroyed, the waiting submits are answered
 * with ERR_CANCELLED. */
int store_batcher_create(struct store *store, struct err *err);
void store_batcher_destroy(struct store *store);

#endif
