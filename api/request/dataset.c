/* Makes encoded rows of uploaded files: looks in the store, or else encodes on the pool; records the result,
 * and answers all requests for it. */
#include "api/request/dataset.h"

#include "api/request/blob_dir.h"
#include "api/request/parsed.h"
#include "common/digest.h"
#include "common/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

enum { ENCODINGS_MAX = 256 };

struct dataset_encoding;

/* One request for encoded rows. It first checks whether its asker may use the data set; then it joins the
 * encoding of the same data set, or begins one. */
struct waiter {
    STAILQ_ENTRY(waiter) link;
    /* the request's encoding before it has begun; NULL once it has begun or the request has joined another
     * encoding */
    struct dataset_encoding *encoding;
    char what[32]; /* prefix of the text of this request's error */
    dataset_done_fn *done;
    void *arg;
};

struct dataset_encoding {
    struct pool_task task; /* must come first: a pointer to the task is cast to the encoding */
    LIST_ENTRY(dataset_encoding) link;
    bool begun; /* the encoding is on the list `under_way` */
    struct datasets *datasets;
    STAILQ_HEAD(, waiter) waiters;
    char key[DIGEST_HEX_SIZE];
    char sha256[DIGEST_HEX_SIZE];
    char source_path[BLOB_PATH_MAX];
    json_t *files; /* the model's files; a copy */
    json_t *chat;
    char day[16]; /* data.day, or "" */
    enum spec_format format;
    enum spec_learn learn;
    uint32_t sequence_tokens;
    struct parsed_rows rows;
    struct err err;
};

struct datasets {
    struct app *app;
    LIST_HEAD(, dataset_encoding) under_way;
    unsigned count; /* number of all encodings, begun or not */
};

int datasets_create(struct app *app, struct datasets **datasets, struct err *err)
{
    *datasets = calloc(1, sizeof(**datasets));
    if (!*datasets)
        return err_set(err, ERR_NOMEM, "out of memory for data sets");
    (*datasets)->app = app;
    LIST_INIT(&(*datasets)->under_way);
    return 0;
}

static void encoding_free(struct dataset_encoding *encoding)
{
    struct waiter *waiter;
    while ((waiter = STAILQ_FIRST(&encoding->waiters))) {
        STAILQ_REMOVE_HEAD(&encoding->waiters, link);
        free(waiter);
    }
    if (encoding->begun)
        LIST_REMOVE(encoding, link);
    encoding->datasets->count--;
    json_decref(encoding->files);
    json_decref(encoding->chat);
    json_decref(encoding->rows.stats);
    free(encoding->rows.sizes);
    manifest_fini(&encoding->rows.manifest);
    free(encoding);
}

void datasets_destroy(struct datasets *datasets)
{
    if (!datasets)
        return;
    struct dataset_encoding *encoding;
    while ((encoding = LIST_FIRST(&datasets->under_way)))
        encoding_free(encoding);
    free(datasets);
}

static void waiter_end(struct waiter *waiter, const struct err *err, const struct store_dataset *dataset)
{
    if (err) {
        struct err mine = *err;
        err_wrap(&mine, "%s", waiter->what);
        waiter->done(waiter->arg, &mine, NULL);
    } else {
        waiter->done(waiter->arg, NULL, dataset);
    }
    if (waiter->encoding)
        encoding_free(waiter->encoding);
    free(waiter);
}

/* Answers all requests that wait for the encoding, and frees it. */
static void encoding_end(struct dataset_encoding *encoding, const struct err *err,
                         const struct store_dataset *dataset)
{
    struct waiter *waiter;
    LIST_REMOVE(encoding, link);
    encoding->begun = false;
    while ((waiter = STAILQ_FIRST(&encoding->waiters))) {
        STAILQ_REMOVE_HEAD(&encoding->waiters, link);
        waiter_end(waiter, err, dataset);
    }
    encoding_free(encoding);
}

/* ---- on a pool thread ---- */

static void encoding_work(struct pool_task *task)
{
    struct dataset_encoding *encoding = (struct dataset_encoding *)task;
    const struct parsed_text text = {.files = encoding->files,
                                     .chat = encoding->chat,
                                     .day = *encoding->day ? encoding->day : NULL,
                                     .format = encoding->format,
                                     .learn = encoding->learn,
                                     .sequence_tokens = encoding->sequence_tokens};
    parsed_rows(encoding->datasets->app, &text, encoding->source_path, &encoding->rows, &encoding->err);
}

/* ---- on the loop's thread ---- */

static void dataset_recorded(void *arg, const struct err *err)
{
    struct dataset_encoding *encoding = arg;
    char blob[DIGEST_HEX_SIZE];
    digest_hex(encoding->rows.manifest.sha256, 32, blob);
    struct store_dataset dataset = {.key = encoding->key,
                                    .blob = blob,
                                    .stats = encoding->rows.stats,
                                    .sizes = (const uint8_t *)encoding->rows.sizes,
                                    .sizes_bytes = encoding->rows.sizes_bytes};
    encoding_end(encoding, err, &dataset);
}

static void blob_recorded(void *arg, const struct err *err)
{
    struct dataset_encoding *encoding = arg;
    if (err) {
        encoding_end(encoding, err, NULL);
        return;
    }
    char blob[DIGEST_HEX_SIZE];
    digest_hex(encoding->rows.manifest.sha256, 32, blob);
    struct store_dataset_new dataset = {.key = encoding->key,
                                        .blob = blob,
                                        .sizes = encoding->rows.sizes,
                                        .sizes_bytes = encoding->rows.sizes_bytes,
                                        .stats = encoding->rows.stats};
    if (store_dataset_put(encoding->datasets->app->store, &dataset, dataset_recorded, encoding,
                          &encoding->err) < 0)
        encoding_end(encoding, &encoding->err, NULL);
}

static void encoding_done(struct pool_task *task)
{
    struct dataset_encoding *encoding = (struct dataset_encoding *)task;
    struct err *err = &encoding->err;
    pool_ran(task, err);
    if (err->code) {
        encoding_end(encoding, err, NULL);
        return;
    }
    encoding->datasets->app->counters.datasets_encoded++;
    char name[DIGEST_HEX_SIZE];
    digest_hex(encoding->rows.manifest.sha256, 32, name);
    json_t *manifest = manifest_to_json(&encoding->rows.manifest, err);
    struct store_blob blob = {
        .sha256 = name, .size = (int64_t)encoding->rows.manifest.size, .manifest = manifest};
    if (!manifest || store_blob_put(encoding->datasets->app->store, &principal_service, &blob, blob_recorded,
                                    encoding, err) < 0)
        encoding_end(encoding, err, NULL);
    json_decref(manifest);
}

static void source_found(void *arg, const struct err *err, json_t *doc)
{
    struct dataset_encoding *encoding = arg;
    if (err) {
        struct err mine = *err;
        if (err->code == ERR_NOT_FOUND)
            err_set(&mine, ERR_INVALID, "the file sha256:%s was not uploaded", encoding->sha256);
        encoding_end(encoding, &mine, NULL);
        return;
    }
    const char *path = json_string_value(json_object_get(doc, "path"));
    if (path)
        snprintf(encoding->source_path, sizeof(encoding->source_path), "%s", path);
    else
        blob_path(encoding->datasets->app->blobs, encoding->sha256, encoding->source_path);
    encoding->task.work = encoding_work;
    encoding->task.done = encoding_done;
    if (pool_run(encoding->datasets->app->pool, &encoding->task, &encoding->err) < 0)
        encoding_end(encoding, &encoding->err, NULL);
}

static void dataset_found(void *arg, const struct err *err, const struct store_dataset *dataset)
{
    struct dataset_encoding *encoding = arg;
    if (!err) {
        encoding_end(encoding, NULL, dataset);
        return;
    }
    if (err->code != ERR_NOT_FOUND) {
        encoding_end(encoding, err, NULL);
        return;
    }
    if (store_blob_get(encoding->datasets->app->store, &principal_service, encoding->sha256, source_found,
                       encoding, &encoding->err) < 0)
        encoding_end(encoding, &encoding->err, NULL);
}

/* Computes the data set's key, which covers everything that determines the encoded rows; the model's content
 * id covers the tokenizer and the template. The version in the key rises when equal inputs are encoded
 * differently (2: templates are rendered instead of recognised; 3: rows are passed on whole). */
static int make_key(const struct dataset_want *want, char key[DIGEST_HEX_SIZE], struct err *err)
{
    struct buf text;
    buf_init(&text, 1 << 22);
    json_t *chat = want->spec->data.chat_template;
    json_t *document = json_pack(
        "{s:i, s:s, s:O, s:s, s:s, s:i, s:s*, s:O?}", "version", 3, "blob", want->sha256, "model",
        json_object_get(want->model, "content"), "format", spec_format_name(want->spec->data.format), "learn",
        spec_learn_name(want->spec->data.learn), "sequence_tokens", (int)want->spec->data.sequence_tokens,
        "day", want->spec->data.day, "chat", chat);
    int rc = document ? json_print(document, true, &text, err)
                      : err_set(err, ERR_NOMEM, "out of memory for a data set's key");
    if (rc == 0)
        rc = digest_sha256_hex(text.data, text.size, key, err);
    json_decref(document);
    buf_fini(&text);
    return rc;
}

static struct dataset_encoding *encoding_create(struct datasets *datasets, const struct dataset_want *want,
                                                const char *key, struct err *err)
{
    const char *content = json_string_value(json_object_get(want->model, "content"));
    struct dataset_encoding *encoding = calloc(1, sizeof(*encoding));
    if (!encoding || !content || datasets->count >= ENCODINGS_MAX) {
        free(encoding);
        err_set(err, ERR_BUSY, "the server has %u data sets in work, its limit is %d", datasets->count,
                ENCODINGS_MAX);
        return NULL;
    }
    STAILQ_INIT(&encoding->waiters);
    encoding->datasets = datasets;
    snprintf(encoding->key, sizeof(encoding->key), "%s", key);
    snprintf(encoding->sha256, sizeof(encoding->sha256), "%s", want->sha256);
    /* copied, since reference counts are not atomic */
    encoding->files = json_deep_copy(json_object_get(want->model, "files"));
    encoding->chat = json_deep_copy(want->spec->data.chat_template);
    snprintf(encoding->day, sizeof(encoding->day), "%s", want->spec->data.day ? want->spec->data.day : "");
    encoding->format = want->spec->data.format;
    encoding->learn = want->spec->data.learn;
    encoding->sequence_tokens = want->spec->data.sequence_tokens;
    datasets->count++;
    return encoding;
}

/* Joins the encoding of the same data set, or begins one. */
static void waiter_join(struct waiter *waiter)
{
    struct dataset_encoding *mine = waiter->encoding, *encoding;
    struct datasets *datasets = mine->datasets;
    waiter->encoding = NULL;
    LIST_FOREACH (encoding, &datasets->under_way, link)
        if (strcmp(encoding->key, mine->key) == 0) {
            STAILQ_INSERT_TAIL(&encoding->waiters, waiter, link);
            encoding_free(mine);
            return;
        }
    STAILQ_INSERT_TAIL(&mine->waiters, waiter, link);
    LIST_INSERT_HEAD(&datasets->under_way, mine, link);
    mine->begun = true;
    if (store_dataset_get(datasets->app->store, mine->key, dataset_found, mine, &mine->err) < 0)
        encoding_end(mine, &mine->err, NULL);
}

static void dataset_may(void *arg, const struct err *err)
{
    struct waiter *waiter = arg;
    struct err mine = {0};
    if (!err) {
        waiter_join(waiter);
        return;
    }
    mine = *err;
    if (err->code == ERR_NOT_FOUND)
        err_set(&mine, ERR_INVALID, "the file sha256:%s was not uploaded", waiter->encoding->sha256);
    waiter_end(waiter, &mine, NULL);
}

int dataset_get(struct datasets *datasets, const struct dataset_want *want, dataset_done_fn *done, void *arg,
                struct err *err)
{
    char key[DIGEST_HEX_SIZE];
    if (make_key(want, key, err) < 0)
        return -1;
    struct waiter *waiter = calloc(1, sizeof(*waiter));
    if (!waiter)
        return err_set(err, ERR_NOMEM, "out of memory for a data set");
    snprintf(waiter->what, sizeof(waiter->what), "%s", want->what);
    waiter->done = done;
    waiter->arg = arg;
    waiter->encoding = encoding_create(datasets, want, key, err);
    if (waiter->encoding && store_dataset_may(datasets->app->store, want->principal, key, want->sha256,
                                              dataset_may, waiter, err) == 0)
        return 0;
    if (waiter->encoding)
        encoding_free(waiter->encoding);
    free(waiter);
    return -1;
}
