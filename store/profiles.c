/* Reads measured and imported profiles as people and planners see them, and imports profiles. */
#include "store/nodes.h"
#include "store/store_private.h"

/* Imported profiles with the column `owner` that VISIBLE needs. */
#define IMPORTED "(SELECT p.*, p.imported_by AS owner FROM imported_profiles p)"

/* clang-format off */
static const struct pg_statement list_profiles = {
    "profile_list",
    "WITH all_of AS ( SELECT p.device, p.key, p.content, p.digest, p.document, p.measured_at AS at, 'measured' "
    "  AS origin, NULL AS owner FROM profiles p JOIN devices d ON d.name = p.device AND d.digest = p.digest "
    "  UNION ALL SELECT i.device, i.key, i.content, i.digest, i.document, NULL, 'imported', u.name FROM "
    IMPORTED " i LEFT JOIN users u ON u.id = i.owner WHERE " VISIBLE("i", "$2", "$3") ") "
    "SELECT json_build_object( 'profiles', (SELECT coalesce(json_agg(document::jsonb || "
    "  jsonb_strip_nulls(jsonb_build_object( 'device', device, 'key', key, 'content', content, 'digest', "
    "  digest, 'measured_at', motley_time(at), 'origin', origin, 'owner', owner)) ORDER BY device COLLATE "
    "  \"C\", key COLLATE \"C\", origin, owner COLLATE \"C\" NULLS FIRST), '[]'::json) FROM all_of WHERE $1::text IS NULL OR content = $1), 'links', (SELECT "
    "  coalesce(json_agg(document), '[]'::json) FROM links))",
    PG_READ};
/* clang-format on */

int store_profile_list(struct store *store, const struct principal *principal, const char *content,
                       store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, content);
    store_param_viewer(&params, principal);
    return store_one_doc(store, &list_profiles, &params, NULL, done, arg, err);
}

static const struct pg_statement list_links = {
    "link_list",
    "SELECT json_build_object('links', coalesce(json_agg(document::jsonb || jsonb_build_object('from', "
    "from_node, "
    " 'to', to_node, 'measured_at', motley_time(measured_at)) ORDER BY from_node COLLATE \"C\", "
    " to_node COLLATE \"C\"), '[]'::json)) FROM links WHERE NOT EXISTS (SELECT 1 FROM nodes WHERE removed_at "
    "IS NOT NULL AND name IN (from_node, to_node))",
    PG_READ};

int store_link_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    return store_one_doc(store, &list_links, NULL, NULL, done, arg, err);
}

/* clang-format off */
static const struct pg_statement plan_profiles = {
    "profile_plan",
    "WITH measured AS (SELECT p.device, p.document, s.speed, t.runs AS taught FROM profiles p JOIN devices d ON d.name = p.device AND "
    "  d.digest = p.digest LEFT JOIN device_speeds s ON s.device = p.device AND s.key = p.key AND s.at > "
    "  p.measured_at LEFT JOIN " TAUGHT_RUNS " t ON t.device = p.device WHERE p.key = $1), "
    "imported AS (SELECT DISTINCT ON (i.device) i.device, i.document FROM " IMPORTED " i JOIN devices d ON "
    "  d.name = i.device AND d.digest = i.digest WHERE i.key = $1 AND i.device NOT IN (SELECT device FROM "
    "  measured) AND " VISIBLE("i", "$2", "$3") " ORDER BY i.device, i.owner IS NOT DISTINCT FROM $2 DESC, "
    "  i.imported_at DESC) "
    "SELECT coalesce(json_agg(json_build_object('device', device, 'document', document, 'imported', "
    "  imported, 'speed', speed, 'taught', taught)), '[]'::json) FROM (SELECT device, document::jsonb, false AS imported, speed, taught FROM "
    "  measured UNION ALL SELECT device, document::jsonb || '{\"origin\": \"imported\"}', true, NULL, NULL FROM imported) x",
    PG_READ};
/* clang-format on */

int store_profile_plan(struct store *store, const struct principal *principal, const char *key,
                       store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, key);
    store_param_viewer(&params, principal);
    return store_one_doc(store, &plan_profiles, &params, NULL, done, arg, err);
}

/* clang-format off */
static const struct pg_statement import_profiles = {
    "profile_import",
    "WITH c AS (SELECT DISTINCT ON (x.device, x.key) x.* FROM json_to_recordset($1::json) AS x(device text, "
    "  key text, content text, digest text, document json)), "
    "put AS (INSERT INTO imported_profiles (device, key, content, digest, document, source, imported_by, "
    "  visibility, grp) "
    "SELECT device, key, content, digest, document, $2, nullif($3::bigint, 0), $5, motley_group($5, $6, $3, "
    "  $4) FROM c ON CONFLICT (device, key, coalesce(imported_by, 0)) DO UPDATE SET content = "
    "  excluded.content, digest = excluded.digest, document = excluded.document, source = excluded.source, "
    "  visibility = excluded.visibility, grp = excluded.grp, imported_at = now() RETURNING device, key), "
    "told AS (SELECT count(*) AS n, json_agg(DISTINCT device) AS devices FROM put), "
    "said AS ("
    AUDIT("$7", "'profile.import'", "$2", "NULL::json", "json_build_object('imported', told.n, 'devices', told.devices, 'visibility', $5::text)", "told")
    "  ) "
    "SELECT json_build_object('imported', n) FROM told",
    PG_WRITE};
/* clang-format on */

int store_profile_import(struct store *store, const struct principal *owner, const json_t *profiles,
                         const char *source, const struct sharing *sharing, store_doc_fn *done, void *arg,
                         struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_json(&params, profiles);
    pg_param_text(&params, source);
    store_param_viewer(&params, owner);
    store_param_sharing(&params, sharing);
    store_param_actor(&params, owner);
    return store_one_doc(store, &import_profiles, &params, NULL, done, arg, err);
}
