/* The file holds one document: {"incarnation", "epochs": {device: epoch}, "runs": [{"job", "run"}],
 * "before"?}. */
#include "agent/past.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/file.h"
#include "common/json.h"

enum { FILE_BYTES_MAX = 256 << 10 };

struct past {
    char path[700];
    json_t *document;
};

static int save(const struct past *past, struct err *err)
{
    struct buf text;
    buf_init(&text, FILE_BYTES_MAX);
    int result = json_print(past->document, true, &text, err);
    result = result < 0 ? -1 : file_write_atomic(past->path, text.data, text.size, 0600, err);
    buf_fini(&text);
    return result;
}

static json_t *load(const char *path, struct err *err)
{
    struct buf text;
    buf_init(&text, FILE_BYTES_MAX);
    json_t *document = file_read_all(path, FILE_BYTES_MAX - 1, &text, err) < 0
                           ? NULL
                           : json_parse_limited(buf_str(&text), text.size, 6, err);
    buf_fini(&text);
    return document;
}

/* Loads the epochs that earlier releases stored alone. */
static json_t *load_old(const char *home, struct err *err)
{
    char path[700];
    json_t *epochs = NULL;
    if (file_path(path, sizeof(path), err, "%s/journal/epochs.json", home) < 0) {
        return NULL;
    }
    epochs = file_exists(path) ? load(path, err) : json_object();
    return epochs != NULL ? json_pack("{s:s, s:o, s:[]}", "incarnation", "", "epochs", epochs, "runs") : NULL;
}

struct past *past_open(const char *home, struct err *err)
{
    struct past *past = calloc(1, sizeof(*past));
    if (past == NULL || file_path(past->path, sizeof(past->path), err, "%s/journal/past.json", home) < 0) {
        free(past);
        err_set(err, ERR_NOMEM, "no memory for what this node has done");
        return NULL;
    }
    err_clear(err);
    past->document = file_exists(past->path) ? load(past->path, err) : load_old(home, err);
    if (past->document != NULL && (!json_is_string(json_object_get(past->document, "incarnation")) ||
                                   !json_is_object(json_object_get(past->document, "epochs")) ||
                                   !json_is_array(json_object_get(past->document, "runs")))) {
        err_set(err, ERR_CORRUPT, "\"%s\" is not what an agent wrote", past->path);
        json_decref(past->document);
        past->document = NULL;
    }
    if (past->document == NULL) {
        if (err->code == ERR_NONE) {
            err_set(err, ERR_NOMEM, "no memory for what this node has done");
        }
        free(past);
        return NULL;
    }
    return past;
}

void past_close(struct past *past)
{
    if (past != NULL) {
        json_decref(past->document);
        free(past);
    }
}

const char *past_incarnation(const struct past *past)
{
    return json_string_value(json_object_get(past->document, "incarnation"));
}

int64_t past_epoch(const struct past *past, const char *device)
{
    const json_t *epoch = json_object_get(json_object_get(past->document, "epochs"), device);
    return json_is_integer(epoch) ? json_integer_value(epoch) : -1;
}

int past_note(struct past *past, const char *device, int64_t epoch, int64_t job, int64_t run, struct err *err)
{
    json_t *runs = json_object_get(past->document, "runs");
    while (json_array_size(runs) >= PAST_RUNS_MAX) {
        json_array_remove(runs, 0);
    }
    if (json_object_set_new(json_object_get(past->document, "epochs"), device,
                            json_integer((json_int_t)epoch)) < 0 ||
        json_array_append_new(runs, json_pack("{s:I, s:I}", "job", (json_int_t)job, "run", (json_int_t)run)) <
            0) {
        return err_set(err, ERR_NOMEM, "no memory for what this node has done");
    }
    return save(past, err);
}

int past_adopt(struct past *past, const char *incarnation, struct err *err)
{
    if (json_object_set_new(past->document, "incarnation", json_string(incarnation)) < 0) {
        return err_set(err, ERR_NOMEM, "no memory for what this node has done");
    }
    return save(past, err);
}

int past_renew(struct past *past, const char *incarnation, struct err *err)
{
    json_t *renewed =
        json_pack("{s:s, s:{}, s:[], s:{s:O, s:O}}", "incarnation", incarnation, "epochs", "runs", "before",
                  "incarnation", json_object_get(past->document, "incarnation"), "runs",
                  json_object_get(past->document, "runs"));
    if (renewed == NULL) {
        return err_set(err, ERR_NOMEM, "no memory for what this node has done");
    }
    json_decref(past->document);
    past->document = renewed;
    return save(past, err);
}

json_t *past_before(const struct past *past)
{
    return json_object_get(past->document, "before");
}
