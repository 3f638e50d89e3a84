/* The file holds one document: {"incarnation", "epochs": {device: epoch}, "runs": [{"job", "run"}],
 * "before"?}. */
#include "agent/history.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/digest.h"
#include "common/document.h"
#include "common/file.h"
#include "common/json.h"

enum { FILE_BYTES_MAX = 256 << 10 };

struct node_history {
    char path[700];
    json_t *document;
};

static int history_save(const struct node_history *history, struct err *err)
{
    return document_save(history->path, history->document, true, 0600, err);
}

struct node_history *history_open(const char *home, struct err *err)
{
    struct node_history *history = calloc(1, sizeof(*history));
    if (!history || file_path(history->path, sizeof(history->path), err, "%s/journal/past.json", home) < 0) {
        free(history);
        err_set(err, ERR_NOMEM, "no memory for what this node has done");
        return NULL;
    }
    err_clear(err);
    history->document = file_exists(history->path)
                            ? document_load(history->path, FILE_BYTES_MAX, err)
                            : json_pack("{s:s, s:{}, s:[]}", "incarnation", "", "epochs", "runs");
    if (history->document && (!json_is_string(json_object_get(history->document, "incarnation")) ||
                              !json_is_object(json_object_get(history->document, "epochs")) ||
                              !json_is_array(json_object_get(history->document, "runs")))) {
        err_set(err, ERR_CORRUPT, "\"%s\" is not what an agent wrote", history->path);
        json_decref(history->document);
        history->document = NULL;
    }
    if (!history->document) {
        if (err->code == ERR_NONE)
            err_set(err, ERR_NOMEM, "no memory for what this node has done");
        free(history);
        return NULL;
    }
    return history;
}

void history_close(struct node_history *history)
{
    if (history) {
        json_decref(history->document);
        free(history);
    }
}

const char *history_incarnation(const struct node_history *history)
{
    return json_string_value(json_object_get(history->document, "incarnation"));
}

int64_t history_epoch(const struct node_history *history, const char *device)
{
    const json_t *epoch = json_object_get(json_object_get(history->document, "epochs"), device);
    return json_is_integer(epoch) ? json_integer_value(epoch) : -1;
}

int history_note(struct node_history *history, const char *device, int64_t epoch, int64_t job, int64_t run,
                 struct err *err)
{
    json_t *runs = json_object_get(history->document, "runs");
    while (json_array_size(runs) >= HISTORY_RUNS_MAX)
        json_array_remove(runs, 0);
    if (json_object_set_new(json_object_get(history->document, "epochs"), device,
                            json_integer((json_int_t)epoch)) < 0 ||
        json_array_append_new(runs, json_pack("{s:I, s:I}", "job", (json_int_t)job, "run", (json_int_t)run)) <
            0) {
        return err_set(err, ERR_NOMEM, "no memory for what this node has done");
    }
    return history_save(history, err);
}

int history_adopt(struct node_history *history, const char *incarnation, struct err *err)
{
    if (json_object_set_new(history->document, "incarnation", json_string(incarnation)) < 0)
        return err_set(err, ERR_NOMEM, "no memory for what this node has done");
    return history_save(history, err);
}

int history_renew(struct node_history *history, const char *incarnation, struct err *err)
{
    json_t *renewed =
        json_pack("{s:s, s:{}, s:[], s:{s:O, s:O}}", "incarnation", incarnation, "epochs", "runs", "before",
                  "incarnation", json_object_get(history->document, "incarnation"), "runs",
                  json_object_get(history->document, "runs"));
    if (!renewed)
        return err_set(err, ERR_NOMEM, "no memory for what this node has done");
    json_decref(history->document);
    history->document = renewed;
    return history_save(history, err);
}

json_t *history_before(const struct node_history *history)
{
    return json_object_get(history->document, "before");
}

int history_boot(const char *home, char boot[HISTORY_BOOT_SIZE], struct err *err)
{
    char path[4096], last[17] = "", random[17];
    struct buf text;
    if (file_path(path, sizeof(path), err, "%s/boot", home) < 0)
        return -1;
    buf_init(&text, 4096);
    if (file_exists(path) && file_read_all(path, 4096, &text, err) == 0)
        snprintf(last, sizeof(last), "%s", buf_str(&text));
    buf_fini(&text);
    uint64_t now_us = (uint64_t)clock_wall_us(), last_us = strtoull(last, NULL, 16);
    if (last_us >= now_us && last_us < UINT64_MAX)
        now_us = last_us + 1;
    if (random_hex(random, 8, err) < 0)
        return -1;
    snprintf(boot, HISTORY_BOOT_SIZE, "%016" PRIx64 "%s", now_us, random);
    return file_write_atomic(path, boot, strlen(boot), 0600, err);
}
