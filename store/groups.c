/* Groups of people, and the audit. */
#include "store/jobs.h"
#include "store/store_private.h"
#include "store/users.h"

#include <stdio.h>

#define MEMBERS_JSON                                                                                         \
    "(SELECT coalesce(json_agg(u.name ORDER BY u.name), '[]'::json) FROM group_members m "                   \
    "JOIN users u ON u.id = m.user_id WHERE m.grp = g.id)"

/* clang-format off */
static const struct pg_statement list_groups = {
    "group_list",
    "SELECT json_build_object('groups', coalesce(json_agg(json_build_object('name', g.name, 'created', "
    " motley_time(g.created_at), 'members', " MEMBERS_JSON ", 'parent', "
    "(SELECT p.name FROM groups p WHERE p.id = g.parent), 'weight', g.weight, 'time_limit_s', g.time_limit_s, 'slice_s', g.slice_s, 'lease_limit_s', g.lease_limit_s, 'retention_s', g.retention_s, " LIMITS_OF("g") ") ORDER BY g.name COLLATE \"C\"), '[]'::json)) "
    "FROM groups g WHERE $2::boolean OR g.id = ANY (motley_groups($1::bigint))",
    PG_READ};

/* clang-format on */
/* A first statement makes the group, so that the second one (set_group) finds it. set_group compares the
 * number of users found with the number of names given, and so detects a name that is not a user. */
static const struct pg_statement make_group = {
    "group_make", "INSERT INTO groups (name) VALUES ($1) ON CONFLICT (name) DO NOTHING", PG_WRITE};
/* clang-format off */
static const struct pg_statement set_group = {
    "group_set",
    "WITH g AS (SELECT id, name FROM groups WHERE name = $1 FOR UPDATE), "
    "wanted AS (SELECT DISTINCT u.id, u.name FROM users u WHERE u.name = ANY ($2::text[])), "
    "was AS (SELECT " MEMBERS_JSON " AS names FROM g), "
    "out AS (DELETE FROM group_members m USING g WHERE m.grp = g.id AND m.user_id NOT IN (SELECT id FROM "
    "  wanted) RETURNING m.user_id), "
    "left_it AS (UPDATE users u SET account = NULL FROM g, out WHERE u.id = out.user_id AND u.account = g.id), "
    "new AS (INSERT INTO group_members (grp, user_id) "
    "SELECT g.id, wanted.id FROM g, wanted ON CONFLICT DO NOTHING), "
    "said AS ("
    AUDIT("$3", "'group.put'", "g.name", "json_build_object('members', was.names)", "json_build_object('members', to_json($2::text[]))", "g, was")
    "  ) "
    "SELECT json_build_object('name', g.name, 'members', to_json($2::text[])), motley_expect((SELECT count(*) "
    "  FROM wanted), (SELECT count(DISTINCT n) FROM unnest($2::text[]) n), 'members of a group') FROM g",
    PG_WRITE};
static const struct pg_statement change_group = {
    "group_change",
    "WITH d AS (SELECT $2::jsonb AS d), "
    "old AS (SELECT g.*, p.name AS parent_name FROM groups g LEFT JOIN groups p ON p.id = g.parent WHERE g.name = $1 "
    "  FOR UPDATE OF g), "
    "u AS (UPDATE groups SET weight = coalesce((d ->> 'weight')::float8, groups.weight), time_limit_s = "
    "    coalesce((d ->> 'time_limit_s')::float8, groups.time_limit_s), slice_s = coalesce((d ->> 'slice_s')::float8, groups.slice_s), "
    "  lease_limit_s = coalesce((d ->> 'lease_limit_s')::float8, groups.lease_limit_s), "
    "  retention_s = coalesce((d ->> 'retention_s')::float8, groups.retention_s), "
    "  parent = CASE WHEN NOT d ? 'parent' THEN groups.parent WHEN d ->> 'parent' IS NULL THEN NULL "
    "    ELSE motley_group('group', d ->> 'parent', 0, true) END, " SET_LIMITS("groups")
    "  FROM old, d WHERE groups.id = old.id RETURNING groups.name, jsonb_build_object('weight', old.weight, 'time_limit_s', old.time_limit_s, 'slice_s', old.slice_s, 'lease_limit_s', old.lease_limit_s, 'retention_s', old.retention_s, "
    "    'parent', old.parent_name, " LIMITS_OF("old") ") AS was), "
    "said AS ("
    AUDIT("$3", "'group.set'", "u.name", "(SELECT json_object_agg(k, u.was -> k) FROM jsonb_object_keys(d.d) k)", "d.d::json", "u, d")
    "  ) "
    "SELECT d || jsonb_build_object('name', name) FROM u, d",
    PG_WRITE};
/* The group's jobs, all of which have ended, then belong to the group's parent. The ledger keeps the name of
 * the removed group. */
static const struct pg_statement remove_group = {
    "group_remove",
    "WITH g AS (SELECT id, name, parent, " MEMBERS_JSON " AS members FROM groups g WHERE name = $1 FOR UPDATE), "
    "kept AS MATERIALIZED (SELECT motley_expect((SELECT count(*) FROM groups s, g WHERE s.parent = g.id) + "
    "    (SELECT count(*) FROM jobs j, g WHERE j.account = g.id AND j.state NOT IN ('succeeded', 'failed', 'cancelled')), 0, "
    "    'groups below it or its jobs') AS none), "
    "ended AS (UPDATE jobs j SET account = coalesce(g.parent, 0) FROM g, kept WHERE j.account = g.id AND kept.none IS NOT NULL), "
    "out AS (DELETE FROM groups USING g, kept WHERE groups.id = g.id AND kept.none IS NOT NULL RETURNING groups.name), "
    "said AS ("
    AUDIT("$2", "'group.remove'", "g.name", "json_build_object('members', g.members)", "NULL::json", "g") ") "
    "SELECT name FROM out",
    PG_WRITE};
/* clang-format on */

int store_group_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    store_param_viewer(&params, principal);
    return store_one_doc(store, &list_groups, &params, NULL, done, arg, err);
}

int store_group_put(struct store *store, const struct principal *principal, const char *name,
                    const char *const *members, size_t count, store_doc_fn *done, void *arg, struct err *err)
{
    if (store_check_text("a group's name", name, STORE_NAME_MAX, err) < 0)
        return -1;
    struct pg_params made, params;
    pg_params_init(&made);
    pg_param_text(&made, name);
    pg_params_init(&params);
    pg_param_text(&params, name);
    pg_param_text_array(&params, members, count);
    store_param_actor(&params, principal);
    const struct pg_step steps[] = {{&make_group, &made}, {&set_group, &params}};
    int rc = store_run_doc(store, steps, 2, 0, NULL, done, arg, err);
    pg_params_fini(&made);
    pg_params_fini(&params);
    return rc;
}

int store_group_set(struct store *store, const struct principal *principal, const char *name,
                    const json_t *changes, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no group \"%.220s\"", name);
    store_params_change(&params, name, changes, principal);
    return store_one_doc(store, &change_group, &params, missing, done, arg, err);
}

int store_group_remove(struct store *store, const struct principal *principal, const char *name,
                       store_done_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no group \"%.220s\"", name);
    pg_params_init(&params);
    pg_param_text(&params, name);
    store_param_actor(&params, principal);
    return store_one_touched(store, &remove_group, &params, missing, done, arg, err);
}

/* ---- the audit ---- */

static const struct pg_statement page_audit = {
    "audit_page",
    "SELECT json_build_object('audit', coalesce(json_agg(t.doc ORDER BY t.id DESC), '[]'::json), "
    "       'next', CASE WHEN count(*) = $2 THEN min(t.id) END) "
    "FROM (SELECT id, json_build_object('id', id, 'at', motley_time(at), 'who', who, 'user_id', user_id, "
    "'token', "
    "      token, 'address', address, 'what', what, 'object', object, 'before', before, 'after', after) AS "
    "doc "
    "      FROM audit WHERE id < $1 ORDER BY id DESC LIMIT $2) t",
    PG_READ};

int store_audit_page(struct store *store, int64_t before_id, unsigned limit, store_doc_fn *done, void *arg,
                     struct err *err)
{
    if (limit < 1 || limit > STORE_PAGE_MAX)
        return err_set(err, ERR_INVALID, "limit: %u is not within 1..%d", limit, STORE_PAGE_MAX);
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, before_id > 0 ? before_id : INT64_MAX);
    pg_param_i64(&params, limit);
    return store_one_doc(store, &page_audit, &params, NULL, done, arg, err);
}
