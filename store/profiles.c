/* Measured and imported profiles, as people and planners see them. */
#include "store/nodes.h"
#include "store/store_private.h"

static const struct pg_statement list_profiles = {
    "profile_list",
    "WITH all_of AS ("
    " SELECT p.device, p.key, p.content, p.digest, p.document, p.measured_at AS at, 'measured' AS origin "
    " FROM profiles p JOIN devices d ON d.name = p.device AND d.digest = p.digest "
    " UNION ALL SELECT device, key, content, digest, document, NULL, 'imported' FROM imported_profiles) "
    "SELECT json_build_object("
    " 'profiles', (SELECT coalesce(json_agg(document::jsonb || jsonb_strip_nulls(jsonb_build_object("
    "  'device', device, 'key', key, 'content', content, 'digest', digest, 'measured_at', motley_time(at), "
    "  'origin', origin)) ORDER BY device, key, origin), '[]'::json) "
    "  FROM all_of WHERE $1::text IS NULL OR content = $1), "
    " 'links', (SELECT coalesce(json_agg(document), '[]'::json) FROM links))",
    PG_READ};

int store_profile_list(struct store *store, const char *content, store_doc_fn *done, void *arg,
                       struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, content);
    return store_one_doc(store, &list_profiles, &params, NULL, done, arg, err);
}

static const struct pg_statement plan_profiles = {
    "profile_plan",
    "WITH measured AS (SELECT p.device, p.document FROM profiles p "
    "  JOIN devices d ON d.name = p.device AND d.digest = p.digest WHERE p.key = $1), "
    "imported AS (SELECT i.device, i.document FROM imported_profiles i "
    "  JOIN devices d ON d.name = i.device AND d.digest = i.digest "
    "  WHERE i.key = $1 AND i.device NOT IN (SELECT device FROM measured)) "
    "SELECT coalesce(json_agg(json_build_object('device', device, 'document', document, 'imported', "
    "imported)), "
    " '[]'::json) FROM (SELECT device, document::jsonb, false AS imported FROM measured "
    " UNION ALL SELECT device, document::jsonb || '{\"origin\": \"imported\"}', true FROM imported) x",
    PG_READ};

int store_profile_plan(struct store *store, const char *key, store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, key);
    return store_one_doc(store, &plan_profiles, &params, NULL, done, arg, err);
}

static const struct pg_statement import_profiles = {
    "profile_import",
    "WITH c AS (SELECT DISTINCT ON (x.device, x.key) x.* FROM json_to_recordset($1::json) AS "
    "  x(device text, key text, content text, digest text, document json)), "
    "put AS (INSERT INTO imported_profiles (device, key, content, digest, document, source, imported_by) "
    "  SELECT device, key, content, digest, document, $2, $3 FROM c "
    "  ON CONFLICT (device, key) DO UPDATE SET content = excluded.content, digest = excluded.digest, "
    "   document = excluded.document, source = excluded.source, imported_by = excluded.imported_by, "
    "   imported_at = now() RETURNING 1) "
    "SELECT json_build_object('imported', (SELECT count(*) FROM put))",
    PG_WRITE};

int store_profile_import(struct store *store, const json_t *profiles, const char *source, int64_t user,
                         store_doc_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_json(&params, profiles);
    pg_param_text(&params, source);
    if (user > 0)
        pg_param_i64(&params, user);
    else
        pg_param_text(&params, NULL);
    return store_one_doc(store, &import_profiles, &params, NULL, done, arg, err);
}
