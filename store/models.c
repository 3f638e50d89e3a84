/* Models, blobs and data sets. */
#include "store/models.h"
#include "store/store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"

static int check_sha256(const char *what, const char *text, struct err *err)
{
    if (!text || strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64)
        return err_set(err, ERR_INVALID, "%s must be 64 lower-case hex digits", what);
    return 0;
}

/* ---- models ---- */

/* clang-format off */
static const struct pg_statement put_model = {
    "model_put",
    "WITH kept AS (INSERT INTO models (content, config, files, info) VALUES ($2, $3, $4, $5) ON CONFLICT "
    "  (content) DO UPDATE SET files = excluded.files, info = coalesce(excluded.info, models.info) RETURNING "
    "  content), "
    "was AS (SELECT content, visibility FROM model_names WHERE owner = $6 AND name = $1), "
    "put AS (INSERT INTO model_names (name, content, owner, visibility, grp, base, fetched) "
    "SELECT $1, content, $6, $8, motley_group($8, $9, $6, $7), $11::json, $12::boolean FROM kept ON CONFLICT (owner, name) DO UPDATE "
    "  SET content = excluded.content, created_at = now(), visibility = excluded.visibility, grp = "
    "  excluded.grp, base = excluded.base, fetched = excluded.fetched RETURNING name, owner, content, visibility) "
    AUDIT("$10", "'model.put'", "u.name || '/' || put.name", "(SELECT json_build_object('content', content, 'visibility', visibility) FROM was)", "json_build_object('content', put.content, 'visibility', put.visibility)", "put JOIN users u ON u.id = put.owner"),
    PG_WRITE};
/* clang-format on */

/* Parameters: $1: the name; $2, $3: the asker. A bare name means the asker's own model; else the oldest one
 * that the asker may see as a person; else one that the asker sees only as an administrator. */
#define NAMED_SQL                                                                                            \
    "named AS (SELECT n.id, n.name, n.content, n.owner, u.name AS owner_name, n.visibility, n.grp, n.base "  \
    "  FROM model_names n JOIN users u ON u.id = n.owner "                                                   \
    "  WHERE n.name IN ($1, substring($1 FROM '/([^/]*)$')) AND (n.name = $1 OR u.name || '/' || n.name = "  \
    "$1) "                                                                                                   \
    "  AND " VISIBLE("n", "$2", "$3") " ORDER BY n.owner = $2 DESC, " VISIBLE(                               \
        "n", "$2", "false") " DESC, n.id LIMIT 1)"
#define MODEL_JSON                                                                                           \
    "'owner', n.owner_name, 'visibility', n.visibility, 'group', (SELECT name FROM groups WHERE id = "       \
    "n.grp), "                                                                                               \
    "'content', m.content, 'info', m.info, 'base', n.base"

/* clang-format off */
static const struct pg_statement get_model = {
    "model_get",
    "WITH " NAMED_SQL ", by_id AS (SELECT n.id, n.name, n.content, n.owner, u.name AS owner_name, "
    "  n.visibility, n.grp, n.base FROM model_names n JOIN users u ON u.id = n.owner WHERE n.content = $1 AND "
    VISIBLE("n", "$2", "$3") " ORDER BY n.owner = $2 DESC, n.created_at DESC, n.id LIMIT 1), "
    "n AS (SELECT * FROM named UNION ALL SELECT * FROM by_id WHERE NOT EXISTS (SELECT 1 FROM named) UNION ALL "
    "  SELECT NULL, content, content, NULL, NULL, NULL, NULL, NULL FROM models WHERE content = $1 AND "
    "  motley_uses($1, $2, $3) LIMIT 1) "
    "SELECT json_build_object('name', n.name, " MODEL_JSON ", 'config', m.config, 'files', m.files, 'created', "
    "  motley_time(m.created_at)) FROM n JOIN models m USING (content)",
    PG_READ};
static const struct pg_statement list_models = {
    "model_list",
    "SELECT json_build_object('models', coalesce(json_agg(json_build_object('name', n.name, " MODEL_JSON ", "
    "  'created', motley_time(n.created_at)) ORDER BY n.name COLLATE \"C\", n.owner_name COLLATE \"C\"), '[]'::json)) FROM (SELECT n.*, "
    "  u.name AS owner_name FROM model_names n JOIN users u ON u.id = n.owner WHERE " VISIBLE("n", "$1", "$2")
    "  ) n JOIN models m USING (content)",
    PG_READ};
static const struct pg_statement remove_model = {
    "model_remove",
    "WITH " NAMED_SQL ", gone AS (DELETE FROM model_names n USING named WHERE n.id = named.id AND "
    OWNED("n", "$2", "$3") " RETURNING n.content), "
    "said AS ("
    AUDIT("$4", "'model.remove'", "named.owner_name || '/' || named.name", "json_build_object('content', gone.content)", "NULL::json", "gone, named")
    "  ) "
    "SELECT EXISTS (SELECT 1 FROM gone), owner_name, json_build_object('name', name, 'owner', owner_name) FROM "
    "  named",
    PG_WRITE};
/* clang-format on */

int store_model_put(struct store *store, const struct principal *owner, const struct store_model_new *model,
                    store_done_fn *done, void *arg, struct err *err)
{
    if (store_check_text("a model's name", model->name, 200, err) < 0 ||
        store_check_text("a model's content id", model->content, 128, err) < 0) {
        return -1;
    }
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, model->name);
    pg_param_text(&params, model->content);
    pg_param_json(&params, model->config);
    pg_param_json(&params, model->files);
    pg_param_json(&params, model->info);
    store_param_viewer(&params, owner);
    store_param_sharing(&params, &model->sharing);
    store_param_actor(&params, owner);
    pg_param_json(&params, model->base);
    pg_param_bool(&params, model->fetched);
    return store_one_done(store, &put_model, &params, done, arg, err);
}

int store_model_get(struct store *store, const struct principal *principal, const char *called,
                    store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no model \"%.220s\"", called);
    pg_params_init(&params);
    pg_param_text(&params, called);
    store_param_viewer(&params, principal);
    return store_one_doc(store, &get_model, &params, missing, done, arg, err);
}

int store_model_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    store_param_viewer(&params, principal);
    return store_one_doc(store, &list_models, &params, NULL, done, arg, err);
}

int store_model_remove(struct store *store, const struct principal *principal, const char *called,
                       store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300], thing[160];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no model \"%.220s\"", called);
    snprintf(thing, sizeof(thing), "the model \"%.120s\"", called);
    pg_params_init(&params);
    pg_param_text(&params, called);
    store_param_viewer(&params, principal);
    store_param_actor(&params, principal);
    return store_one_change(store, &remove_model, &params, missing, thing, done, arg, err);
}

/* ---- blobs ---- */

static const struct pg_statement put_blob = {
    "blob_put",
    "WITH put AS (INSERT INTO blobs (sha256, size, path, manifest) VALUES ($1, $2, $3, $4) "
    "  ON CONFLICT (sha256) DO UPDATE SET manifest = coalesce(excluded.manifest, blobs.manifest), used_at = "
    "now(), "
    "  path = CASE WHEN excluded.path IS NULL THEN NULL ELSE blobs.path END RETURNING sha256) "
    "INSERT INTO holds (what, user_id, node, sent) SELECT sha256, nullif($5::bigint, 0), $6::text, true FROM "
    "put "
    "WHERE $5 > 0 OR $6 IS NOT NULL ON CONFLICT DO NOTHING",
    PG_WRITE};

/* Parameters: $1: the file; $2, $3: the asking person; $4: the asking node, or null. */
#define MAY_READ_SQL "(motley_reads($1, $2, $3) OR ($4::text IS NOT NULL AND motley_node_reads($1, $4)))"
#define BLOB_JSON "json_build_object('sha256', sha256, 'size', size, 'path', path, 'manifest', manifest)"

static const struct pg_statement get_blob = {
    "blob_get", /* the statement updates used_at, since the asker may be about to refer to the file */
    "WITH may AS MATERIALIZED (SELECT * FROM blobs WHERE sha256 = $1 AND " MAY_READ_SQL "), "
    "used AS (UPDATE blobs b SET used_at = now() FROM may WHERE b.sha256 = may.sha256 "
    "  AND b.used_at < now() - interval '1 minute') "
    "SELECT " BLOB_JSON " FROM may",
    PG_READ};
static const struct pg_statement hold_blob = {
    "blob_hold",
    "WITH may AS MATERIALIZED (SELECT * FROM blobs WHERE sha256 = $1 AND " MAY_READ_SQL "), "
    "used AS (UPDATE blobs b SET used_at = now() FROM may WHERE b.sha256 = may.sha256 "
    "  AND b.used_at < now() - interval '1 minute'), "
    "held AS (INSERT INTO holds (what, user_id, node) SELECT sha256, nullif($2::bigint, 0), $4 FROM may "
    "  WHERE $2 > 0 OR $4 IS NOT NULL ON CONFLICT DO NOTHING) "
    "SELECT " BLOB_JSON " FROM may",
    PG_WRITE};
static const struct pg_statement hold_job = {
    "job_hold",
    "INSERT INTO holds (what, user_id) SELECT h, $1::bigint FROM unnest(motley_job_files($2::jsonb, "
    "$3::jsonb)) h "
    "UNION SELECT blob, $1::bigint FROM datasets WHERE key IN ($2::jsonb ->> 'train', $2::jsonb ->> 'eval') "
    "ON CONFLICT DO NOTHING",
    PG_WRITE};

/* `named` lists every file that something refers to: stored checkpoints, artifacts, encoded rows, models, and
 * the adapters that jobs start from. The DELETE checks used_at again, because a file may have been used in
 * the meantime. */
static const struct pg_statement drop_blobs = {
    "blobs_drop",
    "WITH old AS (SELECT sha256 FROM blobs WHERE path IS NULL AND used_at < now() - make_interval(secs => "
    "$1) "
    "    ORDER BY used_at LIMIT $2), "
    "named AS (SELECT coalesce(b.value ->> 'sha256', b.value #>> '{}') AS sha256 FROM checkpoints c, "
    "      jsonb_each(c.blobs) b "
    "  UNION SELECT sha256 FROM artifacts UNION SELECT blob FROM datasets "
    "  UNION SELECT f.value ->> 'sha256' FROM models m, json_array_elements(m.files) f "
    "  UNION SELECT coalesce(a.value ->> 'sha256', a.value #>> '{}') FROM jobs j, "
    "      json_each(CASE json_typeof(j.inputs -> 'adapter') WHEN 'object' THEN j.inputs -> 'adapter' "
    "                ELSE '{}'::json END) a), "
    "gone AS (DELETE FROM blobs b USING old WHERE b.sha256 = old.sha256 AND b.used_at < now() - "
    "    make_interval(secs => $1) AND NOT EXISTS (SELECT 1 FROM named n WHERE n.sha256 = b.sha256) "
    "    RETURNING b.sha256), "
    "let_go AS (DELETE FROM holds h USING gone WHERE h.what = gone.sha256), "
    "kept AS (UPDATE blobs b SET used_at = now() FROM old WHERE b.sha256 = old.sha256 "
    "    AND EXISTS (SELECT 1 FROM named n WHERE n.sha256 = b.sha256)) "
    "SELECT json_build_object('sha256', coalesce(json_agg(sha256), '[]'::json), 'looked_at', "
    "    (SELECT count(*) FROM old)) FROM gone",
    PG_WRITE};

int store_blobs_drop(struct store *store, double unused_s, int64_t most, store_doc_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_f64(&params, unused_s);
    pg_param_i64(&params, most);
    return store_one_doc(store, &drop_blobs, &params, NULL, done, arg, err);
}

static const char *node_of(const struct principal *principal)
{
    return principal->kind == PRINCIPAL_AGENT ? principal->name : NULL;
}

int store_blob_put(struct store *store, const struct principal *principal, const struct store_blob *blob,
                   store_done_fn *done, void *arg, struct err *err)
{
    if (check_sha256("a blob", blob->sha256, err) < 0)
        return -1;
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, blob->sha256);
    pg_param_i64(&params, blob->size);
    pg_param_text(&params, blob->path);
    pg_param_json(&params, blob->manifest);
    pg_param_i64(&params, principal->id);
    pg_param_text(&params, node_of(principal));
    return store_one_done(store, &put_blob, &params, done, arg, err);
}

static int blob_read(struct store *store, const struct pg_statement *statement,
                     const struct principal *principal, const char *sha256, store_doc_fn *done, void *arg,
                     struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no blob \"%.220s\"", sha256);
    pg_params_init(&params);
    pg_param_text(&params, sha256);
    store_param_viewer(&params, principal);
    pg_param_text(&params, node_of(principal));
    return store_one_doc(store, statement, &params, missing, done, arg, err);
}

int store_blob_get(struct store *store, const struct principal *principal, const char *sha256,
                   store_doc_fn *done, void *arg, struct err *err)
{
    return blob_read(store, &get_blob, principal, sha256, done, arg, err);
}

int store_blob_hold(struct store *store, const struct principal *principal, const char *sha256,
                    store_doc_fn *done, void *arg, struct err *err)
{
    return blob_read(store, &hold_blob, principal, sha256, done, arg, err);
}

/* What the person sent, and what the server fetched for them, unless it is of the model $2. */
static const struct pg_statement sent_bytes = {
    "blobs_sent",
    "SELECT coalesce(sum(size), 0)::bigint FROM (SELECT b.sha256, b.size FROM holds h JOIN blobs b ON "
    "b.sha256 = "
    "h.what AND b.path IS NULL WHERE h.sent AND h.user_id = $1 "
    "UNION SELECT f.value ->> 'sha256', (f.value ->> 'size')::bigint FROM model_names n JOIN models m USING "
    "(content), json_array_elements(m.files) f WHERE n.owner = $1 AND n.fetched AND n.base ->> 'name' IS "
    "DISTINCT "
    "FROM $2) s",
    PG_READ};

int store_sent_bytes(struct store *store, int64_t user, const char *but, store_id_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, user);
    pg_param_text(&params, but);
    return store_one_id(store, &sent_bytes, &params, "", done, arg, err);
}

int store_hold_job(struct store *store, const struct principal *principal, const json_t *spec,
                   const json_t *inputs, store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    pg_params_init(&params);
    pg_param_i64(&params, principal->id);
    pg_param_json(&params, inputs);
    pg_param_json(&params, spec);
    return store_one_done(store, &hold_job, &params, done, arg, err);
}

/* ---- data sets ---- */

static const struct pg_statement put_dataset = {
    "dataset_put",
    "INSERT INTO datasets (key, blob, stats, sizes) VALUES ($1, $2, $3, $4) ON CONFLICT (key) DO UPDATE SET "
    "blob = excluded.blob, stats = excluded.stats, sizes = excluded.sizes, used_at = now()",
    PG_WRITE};
/* The statement updates used_at, since the asker may be about to refer to the data set. */
static const struct pg_statement get_dataset = {"dataset_get",
                                                "WITH used AS (UPDATE datasets SET used_at = now() WHERE key "
                                                "= $1 AND used_at < now() - interval '1 minute') "
                                                "SELECT key, blob, stats, sizes FROM datasets WHERE key = $1",
                                                PG_READ};
static const struct pg_statement may_dataset = {
    "dataset_may",
    "SELECT 1 WHERE EXISTS (SELECT 1 FROM blobs WHERE sha256 = $4 AND motley_reads($4, $2, $3)) OR $3 "
    "OR EXISTS (SELECT 1 FROM holds WHERE what = $1 AND user_id = $2) OR motley_shared(ARRAY[$1::text], $2)",
    PG_READ};

int store_dataset_put(struct store *store, const struct store_dataset_new *dataset, store_done_fn *done,
                      void *arg, struct err *err)
{
    if (check_sha256("a data set's key", dataset->key, err) < 0 ||
        check_sha256("a data set's blob", dataset->blob, err) < 0) {
        return -1;
    }
    if (dataset->sizes_bytes > STORE_SIZES_MAX || dataset->sizes_bytes % 8 != 0) {
        return err_set(err, ERR_TOO_BIG,
                       "a data set's row sizes have %zu bytes: not a multiple of 8 up to %u",
                       dataset->sizes_bytes, STORE_SIZES_MAX);
    }
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, dataset->key);
    pg_param_text(&params, dataset->blob);
    pg_param_json(&params, dataset->stats);
    pg_param_bytes(&params, dataset->sizes, dataset->sizes_bytes);
    return store_one_done(store, &put_dataset, &params, done, arg, err);
}

static void dataset_fail(struct store_call *call, const struct err *err)
{
    ((store_dataset_fn *)call->done)(call->arg, err, NULL);
}

static void dataset_deliver(struct store_call *call, const struct pg_result *const *results, int count)
{
    store_dataset_fn *done = (store_dataset_fn *)call->done;
    const struct pg_result *found = results[count - 1];
    struct err err;
    if (pg_rows(found) == 0) {
        err_set(&err, ERR_NOT_FOUND, "%s", call->missing);
        done(call->arg, &err, NULL);
        return;
    }
    /* libpq returns a bytea as text: "\x" and two hex digits per byte. */
    size_t room = pg_length(found, 0, 3);
    uint8_t *sizes = malloc(room > 0 ? room : 1);
    json_t *stats = pg_json(found, 0, 2);
    int64_t size = sizes ? pg_bytes(found, 0, 3, sizes, room) : -1;
    if (size < 0 || !stats) {
        err_set(&err, ERR_NOMEM, "no memory for a data set's row sizes");
        done(call->arg, &err, NULL);
    } else {
        const struct store_dataset dataset = {.key = pg_text(found, 0, 0),
                                              .blob = pg_text(found, 0, 1),
                                              .stats = stats,
                                              .sizes = sizes,
                                              .sizes_bytes = (size_t)size};
        done(call->arg, NULL, &dataset);
    }
    json_decref(stats);
    free(sizes);
}

int store_dataset_may(struct store *store, const struct principal *principal, const char *key,
                      const char *source, store_done_fn *done, void *arg, struct err *err)
{
    char missing[160];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no data set \"%.100s\"", key);
    pg_params_init(&params);
    pg_param_text(&params, key);
    store_param_viewer(&params, principal);
    pg_param_text(&params, source);
    return store_one_touched(store, &may_dataset, &params, missing, done, arg, err);
}

int store_dataset_get(struct store *store, const char *key, store_dataset_fn *done, void *arg,
                      struct err *err)
{
    char missing[160];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no data set \"%.100s\"", key);
    pg_params_init(&params);
    pg_param_text(&params, key);
    const struct pg_step step = {&get_dataset, &params};
    int rc = store_run(
        store, &step, 1, 0,
        store_call_create(dataset_deliver, dataset_fail, (void (*)(void))done, arg, missing, err), err);
    pg_params_fini(&params);
    return rc;
}
