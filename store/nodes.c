/* Reads and changes nodes and devices as people and planners see them. */
#include "store/jobs.h"
#include "store/nodes.h"
#include "store/store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const struct pg_statement list_nodes = {
    "node_list",
    "SELECT json_build_object('nodes', coalesce(json_agg(json_build_object('name', n.name, 'state', "
    " CASE WHEN n.barred THEN 'barred' WHEN " LEAVING " THEN 'leaving' WHEN " LEFT " THEN 'left' "
    " ELSE n.state END, 'leaves', motley_time(n.leaves_at), 'refused', n.refused, 'clock_ahead_s', "
    "n.clock_ahead_s, 'lacking', l.text, 'why', "
    " nullif(concat_ws('; ', CASE WHEN " LEAVING
    " THEN 'its agent is stopping: no job starts there, and those that run "
    "store a checkpoint and move' WHEN " LEFT
    " THEN 'its agent ended in good order: the node is back when it is "
    "started again' WHEN n.leaves_at > now() THEN format('its machine is taken away soon: jobs leave it at "
    "%s', motley_words(n.leaves_at)) END, CASE WHEN n.state = "
    "'unreachable' AND NOT n.barred "
    "AND NOT " LEFT " THEN format('not heard since "
    "%s: its jobs go "
    "on elsewhere from their last checkpoint%s; if its agent does not run, start it again (without the "
    "token), else its network is cut', "
    " motley_words(n.last_seen), CASE WHEN n.lost_at > now() THEN "
    "' from ' || motley_words(n.lost_at) || ' on' END) END, CASE WHEN n.state = "
    "'joining' "
    "AND n.enrolled_at < now() - interval '10 s' THEN "
    " 'it joined over the api and was never heard over Redis: its agent''s log says why' END, "
    " CASE WHEN abs(n.clock_ahead_s) >= 30 THEN format('its clock is %s %s the "
    "scheduler''s', "
    " justify_interval(make_interval(secs => round(abs(n.clock_ahead_s)))), CASE WHEN n.clock_ahead_s > 0 "
    " THEN 'ahead of' ELSE 'behind' END) END, l.text, n.inventory ->> 'unconfined', n.mark), ''), 'marked', "
    " motley_time(n.marked_at), "
    " 'address', n.address, 'release', n.inventory ->> 'release', 'protocol', (n.inventory ->> "
    "'protocol')::bigint, 'disk_bytes', (n.inventory ->> 'disk_bytes')::bigint, 'disk_free_bytes', "
    "(n.inventory ->> 'disk_free_bytes')::bigint, 'faults', coalesce(n.inventory -> 'faults', '[]'), "
    "'machine_id', n.machine_id, "
    "'last_seen', "
    "motley_time(n.last_seen), "
    " 'enrolled', motley_time(n.enrolled_at), "
    " 'devices', (SELECT count(*) FROM devices d WHERE d.node = n.name AND d.present)) ORDER BY n.name "
    "COLLATE \"C\"), "
    "'[]'::json), 'incarnation', (SELECT incarnation FROM cluster), 'unknown_jobs', (SELECT "
    " coalesce(json_agg(json_build_object('job', u.job, 'node', u.node, 'run', u.run, 'reported', "
    " motley_time(u.reported_at)) ORDER BY u.job, u.node), '[]'::json) FROM (SELECT * FROM unknown_jobs "
    " ORDER BY job DESC, node LIMIT 1000) u)) "
    "FROM nodes n CROSS JOIN LATERAL (SELECT string_agg(format('%s: %s', d.names, d.why), '; ') AS text FROM "
    "  (SELECT string_agg(key, ', ' ORDER BY key) AS names, value AS why FROM json_each_text(CASE "
    "    json_typeof(n.inventory -> 'lacking') WHEN 'object' THEN n.inventory -> 'lacking' ELSE '{}' END) "
    "    GROUP BY value ORDER BY 1) d) l WHERE n.removed_at IS NULL",
    PG_READ};

/* Motley's own keys replace equal keys of a device's inventory. $1, $2: the asker. The job that runs on a
 * device is shown only to those who may see it, and its owner to everybody, as in the queue. */
#define JOB_SEEN VISIBLE("j", "$1", "$2")
#define LACKS "n.inventory -> 'lacking' ->> d.name"
#define DEVICE_STATE                                                                                         \
    "CASE WHEN NOT d.present THEN 'gone' WHEN n.state <> 'alive' OR n.barred THEN 'unreachable' "            \
    "WHEN d.drained OR n.leaves_at <= now() THEN CASE WHEN r.job IS NULL THEN 'drained' ELSE 'draining' "    \
    "END "                                                                                                   \
    "WHEN r.job IS NOT NULL THEN 'busy' WHEN " LACKS " IS NOT NULL THEN 'lacking' "                          \
    "WHEN EXISTS (SELECT FROM leases l WHERE l.device = d.name AND l.begins <= now() AND l.ends > now()) "   \
    "THEN 'leased' ELSE 'free' END"
#define DEVICES_FROM                                                                                         \
    "FROM devices d JOIN nodes n ON n.name = d.node AND n.removed_at IS NULL "                               \
    "LEFT JOIN assignments a ON " RANK_LIVES("a") " AND a.device = d.name LEFT JOIN runs r ON r.id = a.run "
/* The time until which a job on a drained device may stay there. */
#define DRAIN_AT(at)                                                                                         \
    "CASE WHEN isfinite(" at ") THEN motley_time(" at ") WHEN " at " IS NOT NULL THEN 'after jobs' END"
#define DEVICES_SQL                                                                                          \
    "SELECT json_agg((d.inventory::jsonb || jsonb_build_object('name', d.name, 'group', (SELECT g.name "     \
    "FROM "                                                                                                  \
    "groups g WHERE g.id = d.owner), 'node', d.node, 'kind', "                                               \
    "d.kind, "                                                                                               \
    " 'memory_limit_bytes', d.memory_limit_bytes, 'drained', d.drained, 'machine_id', n.machine_id, "        \
    " 'health', d.health::jsonb, 'drain_why', d.drain_why, 'drain_at', " DRAIN_AT(                           \
        "d.drain_at") ", "                                                                                   \
                      " 'catalogue', (SELECT p.document -> 'catalogue' FROM profiles p WHERE p.device = "    \
                      "d.name "                                                                              \
                      "   AND p.digest = d.digest AND p.document -> 'catalogue' IS NOT NULL ORDER BY "       \
                      "p.measured_at DESC "                                                                  \
                      "LIMIT 1), "                                                                           \
                      " 'job', CASE WHEN " JOB_SEEN                                                          \
                      " THEN r.job END, 'job_owner', (SELECT u.name FROM users u WHERE u.id = j.owner), "    \
                      " 'lacks', " LACKS ", 'state', " DEVICE_STATE                                          \
                      "))::json ORDER BY d.name COLLATE \"C\") " DEVICES_FROM                                \
                      "LEFT JOIN jobs j ON j.id = r.job"

static const struct pg_statement glance = {
    "glance",
    "SELECT json_build_object('jobs', (" COUNT_JOBS
    "), 'devices', (SELECT coalesce(json_object_agg(d.name, " DEVICE_STATE "), '{}') " DEVICES_FROM "))",
    PG_READ};

int store_glance(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text_array(&params, job_machine.states, job_machine.state_count);
    return store_one_doc(store, &glance, &params, NULL, done, arg, err);
}

static const struct pg_statement list_devices = {
    "device_list",
    "SELECT json_build_object('devices', coalesce((" DEVICES_SQL "), '[]'::json), "
    " 'unused', coalesce((SELECT jsonb_agg(c.card || jsonb_build_object('node', n.name) "
    "     ORDER BY n.name, c.card ->> 'kind', c.card ->> 'index') "
    "   FROM nodes n, jsonb_array_elements(CASE jsonb_typeof(n.inventory::jsonb -> 'cards') WHEN 'array' "
    "     THEN n.inventory::jsonb -> 'cards' ELSE '[]' END) AS c(card) "
    "   WHERE n.removed_at IS NULL AND c.card ->> 'usable' = 'false'), '[]'::jsonb))",
    PG_READ};

static const struct pg_statement get_cluster = {
    "cluster_get",
    "SELECT json_build_object('devices', coalesce((" DEVICES_SQL "), '[]'::json), "
    " 'profiles', (SELECT coalesce(json_agg(p.document), '[]'::json) FROM profiles p JOIN devices d "
    "              ON d.name = p.device AND d.digest = p.digest WHERE $3::text IS NULL OR p.content = $3), "
    " 'links', (SELECT coalesce(json_agg(document), '[]'::json) FROM links))",
    PG_READ};

int store_node_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    return store_one_doc(store, &list_nodes, NULL, NULL, done, arg, err);
}

int store_device_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                      struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    store_param_viewer(&params, principal);
    return store_one_doc(store, &list_devices, &params, NULL, done, arg, err);
}

int store_cluster_get(struct store *store, const struct principal *principal, const char *content,
                      store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    store_param_viewer(&params, principal);
    pg_param_text(&params, content);
    return store_one_doc(store, &get_cluster, &params, NULL, done, arg, err);
}

/* clang-format off */
static const struct pg_statement drain_device = {
    "device_drain",
    "WITH old AS (SELECT name, drained FROM devices WHERE $3 IN (name, node) FOR UPDATE), "
    "upd AS (UPDATE devices d SET drained = $4, drain_why = CASE WHEN $4 THEN coalesce($6, d.drain_why) END, "
    "  drain_at = CASE WHEN $4 THEN $7::timestamptz END, "
    "  faults = CASE WHEN $4 THEN d.faults ELSE 0 END FROM old WHERE d.name = old.name RETURNING d.name, d.node, d.drained, "
    "  d.drain_why, d.drain_at, old.drained AS was), "
    "again AS (DELETE FROM requests WHERE NOT $4 AND (state = 'failed' OR deadline_at < now()) "
    "  AND device IN (SELECT name FROM upd UNION SELECT node FROM upd)), "
    "fresh AS (UPDATE nodes SET starts_from = now() WHERE NOT $4 AND name IN (SELECT node FROM upd)), "
    "said AS ("
    AUDIT("$5", "CASE WHEN upd.drained THEN 'device.drain' ELSE 'device.undrain' END", "upd.name", "json_build_object('drained', upd.was)", "json_build_object('drained', upd.drained, 'why', upd.drain_why, 'at', " DRAIN_AT("upd.drain_at") ")", "upd")
    "  ) "
    "SELECT json_build_object('name', $3, 'drained', bool_and(u.drained), 'devices', json_agg(u.name ORDER BY u.name), 'drain_why', "
    "  min(u.drain_why), 'drain_at', " DRAIN_AT("min(u.drain_at)") ", 'job', (SELECT min(j.id) FROM assignments a "
    "  JOIN runs r ON r.id = a.run JOIN jobs j ON j.id = r.job WHERE a.device IN (SELECT name FROM upd) AND a.state IN ('sent', "
    "  'ready', 'running') AND " VISIBLE("j", "$1", "$2") ")), pg_notify('motley_jobs', '') FROM upd u HAVING count(*) > 0",
    PG_WRITE};
/* clang-format on */

int store_device_drain(struct store *store, const struct principal *principal,
                       const struct store_drain *drain, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no device \"%.220s\"", drain->name);
    pg_params_init(&params);
    store_param_viewer(&params, principal);
    pg_param_text(&params, drain->name);
    pg_param_bool(&params, drain->drained);
    store_param_actor(&params, principal);
    pg_param_text(&params, drain->why);
    pg_param_text(&params, drain->after_jobs ? "infinity" : drain->by);
    return store_one_doc(store, &drain_device, &params, missing, done, arg, err);
}

/* clang-format off */
static const struct pg_statement set_device = {
    "device_set",
    "WITH d AS (SELECT $2::jsonb AS d), old AS (SELECT name, owner FROM devices WHERE name = $1 FOR UPDATE), "
    "upd AS (UPDATE devices SET owner = CASE WHEN d ->> 'group' IS NULL THEN NULL ELSE motley_group('group', d ->> 'group', 0, true) "
    "    END FROM old, d WHERE devices.name = old.name RETURNING devices.name, (SELECT g.name FROM groups g WHERE g.id = old.owner) AS was), "
    "said AS ("
    AUDIT("$3", "'device.set'", "upd.name", "json_build_object('group', upd.was)", "d.d::json", "upd, d")
    "  ) "
    "SELECT json_build_object('name', upd.name, 'group', d.d -> 'group'), pg_notify('motley_jobs', '') FROM upd, d",
    PG_WRITE};
/* clang-format on */

int store_device_set(struct store *store, const struct principal *principal, const char *device,
                     const json_t *changes, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no device \"%.220s\"", device);
    store_params_change(&params, device, changes, principal);
    return store_one_doc(store, &set_device, &params, missing, done, arg, err);
}

/* ---- requests to measure for a plan without a job ---- */

static const struct pg_statement want_measure = {
    "measure_want",
    "WITH old AS (DELETE FROM measures WHERE until < now() AND key <> $1), "
    "new AS (INSERT INTO measures (key, spec, inputs, until) VALUES ($1, $2, $3, now() + make_interval(secs "
    "=> $4)) "
    "  ON CONFLICT (key) DO UPDATE SET until = greatest(measures.until, excluded.until) RETURNING key) "
    "SELECT pg_notify('motley_jobs', '') FROM new",
    PG_WRITE};

int store_measure_want(struct store *store, const char *key, const json_t *spec, const json_t *inputs,
                       unsigned seconds, store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, key);
    pg_param_json(&params, spec);
    pg_param_json(&params, inputs);
    pg_param_f64(&params, seconds);
    return store_one_done(store, &want_measure, &params, done, arg, err);
}
