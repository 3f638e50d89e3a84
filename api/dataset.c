/* From an uploaded file to encoded rows: look in the store, else encode on the pool, record, answer all who
 * wait. */
#include "api/dataset.h"

#include "api/blob_dir.h"
#include "common/digest.h"
#include "common/file.h"
#include "common/json.h"
#include "model/rows.h"
#include "model/tensors.h"
#include "model/tokenizer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/queue.h>
#include <sys/stat.h>
#include <unistd.h>

enum { ENCODINGS_MAX = 256 };

struct encoding;

/* One request. Whether who asks may use the data set is asked first, for each; then it joins who makes it. */
struct waiter {
    STAILQ_ENTRY(waiter) link;
    struct encoding *encoding; /* its own, not begun; NULL once it has joined or begun it */
    char what[32];             /* before this waiter's error */
    dataset_done_fn *done;
    void *arg;
};

struct encoding {
    struct pool_task task; /* first */
    LIST_ENTRY(encoding) link;
    bool begun; /* it is on the list */
    struct datasets *datasets;
    STAILQ_HEAD(, waiter) waiters;
    char key[DIGEST_HEX_SIZE];
    char sha256[DIGEST_HEX_SIZE];
    char content[DIGEST_HEX_SIZE];
    char source_path[BLOB_PATH_MAX];
    json_t *files; /* of the model; a copy of its own */
    json_t *chat;
    enum spec_format format;
    enum spec_learn learn;
    uint32_t sequence_tokens, vocab;
    uint64_t rows_bytes_max;
    const struct blob_dir *blobs;
    struct manifest manifest; /* of the encoded file */
    json_t *stats;
    struct row_size *sizes;
    size_t sizes_bytes;
    struct err err;
};

struct datasets {
    struct app *app;
    LIST_HEAD(, encoding) under_way;
    unsigned count; /* of all that there are, begun or not */
};

int datasets_create(struct app *app, struct datasets **datasets, struct err *err)
{
    *datasets = calloc(1, sizeof **datasets);
    if (!*datasets)
        return err_set(err, ERR_NOMEM, "out of memory for data sets");
    (*datasets)->app = app;
    LIST_INIT(&(*datasets)->under_way);
    return 0;
}

static void encoding_free(struct encoding *encoding)
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
    json_decref(encoding->stats);
    free(encoding->sizes);
    manifest_fini(&encoding->manifest);
    free(encoding);
}

void datasets_destroy(struct datasets *datasets)
{
    if (!datasets)
        return;
    struct encoding *encoding;
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

/* Tell everybody who waits and end. */
static void encoding_end(struct encoding *encoding, const struct err *err,
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

/* ---- on the pool ---- */

struct source_map {
    void *data;
    size_t size;
};

static int map_source(const char *path, struct source_map *map, struct err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) < 0) {
        int saved = errno;
        if (fd >= 0)
            close(fd);
        return err_set(err, saved == ENOENT ? ERR_NOT_FOUND : ERR_IO, "the uploaded file cannot be read: %s",
                       strerror(saved));
    }
    map->size = (size_t)st.st_size;
    map->data = map->size ? mmap(NULL, map->size, PROT_READ, MAP_PRIVATE, fd, 0) : NULL;
    close(fd);
    if (map->data == MAP_FAILED) {
        map->data = NULL;
        return err_set(err, ERR_NOMEM, "the uploaded file cannot be mapped");
    }
    return 0;
}

static int sizes_of(struct encoding *encoding, const struct rows *rows, struct err *err)
{
    encoding->sizes_bytes = (size_t)rows->count * sizeof *encoding->sizes;
    if (encoding->sizes_bytes > STORE_SIZES_MAX)
        return err_set(err, ERR_TOO_BIG, "%u rows are over the limit of %u", rows->count,
                       (unsigned)(STORE_SIZES_MAX / sizeof *encoding->sizes));
    encoding->sizes = malloc(encoding->sizes_bytes + 1);
    if (!encoding->sizes)
        return err_set(err, ERR_NOMEM, "out of memory for row sizes");
    rows_sizes(rows, encoding->sizes);
    return 0;
}

static json_t *stats_of(const struct rows *rows, const struct rows_report *report, struct err *err)
{
    struct rows_histogram histogram;
    rows_histogram(rows, &histogram);
    json_t *lengths = json_array();
    for (uint32_t i = 0; lengths && i < histogram.bins; i++)
        json_array_append_new(lengths, json_integer(histogram.count[i]));
    json_t *stats = json_pack(
        "{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:s, s:I, s:I, s:I, s:o}", "rows", (json_int_t)rows->count,
        "tokens", (json_int_t)report->tokens, "labelled", (json_int_t)report->labelled_tokens, "sum_sq",
        (json_int_t)histogram.sum_sq, "longest", (json_int_t)report->longest, "truncated",
        (json_int_t)report->truncated, "dropped", (json_int_t)report->dropped, "format",
        spec_format_name(report->format), "first_truncated_line", (json_int_t)report->first_truncated_line,
        "first_dropped_line", (json_int_t)report->first_dropped_line, "bin_tokens",
        (json_int_t)histogram.bin_tokens, "lengths", lengths);
    if (!stats)
        err_set(err, ERR_NOMEM, "out of memory for the data set's statistics");
    return stats;
}

static int encode_with(struct encoding *encoding, struct model *model, const struct tokenizer *tokenizer,
                       struct err *err)
{
    struct chat_template *chat = NULL;
    struct err chat_err = {0};
    struct source_map map = {0};
    struct rows *rows = NULL;
    struct rows_report report = {0};
    struct buf file;
    buf_init(&file, SIZE_MAX / 2);
    int rc = -1;
    if (chat_template_choose(encoding->chat, tokenizer ? tokenizer_chat_template(tokenizer) : NULL, &chat,
                             &chat_err) < 0 &&
        encoding->chat) {
        *err = chat_err; /* the specification's own template is wrong: say so whatever the rows are */
        err_wrap(err, "data.chat_template");
        goto out;
    }
    struct rows_options options = {
        .format = encoding->format,
        .learn = encoding->learn,
        .sequence_tokens = encoding->sequence_tokens,
        .vocab = model_get_config(model)->vocab,
        .tokenizer = tokenizer,
        .chat = chat,
        .chat_error = chat ? (struct err){0} : chat_err,
        .bytes_max = (size_t)encoding->rows_bytes_max,
    };
    if (map_source(encoding->source_path, &map, err) < 0 ||
        rows_encode(map.data ? map.data : "", map.size, &options, &rows, &report, err) < 0 ||
        sizes_of(encoding, rows, err) < 0 || rows_save(rows, &file, err) < 0 ||
        blob_put(encoding->blobs, file.data, file.size, &encoding->manifest, err) < 0)
        goto out;
    encoding->stats = stats_of(rows, &report, err);
    rc = encoding->stats ? 0 : -1;
out:
    if (map.data)
        munmap(map.data, map.size);
    buf_fini(&file);
    rows_destroy(rows);
    chat_template_destroy(chat);
    return rc;
}

static void encoding_work(struct pool_task *task)
{
    struct encoding *encoding = (struct encoding *)task;
    struct err *err = &encoding->err;
    char folder[BLOB_PATH_MAX];
    struct model *model = NULL;
    struct tokenizer *tokenizer = NULL;
    if (blob_model_dir(encoding->blobs, encoding->content, encoding->files, folder, err) < 0 ||
        model_open_path(folder, &model, err) < 0)
        return;
    struct err none = {0};
    if (tokenizer_open(model, &tokenizer, &none) < 0 && none.code != ERR_NOT_FOUND)
        *err = none;
    else
        encode_with(encoding, model, tokenizer, err);
    tokenizer_destroy(tokenizer);
    model_close(model);
}

/* ---- on the loop ---- */

static void dataset_recorded(void *arg, const struct err *err)
{
    struct encoding *encoding = arg;
    char blob[DIGEST_HEX_SIZE];
    digest_hex(encoding->manifest.sha256, 32, blob);
    struct store_dataset dataset = {.key = encoding->key,
                                    .blob = blob,
                                    .stats = encoding->stats,
                                    .sizes = (const uint8_t *)encoding->sizes,
                                    .sizes_bytes = encoding->sizes_bytes};
    encoding_end(encoding, err, &dataset);
}

static void blob_recorded(void *arg, const struct err *err)
{
    struct encoding *encoding = arg;
    if (err) {
        encoding_end(encoding, err, NULL);
        return;
    }
    char blob[DIGEST_HEX_SIZE];
    digest_hex(encoding->manifest.sha256, 32, blob);
    struct store_dataset_new dataset = {.key = encoding->key,
                                        .blob = blob,
                                        .sizes = encoding->sizes,
                                        .sizes_bytes = encoding->sizes_bytes,
                                        .stats = encoding->stats};
    if (store_dataset_put(encoding->datasets->app->store, &dataset, dataset_recorded, encoding,
                          &encoding->err) < 0)
        encoding_end(encoding, &encoding->err, NULL);
}

static void encoding_done(struct pool_task *task)
{
    struct encoding *encoding = (struct encoding *)task;
    struct err *err = &encoding->err;
    pool_ran(task, err);
    if (err->code) {
        encoding_end(encoding, err, NULL);
        return;
    }
    encoding->datasets->app->counters.datasets_encoded++;
    char name[DIGEST_HEX_SIZE];
    digest_hex(encoding->manifest.sha256, 32, name);
    json_t *manifest = manifest_to_json(&encoding->manifest, err);
    struct store_blob blob = {.sha256 = name, .size = (int64_t)encoding->manifest.size, .manifest = manifest};
    if (!manifest || store_blob_put(encoding->datasets->app->store, &principal_service, &blob, blob_recorded,
                                    encoding, err) < 0)
        encoding_end(encoding, err, NULL);
    json_decref(manifest);
}

static void source_found(void *arg, const struct err *err, json_t *doc)
{
    struct encoding *encoding = arg;
    if (err) {
        struct err mine = *err;
        if (err->code == ERR_NOT_FOUND)
            err_set(&mine, ERR_INVALID, "the file sha256:%s was not uploaded", encoding->sha256);
        encoding_end(encoding, &mine, NULL);
        return;
    }
    const char *path = json_string_value(json_object_get(doc, "path"));
    if (path)
        snprintf(encoding->source_path, sizeof encoding->source_path, "%s", path);
    else
        blob_path(encoding->blobs, encoding->sha256, encoding->source_path);
    encoding->task.work = encoding_work;
    encoding->task.done = encoding_done;
    if (pool_run(encoding->datasets->app->pool, &encoding->task, &encoding->err) < 0)
        encoding_end(encoding, &encoding->err, NULL);
}

static void dataset_found(void *arg, const struct err *err, const struct store_dataset *dataset)
{
    struct encoding *encoding = arg;
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

/* The key says all that decides the encoding: the model's content id stands for tokenizer and template. */
static int make_key(const struct dataset_want *want, char key[DIGEST_HEX_SIZE], struct err *err)
{
    struct buf text;
    buf_init(&text, 1 << 22);
    json_t *chat = want->spec->data.chat_template;
    json_t *document =
        json_pack("{s:i, s:s, s:O, s:s, s:s, s:i, s:O?}", "version", 1, "blob", want->sha256, "model",
                  json_object_get(want->model, "content"), "format",
                  spec_format_name(want->spec->data.format), "learn", spec_learn_name(want->spec->data.learn),
                  "sequence_tokens", (int)want->spec->data.sequence_tokens, "chat", chat);
    int rc = document ? json_print(document, true, &text, err)
                      : err_set(err, ERR_NOMEM, "out of memory for a data set's key");
    if (rc == 0)
        rc = digest_sha256_hex(text.data, text.size, key, err);
    json_decref(document);
    buf_fini(&text);
    return rc;
}

static struct encoding *encoding_create(struct datasets *datasets, const struct dataset_want *want,
                                        const char *key, struct err *err)
{
    const char *content = json_string_value(json_object_get(want->model, "content"));
    struct encoding *encoding = calloc(1, sizeof *encoding);
    if (!encoding || !content || datasets->count >= ENCODINGS_MAX) {
        free(encoding);
        err_set(err, ERR_BUSY, "the server has %u data sets in work, its limit is %d", datasets->count,
                ENCODINGS_MAX);
        return NULL;
    }
    STAILQ_INIT(&encoding->waiters);
    encoding->datasets = datasets;
    snprintf(encoding->key, sizeof encoding->key, "%s", key);
    snprintf(encoding->sha256, sizeof encoding->sha256, "%s", want->sha256);
    snprintf(encoding->content, sizeof encoding->content, "%s", content);
    encoding->files =
        json_deep_copy(json_object_get(want->model, "files")); /* reference counts are not atomic */
    encoding->chat = json_deep_copy(want->spec->data.chat_template);
    encoding->format = want->spec->data.format;
    encoding->learn = want->spec->data.learn;
    encoding->sequence_tokens = want->spec->data.sequence_tokens;
    encoding->rows_bytes_max = datasets->app->config->rows_bytes_max;
    encoding->blobs = datasets->app->blobs;
    datasets->count++;
    return encoding;
}

/* Join who makes the same, or begin. */
static void waiter_join(struct waiter *waiter)
{
    struct encoding *mine = waiter->encoding, *encoding;
    struct datasets *datasets = mine->datasets;
    waiter->encoding = NULL;
    LIST_FOREACH(encoding, &datasets->under_way, link)
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
    struct waiter *waiter = calloc(1, sizeof *waiter);
    if (!waiter)
        return err_set(err, ERR_NOMEM, "out of memory for a data set");
    snprintf(waiter->what, sizeof waiter->what, "%s", want->what);
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
