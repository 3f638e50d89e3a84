/* Sums up what devices did, from the loads of minutes and hours and from the ledger. */
#include "store/nodes.h"
#include "store/store_private.h"

/* clang-format off */
/* Parameters: $1, $2: from and to in µs; $3: one device, or null for all; $4: "minute" or "hour": the length
 * of one device's points. */
static const struct pg_statement get_load = {
    "load_get",
    "WITH span AS (SELECT to_timestamp($1::bigint / 1e6) AS a, least(to_timestamp($2::bigint / 1e6), now()) AS b), "
    "l AS MATERIALIZED (SELECT l.* FROM span, device_load l WHERE l.begins >= a AND l.begins < b AND ($3::text IS NULL OR l.device = $3)), "
    "sums AS (SELECT device, sum(compute_s) AS compute_s, sum(wait_s) AS wait_s, sum(send_s) AS send_s, max(temperature_c) AS t "
    "  FROM l GROUP BY device), "
    "held AS (SELECT g.device, sum(extract(epoch FROM least(coalesce(g.ends, now()), b) - greatest(g.begins, a)))::float8 AS s "
    "  FROM span, ledger g WHERE g.begins < b AND (g.ends IS NULL OR g.ends > a) AND ($3 IS NULL OR g.device = $3) GROUP BY g.device), "
    "points AS (SELECT json_agg(json_build_object('at', motley_time(at), 'compute_s', compute_s, 'wait_s', wait_s, 'send_s', send_s, "
    "    'temperature_c', t) ORDER BY at) AS list FROM (SELECT date_trunc($4, begins, 'UTC') AS at, sum(compute_s) AS compute_s, "
    "      sum(wait_s) AS wait_s, sum(send_s) AS send_s, max(temperature_c) AS t FROM l WHERE $3 IS NOT NULL GROUP BY 1) p) "
    "SELECT json_build_object('from', motley_time(a), 'to', motley_time(b), 'devices', (SELECT coalesce(json_agg(json_strip_nulls( "
    "  json_build_object('name', d.name, 'compute_s', coalesce(s.compute_s, 0), 'wait_s', coalesce(s.wait_s, 0), 'send_s', "
    "  coalesce(s.send_s, 0), 'held_s', coalesce(h.s, 0), 'free_s', greatest(0, extract(epoch FROM b - a)::float8 - coalesce(h.s, 0)), "
    "  'temperature_c', s.t, 'points', CASE WHEN $3 IS NOT NULL THEN coalesce(points.list, '[]'::json) END)) ORDER BY d.name COLLATE \"C\"), "
    "  '[]'::json) FROM points, devices d JOIN nodes n ON n.name = d.node AND n.removed_at IS NULL LEFT JOIN sums s ON s.device = d.name "
    "  LEFT JOIN held h ON h.device = d.name WHERE $3 IS NULL OR d.name = $3)) FROM span",
    PG_READ};
/* clang-format on */

int store_load_get(struct store *store, int64_t from_us, int64_t to_us, const char *device, const char *by,
                   store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, from_us);
    pg_param_i64(&params, to_us);
    pg_param_text(&params, device);
    pg_param_text(&params, by);
    return store_one_doc(store, &get_load, &params, NULL, done, arg, err);
}
