/* Makes encoded rows of uploaded files: looks in the store, or else encodes on the pool, and records the
 * result. Begin with dataset_get at the end. */
#include "api/request/dataset.h"

#include "api/request/blob_dir.h"
#include "api/request/parsed.h"
#include "api/request/wait.h"
#include "common/json.h"
#include "store/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/queue.h>

/* A data set that a request looks for or encodes; lies on that request's stack. */
struct dataset_encoding {
    LIST_ENTRY(dataset_encoding) link;
    const char *key;
    struct wait_list waiters; /* requests for the same data set */
};

struct datasets {
    LIST_HEAD(, dataset_encoding) under_way;
};

int datasets_create(struct datasets **datasets, struct err *err)
{
    *datasets = calloc(1, sizeof(**datasets));
    if (!*datasets)
        return err_set(err, ERR_NOMEM, "out of memory for data sets");
    LIST_INIT(&(*datasets)->under_way);
    return 0;
}

void datasets_destroy(struct datasets *datasets)
{
    free(datasets);
}

void dataset_fini(struct dataset *dataset)
{
    json_decref(dataset->stats);
    free(dataset->sizes);
    *dataset = (struct dataset){0};
}

/* Computes the data set's key, which covers everything that determines the encoded rows; the model's content
 * id covers the tokenizer and the template. The version in the key rises when equal inputs are encoded
 * differently (2: templates are rendered instead of recognised; 3: rows are passed on whole). */
static int dataset_make_key(const struct dataset_want *want, char key[DIGEST_HEX_SIZE], struct err *err)
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

static int not_uploaded(const struct dataset_want *want, struct err *err)
{
    return err->code == ERR_NOT_FOUND
               ? err_set(err, ERR_INVALID, "the file sha256:%s was not uploaded", want->sha256)
               : -1;
}

struct dataset_wait {
    struct wait wait; /* must come first, since wait_done takes its address */
    struct dataset *dataset;
};

static void dataset_came(void *arg, const struct err *err, const struct store_dataset *stored)
{
    struct dataset *dataset = ((struct dataset_wait *)arg)->dataset;
    struct err failed = {0};
    if (!err && !(dataset->sizes = malloc(stored->sizes_bytes + 1))) {
        err_set(&failed, ERR_NOMEM, "out of memory for row sizes");
        err = &failed;
    }
    if (!err) {
        /* The stored little-endian uint32 pairs have the layout of struct row_size on this machine. */
        memcpy(dataset->sizes, stored->sizes, stored->sizes_bytes);
        dataset->rows = (uint32_t)(stored->sizes_bytes / sizeof(*dataset->sizes));
        dataset->stats = json_incref((json_t *)stored->stats);
    }
    wait_done(arg, err);
}

/* ERR_NOT_FOUND: it is to be encoded. */
static int dataset_stored(struct app *app, struct dataset *dataset, struct err *err)
{
    struct dataset_wait wait = {wait_of(app), dataset};
    return wait_end(&wait.wait, store_dataset_get(app->store, dataset->key, dataset_came, &wait, err), err);
}

struct rows_work {
    struct app *app;
    struct parsed_text text;
    char path[BLOB_PATH_MAX];
    struct parsed_rows rows;
};

static int rows_work(void *arg, struct err *err)
{
    struct rows_work *work = arg;
    return parsed_rows(work->app, &work->text, work->path, &work->rows, err);
}

static int encoding_record(struct app *app, const struct parsed_rows *rows, const char *key, struct err *err)
{
    struct wait blob = wait_of(app), set = wait_of(app);
    char name[DIGEST_HEX_SIZE];
    digest_hex(rows->manifest.sha256, 32, name);
    json_t *manifest = manifest_to_json(&rows->manifest, err);
    const struct store_blob file = {
        .sha256 = name, .size = (int64_t)rows->manifest.size, .manifest = manifest};
    const struct store_dataset_new dataset = {.key = key,
                                              .blob = name,
                                              .sizes = rows->sizes,
                                              .sizes_bytes = rows->sizes_bytes,
                                              .stats = rows->stats};
    int rc = manifest ? 0 : -1;
    if (rc == 0)
        rc = wait_end(&blob, store_blob_put(app->store, &principal_service, &file, wait_done, &blob, err),
                      err);
    if (rc == 0)
        rc = wait_end(&set, store_dataset_put(app->store, &dataset, wait_done, &set, err), err);
    json_decref(manifest);
    return rc;
}

static int dataset_encode(struct app *app, const struct dataset_want *want, struct dataset *dataset,
                          struct err *err)
{
    struct wait source = wait_of(app);
    if (wait_end(&source,
                 store_blob_get(app->store, &principal_service, want->sha256, wait_doc, &source, err),
                 err) < 0)
        return not_uploaded(want, err);
    struct rows_work work = {.app = app,
                             .text = {.files = json_object_get(want->model, "files"),
                                      .chat = want->spec->data.chat_template,
                                      .day = want->spec->data.day,
                                      .format = want->spec->data.format,
                                      .learn = want->spec->data.learn,
                                      .sequence_tokens = want->spec->data.sequence_tokens}};
    const char *path = json_string_value(json_object_get(source.doc, "path"));
    if (path)
        snprintf(work.path, sizeof(work.path), "%s", path);
    else
        blob_path(app->blobs, want->sha256, work.path);
    json_decref(source.doc);
    int rc = wait_work(app, app->pool, rows_work, &work, err);
    if (rc == 0) {
        app->counters.datasets_encoded++;
        rc = encoding_record(app, &work.rows, dataset->key, err);
    }
    if (rc == 0) {
        dataset->stats = json_incref(work.rows.stats);
        dataset->rows = (uint32_t)(work.rows.sizes_bytes / sizeof(*dataset->sizes));
        dataset->sizes = work.rows.sizes;
        work.rows.sizes = NULL;
    }
    json_decref(work.rows.stats);
    free(work.rows.sizes);
    manifest_fini(&work.rows.manifest);
    return rc;
}

/* Looks for the data set, and encodes it if it is not there; or waits for a request that does so. */
static int dataset_make(struct app *app, const struct dataset_want *want, struct dataset *dataset,
                        struct err *err)
{
    struct datasets *datasets = app->datasets;
    struct dataset_encoding *other, mine = {.key = dataset->key};
    LIST_FOREACH (other, &datasets->under_way, link)
        if (strcmp(other->key, dataset->key) == 0)
            return wait_in(app, &other->waiters, err) < 0 ? -1 : dataset_stored(app, dataset, err);
    TAILQ_INIT(&mine.waiters);
    LIST_INSERT_HEAD(&datasets->under_way, &mine, link);
    int rc = dataset_stored(app, dataset, err);
    if (rc < 0 && err->code == ERR_NOT_FOUND)
        rc = dataset_encode(app, want, dataset, err);
    LIST_REMOVE(&mine, link);
    wait_wake(&mine.waiters, rc < 0 ? err : NULL);
    return rc;
}

int dataset_get(struct app *app, const struct dataset_want *want, struct dataset *dataset, struct err *err)
{
    struct wait may = wait_of(app);
    *dataset = (struct dataset){0};
    int rc = dataset_make_key(want, dataset->key, err);
    if (rc == 0)
        rc = wait_end(
            &may,
            store_dataset_may(app->store, want->principal, dataset->key, want->sha256, wait_done, &may, err),
            err);
    rc = rc < 0 ? not_uploaded(want, err) : dataset_make(app, want, dataset, err);
    if (rc == 0)
        return 0;
    err_wrap(err, "%s", want->what);
    dataset_fini(dataset);
    return -1;
}
