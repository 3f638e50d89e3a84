/* Removes unused files, one round at a time: the database forgets files, then a pool thread deletes them. */
#include "api/blobs/sweep.h"

#include <stdlib.h>
#include <time.h>

#include "api/request/blob_dir.h"
#include "api/request/route.h"
#include "common/log.h"
#include "store/models.h"

enum { LOOK_SECONDS_MAX = 600, LOOK_AT = 1000 };

struct sweep {
    struct pool_task task; /* must come first: a pointer to the task is cast to the sweep */
    struct app *app;
    struct event *timer;
    json_t *dropped; /* [sha256]; used by the task while busy */
    int64_t before;
    size_t removed;
    bool busy, more;
};

static void wait_for_next(struct sweep *sweep)
{
    uint32_t unused = sweep->app->config->unused_seconds;
    struct timeval pause = {unused / 4 > LOOK_SECONDS_MAX ? LOOK_SECONDS_MAX : unused / 4, 100000};
    if (sweep->more)
        pause.tv_sec = 0;
    sweep->busy = false;
    event_add(sweep->timer, &pause);
}

static void remove_files(struct pool_task *task)
{
    struct sweep *sweep = (struct sweep *)task;
    size_t index;
    json_t *name;
    blob_dir_tidy(sweep->app->blobs);
    json_array_foreach (sweep->dropped, index, name) {
        const char *sha256 = json_string_value(name);
        if (sha256 && blob_name_valid(sha256) && blob_remove(sweep->app->blobs, sha256, sweep->before))
            sweep->removed++;
    }
}

static void sweep_removed(struct pool_task *task)
{
    struct sweep *sweep = (struct sweep *)task;
    struct err err = {0};
    if (pool_ran(task, &err) && sweep->removed > 0)
        log_event(LOG_LEVEL_INFO, "files_removed", "count=%zu", sweep->removed);
    json_decref(sweep->dropped);
    sweep->dropped = NULL;
    wait_for_next(sweep);
}

static void forgotten(void *arg, const struct err *err, json_t *doc)
{
    struct sweep *sweep = arg;
    struct err busy = {0};
    if (err) {
        if (err->code != ERR_CANCELLED)
            log_event(LOG_LEVEL_WARN, "sweep_failed", "why=\"%s\"", err->text);
        sweep->more = false;
        wait_for_next(sweep);
        return;
    }
    sweep->dropped = json_incref(json_object_get(doc, "sha256"));
    sweep->more = json_integer_value(json_object_get(doc, "looked_at")) == LOOK_AT;
    sweep->removed = 0;
    sweep->task.work = remove_files;
    sweep->task.done = sweep_removed;
    if (pool_run(sweep->app->pool, &sweep->task, &busy) == 0)
        return;
    /* The database has forgotten these files, but they stay on disk. That is better than waiting for the
     * pool, and the log says so. */
    if (json_array_size(sweep->dropped) > 0)
        log_event(LOG_LEVEL_WARN, "sweep_failed", "why=\"%s\" files=%zu", busy.text,
                  json_array_size(sweep->dropped));
    json_decref(sweep->dropped);
    sweep->dropped = NULL;
    wait_for_next(sweep);
}

static void sweep_look(evutil_socket_t fd, short what, void *arg)
{
    (void)fd, (void)what;
    struct sweep *sweep = arg;
    struct err err = {0};
    uint32_t unused = sweep->app->config->unused_seconds;
    if (sweep->busy)
        return;
    sweep->busy = true;
    /* a file that is written after this time was uploaded again, and stays */
    sweep->before = (int64_t)time(NULL);
    if (store_blobs_drop(sweep->app->store, unused, LOOK_AT, forgotten, sweep, &err) < 0)
        forgotten(sweep, &err, NULL);
}

struct sweep *sweep_create(struct app *app, struct err *err)
{
    struct sweep *sweep = calloc(1, sizeof(*sweep));
    if (sweep)
        sweep->timer = evtimer_new(app->base, sweep_look, sweep);
    if (!sweep || !sweep->timer) {
        free(sweep);
        err_set(err, ERR_NOMEM, "out of memory for the sweep of unused files");
        return NULL;
    }
    sweep->app = app;
    if (app->config->unused_seconds > 0)
        wait_for_next(sweep);
    return sweep;
}

void sweep_destroy(struct sweep *sweep)
{
    if (!sweep)
        return;
    event_free(sweep->timer);
    json_decref(sweep->dropped);
    free(sweep);
}
