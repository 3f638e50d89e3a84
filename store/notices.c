#include "store/notices.h"

#include "store/store_private.h"

/* clang-format off */
/* $1: seconds; $2: rows. Of rows that two apis choose at once, each is updated by one of them: the other sees the new
 * `taken_until`. */
static const struct pg_statement claim_notices = {
    "notice_claim",
    "WITH due AS MATERIALIZED (SELECT DISTINCT ON (n.owner) n.id, n.due_at FROM notices n WHERE n.state = 'waiting' AND n.due_at <= now() "
    "    AND NOT EXISTS (SELECT 1 FROM notices t WHERE t.owner = n.owner AND t.state = 'waiting' AND t.taken_until >= now()) "
    "    ORDER BY n.owner, n.due_at, n.id), "
    "up AS (UPDATE notices n SET taken_until = now() + make_interval(secs => $1), attempts = n.attempts + 1 "
    "    FROM (SELECT id FROM due ORDER BY due_at, id LIMIT $2) d WHERE n.id = d.id AND n.state = 'waiting' "
    "    AND coalesce(n.taken_until < now(), true) RETURNING n.*) "
    "SELECT coalesce(json_agg(json_build_object('id', up.id, 'url', up.url, 'body', up.body, 'key', u.notify_key, 'mailed', CASE WHEN "
    "    starts_with(up.url, 'mailto:') THEN (SELECT count(*) FROM notices m WHERE m.owner = up.owner AND m.state = 'delivered' "
    "      AND starts_with(m.url, 'mailto:') AND m.ended_at > now() - interval '1 day') ELSE 0 END) ORDER BY up.id), "
    "    '[]'::json) FROM up JOIN users u ON u.id = up.owner",
    PG_WRITE};

/* $2: whether it was delivered; $3: whether it may be tried again; $4: least seconds until then. */
static const struct pg_statement end_notice = {
    "notice_end",
    "UPDATE notices SET taken_until = NULL, why = $5, "
    "  state = CASE WHEN $2::boolean THEN 'delivered' WHEN $3::boolean AND attempts < 8 THEN 'waiting' ELSE 'given up' END, "
    "  ended_at = CASE WHEN $3::boolean AND attempts < 8 THEN NULL ELSE now() END, "
    "  due_at = now() + least(21600, greatest($4::float8, 30 * 4.0 ^ (attempts - 1))) * interval '1 second' "
    "WHERE id = $1 AND state = 'waiting'",
    PG_WRITE};

#define NOTICE_JSON                                                                                                     \
    "json_build_object('id', n.id, 'user', u.name, 'job', n.job, 'event', n.event, 'state', n.state, 'url', n.url, "    \
    "'attempts', n.attempts, 'at', motley_time(n.at), 'next', CASE WHEN n.state = 'waiting' THEN motley_time(n.due_at) END, " \
    "'ended', motley_time(n.ended_at), 'why', n.why)"

static const struct pg_statement list_notices = {
    "notices_list",
    "SELECT json_build_object('url', (SELECT notify FROM users WHERE id = $1), 'notices', coalesce(json_agg(doc ORDER BY id), '[]'::json)) "
    "FROM (SELECT n.id, " NOTICE_JSON " AS doc FROM notices n JOIN users u ON u.id = n.owner "
    "  WHERE motley_owns(n.owner, $1, $2) ORDER BY n.id DESC LIMIT 1000) x",
    PG_READ};

static const struct pg_statement set_notify = {
    "notify_set",
    "WITH d AS (SELECT $2::jsonb AS d), "
    "u AS (UPDATE users SET notify = CASE WHEN d ? 'url' THEN d ->> 'url' ELSE users.notify END, "
    "  notify_key = CASE WHEN d ->> 'key' = 'new' THEN replace(gen_random_uuid()::text || gen_random_uuid()::text, '-', '') "
    "    ELSE users.notify_key END FROM d WHERE users.id = $1 RETURNING users.name, users.notify, users.notify_key), "
    "said AS ("
    AUDIT("$3", "'notify.set'", "u.name", "NULL::json", "d.d::json", "u, d")
    "  ) "
    "SELECT json_build_object('url', notify, 'key', notify_key) FROM u",
    PG_WRITE};
/* clang-format on */

int store_notices_claim(struct store *store, double seconds, int64_t most, store_doc_fn *done, void *arg,
                        struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_f64(&params, seconds);
    pg_param_i64(&params, most);
    return store_one_doc(store, &claim_notices, &params, NULL, done, arg, err);
}

int store_notice_end(struct store *store, int64_t id, enum store_notice_end end, double retry_s,
                     const char *why, store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, id);
    pg_param_bool(&params, end == STORE_NOTICE_DELIVERED);
    pg_param_bool(&params, end == STORE_NOTICE_FAILED);
    pg_param_f64(&params, retry_s);
    pg_param_text(&params, why);
    return store_one_done(store, &end_notice, &params, done, arg, err);
}

int store_notices_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                       struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    store_param_viewer(&params, principal);
    return store_one_doc(store, &list_notices, &params, NULL, done, arg, err);
}

int store_notify_set(struct store *store, const struct principal *principal, const json_t *changes,
                     store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, principal->id);
    pg_param_json(&params, changes);
    store_param_actor(&params, principal);
    return store_one_doc(store, &set_notify, &params, "only people are told, not nodes", done, arg, err);
}
