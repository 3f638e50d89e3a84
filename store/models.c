/* Models, blobs and data sets. */
#include "store/models.h"
#include "store/models.sql.h"

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

int store_model_put(struct store *store, const struct principal *owner, const struct store_model_new *model,
                    store_done_fn *done, void *arg, struct err *err)
{
    if (store_check_text("a model's name", model->name, 200, err) < 0 ||
        store_check_text("a model's content id", model->content, 128, err) < 0) {
        return -1;
    }
    struct pg_params params;
    sql_model_put(&params, &(struct sql_model_put){.name = model->name,
                                                   .content = model->content,
                                                   .config = model->config,
                                                   .files = model->files,
                                                   .info = model->info,
                                                   .principal = owner,
                                                   .sharing = &model->sharing,
                                                   .base = model->base,
                                                   .fetched = model->fetched});
    return store_one_done(store, &params, done, arg, err);
}

int store_model_get(struct store *store, const struct principal *principal, const char *called,
                    store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no model \"%.220s\"", called);
    sql_model_get(&params, called, principal);
    return store_one_doc(store, &params, missing, done, arg, err);
}

int store_model_list(struct store *store, const struct principal *principal, store_doc_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    sql_model_list(&params, principal);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

int store_model_remove(struct store *store, const struct principal *principal, const char *called,
                       store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300], thing[160];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no model \"%.220s\"", called);
    snprintf(thing, sizeof(thing), "the model \"%.120s\"", called);
    sql_model_remove(&params, called, principal);
    return store_one_change(store, &params, missing, thing, done, arg, err);
}

/* ---- blobs ---- */

int store_blobs_drop(struct store *store, double unused_s, int64_t most, store_doc_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    sql_blobs_drop(&params, unused_s, most);
    return store_one_doc(store, &params, NULL, done, arg, err);
}

static const char *models_node_of(const struct principal *principal)
{
    return principal->kind == PRINCIPAL_AGENT ? principal->name : NULL;
}

int store_blob_put(struct store *store, const struct principal *principal, const struct store_blob *blob,
                   store_done_fn *done, void *arg, struct err *err)
{
    if (check_sha256("a blob", blob->sha256, err) < 0)
        return -1;
    struct pg_params params;
    sql_blob_put(&params, blob->sha256, blob->size, blob->path, blob->manifest, principal->id,
                 models_node_of(principal));
    return store_one_done(store, &params, done, arg, err);
}

typedef void blob_fill_fn(struct pg_params *params, const char *sha256, const struct principal *principal,
                          const char *node);

static int blob_read(struct store *store, blob_fill_fn *fill, const struct principal *principal,
                     const char *sha256, store_doc_fn *done, void *arg, struct err *err)
{
    char missing[300];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no blob \"%.220s\"", sha256);
    fill(&params, sha256, principal, models_node_of(principal));
    return store_one_doc(store, &params, missing, done, arg, err);
}

int store_blob_get(struct store *store, const struct principal *principal, const char *sha256,
                   store_doc_fn *done, void *arg, struct err *err)
{
    return blob_read(store, sql_blob_get, principal, sha256, done, arg, err);
}

int store_blob_hold(struct store *store, const struct principal *principal, const char *sha256,
                    store_doc_fn *done, void *arg, struct err *err)
{
    return blob_read(store, sql_blob_hold, principal, sha256, done, arg, err);
}

int store_sent_bytes(struct store *store, int64_t user, const char *but, store_id_fn *done, void *arg,
                     struct err *err)
{
    struct pg_params params;
    sql_blobs_sent(&params, user, but);
    return store_one_id(store, &params, "", done, arg, err);
}

int store_hold_job(struct store *store, const struct principal *principal, const json_t *spec,
                   const json_t *inputs, store_done_fn *done, void *arg, struct err *err)
{
    struct pg_params params;
    sql_job_hold(&params, principal->id, inputs, spec);
    return store_one_done(store, &params, done, arg, err);
}

/* ---- data sets ---- */

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
    sql_dataset_put(&params, dataset->key, dataset->blob, dataset->stats, dataset->sizes,
                    dataset->sizes_bytes);
    return store_one_done(store, &params, done, arg, err);
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
    size_t room = pg_length(found, 0, DATASET_GET_SIZES);
    uint8_t *sizes = malloc(room > 0 ? room : 1);
    json_t *stats = pg_json(found, 0, DATASET_GET_STATS);
    int64_t size = sizes ? pg_bytes(found, 0, DATASET_GET_SIZES, sizes, room) : -1;
    if (size < 0 || !stats) {
        err_set(&err, ERR_NOMEM, "no memory for a data set's row sizes");
        done(call->arg, &err, NULL);
    } else {
        const struct store_dataset dataset = {.key = pg_text(found, 0, DATASET_GET_KEY),
                                              .blob = pg_text(found, 0, DATASET_GET_BLOB),
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
    sql_dataset_may(&params, key, principal, source);
    return store_one_touched(store, &params, missing, done, arg, err);
}

int store_dataset_get(struct store *store, const char *key, store_dataset_fn *done, void *arg,
                      struct err *err)
{
    char missing[160];
    struct pg_params params;
    snprintf(missing, sizeof(missing), "there is no data set \"%.100s\"", key);
    sql_dataset_get(&params, key);
    const struct pg_step step = store_step(&params);
    int rc = store_run(
        store, &step, 1, 0,
        store_call_create(dataset_deliver, dataset_fail, (void (*)(void))done, arg, missing, err), err);
    pg_params_fini(&params);
    return rc;
}
