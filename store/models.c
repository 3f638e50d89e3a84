/* Models, blobs, data sets. */
#include "store/models.h"
#include "store/store_private.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/digest.h"

static int check_sha256(const char *what, const char *text, struct err *err)
{
    if (text == NULL || strlen(text) != 64 || strspn(text, "0123456789abcdef") != 64) {
        return err_set(err, ERR_INVALID, "%s must be 64 lower-case hex digits", what);
    }
    return 0;
}

/* ---- models ---- */

static const struct pg_statement put_model = {
    "model_put",
    "WITH kept AS (INSERT INTO models (content, config, files, info) VALUES ($2, $3, $4, $5) "
    "  ON CONFLICT (content) DO UPDATE SET files = excluded.files, info = coalesce(excluded.info, "
    "models.info) "
    "  RETURNING content) "
    "INSERT INTO model_names (name, content, owner) SELECT $1, content, nullif($6::bigint, 0) FROM kept "
    "ON CONFLICT (name) DO UPDATE SET content = excluded.content, owner = excluded.owner, created_at = now()",
    PG_WRITE};
static const struct pg_statement get_model = {
    "model_get",
    "SELECT json_build_object('name', coalesce(n.name, (SELECT name FROM model_names WHERE content = "
    "m.content "
    " ORDER BY created_at DESC, name LIMIT 1), $1), 'content', m.content, 'config', m.config, "
    " 'files', m.files, 'info', m.info, 'created', motley_time(m.created_at)) "
    "FROM models m LEFT JOIN model_names n ON n.content = m.content AND n.name = $1 "
    "WHERE m.content = coalesce((SELECT content FROM model_names WHERE name = $1), $1)",
    PG_READ};
static const struct pg_statement list_models = {
    "model_list",
    "SELECT json_build_object('models', coalesce(json_agg(json_build_object('name', n.name, 'content', "
    "n.content, "
    " 'info', m.info, 'created', motley_time(n.created_at)) ORDER BY n.name), '[]'::json)) "
    "FROM model_names n JOIN models m USING (content)",
    PG_READ};
static const struct pg_statement remove_model = {"model_remove", "DELETE FROM model_names WHERE name = $1",
                                                 PG_WRITE};

int store_model_put(struct store *store, const struct store_model_new *model, store_done_fn *done, void *arg,
                    struct err *err)
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
    pg_param_i64(&params, model->owner);
    return store_one_done(store, &put_model, &params, done, arg, err);
}

static int by_text(struct store *store, const struct pg_statement *statement, const char *what,
                   const char *text, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no %s \"%.220s\"", what, text);
    pg_params_init(&params);
    pg_param_text(&params, text);
    return store_one_doc(store, statement, &params, missing, done, arg, err);
}

int store_model_get(struct store *store, const char *name_or_content, store_doc_fn *done, void *arg,
                    struct err *err)
{
    return by_text(store, &get_model, "model", name_or_content, done, arg, err);
}

int store_model_list(struct store *store, store_doc_fn *done, void *arg, struct err *err)
{
    return store_one_doc(store, &list_models, NULL, NULL, done, arg, err);
}

int store_model_remove(struct store *store, const char *name, store_done_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no model \"%.220s\"", name);
    pg_params_init(&params);
    pg_param_text(&params, name);
    return store_one_touched(store, &remove_model, &params, missing, done, arg, err);
}

/* ---- blobs ---- */

static const struct pg_statement put_blob = {
    "blob_put",
    "INSERT INTO blobs (sha256, size, path, manifest) VALUES ($1, $2, $3, $4) ON CONFLICT (sha256) DO UPDATE "
    "SET "
    "manifest = coalesce(excluded.manifest, blobs.manifest), used_at = now(), "
    "path = CASE WHEN excluded.path IS NULL THEN NULL ELSE blobs.path END",
    PG_WRITE};
static const struct pg_statement get_blob = {
    "blob_get", /* who asks may be about to refer to it */
    "WITH used AS (UPDATE blobs SET used_at = now() WHERE sha256 = $1 AND used_at < now() - interval '1 "
    "minute') "
    "SELECT json_build_object('sha256', sha256, 'size', size, 'path', path, 'manifest', manifest) FROM blobs "
    "WHERE sha256 = $1",
    PG_READ};

/* Everything that names a file: checkpoints that are kept, artifacts, encoded rows, models, and the adapters
 * and whatever else jobs start from. A row touched meanwhile is looked at again by the DELETE itself. */
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

int store_blob_put(struct store *store, const struct store_blob *blob, store_done_fn *done, void *arg,
                   struct err *err)
{
    if (check_sha256("a blob's SHA-256", blob->sha256, err) < 0) {
        return -1;
    }
    struct pg_params params;
    pg_params_init(&params);
    pg_param_text(&params, blob->sha256);
    pg_param_i64(&params, blob->size);
    pg_param_text(&params, blob->path);
    pg_param_json(&params, blob->manifest);
    return store_one_done(store, &put_blob, &params, done, arg, err);
}

int store_blob_get(struct store *store, const char *sha256, store_doc_fn *done, void *arg, struct err *err)
{
    return by_text(store, &get_blob, "blob", sha256, done, arg, err);
}

/* ---- data sets ---- */

static const struct pg_statement put_dataset = {
    "dataset_put",
    "INSERT INTO datasets (key, blob, stats, sizes) VALUES ($1, $2, $3, $4) ON CONFLICT (key) DO UPDATE SET "
    "blob = excluded.blob, stats = excluded.stats, sizes = excluded.sizes, used_at = now()",
    PG_WRITE};
static const struct pg_statement get_dataset = {"dataset_get", /* who asks may be about to refer to it */
                                                "WITH used AS (UPDATE datasets SET used_at = now() WHERE key "
                                                "= $1 AND used_at < now() - interval '1 minute') "
                                                "SELECT key, blob, stats, sizes FROM datasets WHERE key = $1",
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
    /* bytea comes as text: two hex digits a byte behind "\x". */
    size_t room = pg_length(found, 0, 3);
    uint8_t *sizes = malloc(room > 0 ? room : 1);
    json_t *stats = pg_json(found, 0, 2);
    int64_t size = sizes != NULL ? pg_bytes(found, 0, 3, sizes, room) : -1;
    if (size < 0 || stats == NULL) {
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
