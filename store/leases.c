/* Reads, makes and changes leases of devices. */
#include "store/leases.h"

#include <stdio.h>

#include "store/store_private.h"

/* clang-format off */
#define LEASE_JSON \
    "json_build_object('id', l.id, 'device', l.device, 'holder', u.name, 'account', l.account, 'kind', l.kind, " \
    "'note', l.note, 'begins', motley_time(l.begins), 'ends', motley_time(l.ends), " \
    "'active', l.begins <= now() AND l.ends > now())"

static const struct pg_statement list_leases = {
    "lease_list",
    "SELECT json_build_object('leases', coalesce(json_agg(" LEASE_JSON " ORDER BY l.begins, l.id), '[]'::json)) "
    "FROM leases l JOIN users u ON u.id = l.user_id WHERE l.ends > now()",
    PG_READ};
static const struct pg_statement make_lease = {
    "lease_make",
    "SELECT motley_lease($1::bigint, $2, $3, $4, coalesce($5::timestamptz, now()), $6::bigint, $7::bigint, $8::boolean)",
    PG_WRITE};
static const struct pg_statement make_lease_any = {
    "lease_make_any",
    "SELECT motley_lease_any($1::bigint, $2, $3, $4, coalesce($5::timestamptz, now()), $6::bigint, $7::bigint, $8::boolean)",
    PG_WRITE};
static const struct pg_statement made_lease = {
    "lease_made",
    "WITH l AS (SELECT * FROM leases WHERE id = currval('leases_id_seq')), "
    "said AS ("
    AUDIT("$1", "'lease.make'", "l.device", "NULL::json", "json_build_object('lease', l.id, 'ends', motley_time(l.ends))", "l")
    "  ) "
    "SELECT " LEASE_JSON " FROM l JOIN users u ON u.id = l.user_id",
    PG_WRITE};
/* A lease that has begun keeps its beginning. A booking that is withdrawn becomes an empty interval at the
 * present moment: if it kept its time, jobs would still not be allowed to run past it. */
static const struct pg_statement change_lease = {
    "lease_change",
    "WITH old AS (SELECT l.*, u.name AS holder, ($2::boolean OR l.user_id = $1::bigint) AS own FROM leases l "
    "  JOIN users u ON u.id = l.user_id WHERE l.id = $3 AND l.ends > now() FOR UPDATE OF l), "
    "checked AS MATERIALIZED (SELECT $4::bigint = 0 OR kind <> 'lease' OR "
    "    motley_lease_check(id, user_id, $2::boolean, begins, ends + $4::bigint * interval '1 s') AS good FROM old WHERE own), "
    "upd AS (UPDATE leases l SET begins = CASE WHEN $4::bigint > 0 THEN l.begins ELSE least(l.begins, now()) END, "
    "    ends = CASE WHEN $4::bigint > 0 THEN l.ends + $4::bigint * interval '1 s' ELSE now() END FROM old, checked "
    "    WHERE l.id = old.id AND old.own AND checked.good RETURNING l.*), "
    "said AS ("
    AUDIT("$5", "CASE WHEN $4::bigint > 0 THEN 'lease.extend' ELSE 'lease.end' END", "upd.device", "json_build_object('lease', upd.id)", "json_build_object('ends', motley_time(upd.ends))", "upd")
    "  ) "
    "SELECT own, holder, (SELECT " LEASE_JSON " FROM upd l JOIN users u ON u.id = l.user_id), "
    "  pg_notify('motley_jobs', '') FROM old",
    PG_WRITE};
/* clang-format on */

int store_lease_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    return store_one_doc(store, &list_leases, NULL, NULL, done, arg, err);
}

int store_lease_put(struct store *store, const struct principal *principal,
                    const struct store_lease_new *lease, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params made, said;
    pg_params_init(&made);
    pg_param_i64(&made, principal->id);
    pg_param_text(&made, lease->device ? lease->device : lease->any);
    pg_param_text(&made, lease->maintenance ? "maintenance" : "lease");
    pg_param_text(&made, lease->note);
    pg_param_text(&made, lease->begins);
    pg_param_i64(&made, lease->seconds);
    pg_param_i64(&made, LEASE_AHEAD_MAX);
    pg_param_bool(&made, principal->admin);
    pg_params_init(&said);
    store_param_actor(&said, principal);
    const struct pg_step steps[] = {{lease->device ? &make_lease : &make_lease_any, &made},
                                    {&made_lease, &said}};
    int rc = store_run_doc(store, steps, 2, 0, NULL, done, arg, err);
    pg_params_fini(&made);
    pg_params_fini(&said);
    return rc;
}

int store_lease_change(struct store *store, const struct principal *principal, int64_t id, int64_t seconds,
                       store_doc_fn *done, void *arg, struct err *err)
{
    char missing[80], thing[80];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no lease %lld that is not over", (long long)id);
    snprintf(thing, sizeof(thing), "lease %lld", (long long)id);
    pg_params_init(&params);
    store_param_viewer(&params, principal);
    pg_param_i64(&params, id);
    pg_param_i64(&params, seconds);
    store_param_actor(&params, principal);
    return store_one_change(store, &change_lease, &params, missing, thing, done, arg, err);
}
