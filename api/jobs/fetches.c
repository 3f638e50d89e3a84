#include "api/jobs/fetches.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/blobs/models.h"
#include "api/check/check.h"
#include "api/request/wait.h"
#include "common/log.h"
#include "common/units.h"
#include "store/fetches.h"

enum {
    AT_ONCE_MAX = 2, /* jobs that one api fetches for; as many as the threads of app.fetches */
    TICK_MS = 1000,  /* between two looks at what is fetched */
    IDLE_TICKS = 15, /* ticks between two looks for jobs */
    LEASE_S = 15,    /* for which a job is taken; prolonged with each TELL_TICKS */
    TELL_TICKS = 2,  /* ticks between two words about a fetch that does not move */
    WHY_BYTES = 640
};

/* A job whose model is being fetched, and which is then checked. */
struct job_fetch {
    LIST_ENTRY(job_fetch) link;
    struct job_fetches *all;
    int64_t job;
    char *hub;
    json_t *spec;
    struct principal owner;
    struct registration *registration; /* NULL: it has ended */
    char why[WHY_BYTES];
    unsigned silent; /* ticks since the database was told */
    bool telling;    /* the database is being told */
    bool ended;      /* to be freed when it has been told */
};

struct job_fetches {
    struct app *app;
    struct event *timer;
    LIST_HEAD(, job_fetch) list;
    unsigned count, ticks;
    bool asking;
};

static void job_fetch_free(struct job_fetch *fetch)
{
    LIST_REMOVE(fetch, link);
    fetch->all->count--;
    json_decref(fetch->spec);
    free(fetch->hub);
    free(fetch);
}

static void job_fetch_end(struct job_fetch *fetch)
{
    fetch->ended = true;
    fetch->all->ticks =
        0; /* the next tick looks for jobs: others may want the same model, which is here now */
    if (!fetch->telling)
        job_fetch_free(fetch);
}

/* Called with what became of a job. A job that waits no longer was cancelled. */
static void job_recorded(void *arg, const struct err *err)
{
    struct job_fetch *fetch = arg;
    if (err && err->code != ERR_NOT_FOUND && err->code != ERR_CANCELLED)
        log_event(LOG_LEVEL_WARN, "fetch_unrecorded", "job=%lld why=\"%s\"", (long long)fetch->job,
                  err->text);
    job_fetch_end(fetch);
}

/* Whether the same may succeed later: then the job waits on, and is taken again. */
static bool fetches_passes(const struct job_fetch *fetch, const struct err *err)
{
    return fetch->all->app->stopping || err->code == ERR_CANCELLED || err->code == ERR_NOMEM;
}

static void job_fails(struct job_fetch *fetch, const struct err *why)
{
    struct err err = {0};
    if (fetches_passes(fetch, why)) {
        job_fetch_end(fetch);
        return;
    }
    log_event(LOG_LEVEL_INFO, "fetch_failed", "job=%lld model=%s why=\"%s\"", (long long)fetch->job,
              fetch->hub, why->text);
    if (store_fetch_fail(fetch->all->app->store, fetch->job, why, job_recorded, fetch, &err) < 0)
        job_recorded(fetch, &err);
}

/* Checks the job, whose model is here now, and makes it one that can start. */
static void fetches_job_check(void *arg)
{
    struct job_fetch *fetch = arg;
    struct app *app = fetch->all->app;
    struct checked *checked;
    json_t *more;
    struct err err = {0};
    if (check_spec(app->submits, &fetch->owner, fetch->spec, CHECK_SUBMIT, &checked, &more, &err) < 0) {
        json_decref(more);
        job_fails(fetch, &err);
        return;
    }
    json_t *spec = json_copy(checked->spec); /* jobs that share a check may have different names */
    if (spec)
        json_object_set(spec, "name", json_object_get(fetch->spec, "name"));
    const struct store_fetched fetched = {
        .spec = spec, .inputs = checked->inputs, .steps = checked->steps, .held = checked->held};
    if (!spec)
        err_set(&err, ERR_NOMEM, "out of memory for a job");
    if (!spec || store_fetch_done(app->store, fetch->job, &fetched, job_recorded, fetch, &err) < 0)
        job_recorded(fetch, &err);
    json_decref(spec);
    checked_release(checked);
}

static void model_registered(void *arg, const struct err *err, const char *content)
{
    struct job_fetch *fetch = arg;
    struct err why = {0};
    fetch->registration = NULL;
    if (err) {
        why = *err;
        err_wrap(&why, "model");
        job_fails(fetch, &why);
        return;
    }
    json_object_set_new(fetch->spec, "model", json_string(content));
    if (wait_run(fetch->all->app, fetches_job_check, fetch, &why) < 0)
        job_fails(fetch, &why);
}

/* ---- taking jobs ---- */

static void job_taken(struct job_fetches *fetches, const json_t *row)
{
    struct err err = {0};
    struct job_fetch *fetch = calloc(1, sizeof(*fetch));
    if (!fetch)
        return; /* it is taken again */
    fetch->all = fetches;
    fetch->job = json_integer_value(json_object_get(row, "job"));
    fetch->hub = strdup(json_text_of(row, "hub"));
    fetch->spec = json_incref(json_object_get(row, "spec"));
    fetch->owner =
        (struct principal){.kind = PRINCIPAL_USER,
                           .admin = json_is_true(json_object_get(row, "admin")),
                           .id = json_integer_value(json_object_get(row, "owner")),
                           .scopes = SCOPES_USER,
                           .priority_max = (int32_t)json_integer_value(json_object_get(row, "priority_max"))};
    snprintf(fetch->owner.name, sizeof(fetch->owner.name), "%s", json_text_of(row, "name"));
    LIST_INSERT_HEAD(&fetches->list, fetch, link);
    fetches->count++;
    if (!fetch->hub || !fetch->spec)
        job_fetch_end(fetch);
    else if (registration_fetch(fetches->app, &fetch->owner, fetch->hub, model_registered, fetch,
                                &fetch->registration, &err) < 0)
        job_fails(fetch, &err);
}

static void jobs_claimed(void *arg, const struct err *err, json_t *doc)
{
    struct job_fetches *fetches = arg;
    size_t index;
    json_t *row;
    fetches->asking = false;
    if (err && err->code != ERR_CANCELLED)
        log_event(LOG_LEVEL_WARN, "fetch_unasked", "why=\"%s\"", err->text);
    if (!err && !fetches->app->stopping)
        json_array_foreach (doc, index, row)
            job_taken(fetches, row);
}

void fetches_look(struct job_fetches *fetches)
{
    struct err err = {0};
    const struct app *app = fetches->app;
    if (app->config->hub.fetch == API_HUB_NOBODY || app->stopping || fetches->asking ||
        fetches->count >= AT_ONCE_MAX)
        return;
    fetches->asking = true;
    if (store_fetch_claim(app->store, LEASE_S, AT_ONCE_MAX - fetches->count, jobs_claimed, fetches, &err) < 0)
        jobs_claimed(fetches, &err, NULL);
}

/* ---- telling how far they are ---- */

static void job_told(void *arg, const struct err *err, int64_t waits)
{
    struct job_fetch *fetch = arg;
    fetch->telling = false;
    if (fetch->ended)
        job_fetch_end(fetch);
    else if (!err && !waits && fetch->registration)
        registration_stop(fetch->registration);
}

static void say_why(struct job_fetch *fetch, char why[WHY_BYTES])
{
    struct registration_seen seen = {0};
    char done[32], total[32];
    if (fetch->registration)
        registration_look(fetch->registration, &seen);
    if (!fetch->registration)
        snprintf(why, WHY_BYTES, "its model %.256s has come from the Hub, and the job is being checked",
                 fetch->hub);
    else if (seen.total_bytes > 0)
        snprintf(why, WHY_BYTES, "its model %.256s is being fetched from the Hub: %s of %s are here%s%s",
                 fetch->hub, units_bytes(done, seen.done_bytes), units_bytes(total, seen.total_bytes),
                 *seen.note ? "; " : "", seen.note);
    else
        snprintf(why, WHY_BYTES, "its model %.256s is to be fetched from the Hub%s%s", fetch->hub,
                 *seen.note ? ": " : "", seen.note);
}

static void fetches_tick(evutil_socket_t fd, short what, void *arg)
{
    struct job_fetches *fetches = arg;
    struct job_fetch *fetch;
    char why[WHY_BYTES];
    struct err err = {0};
    (void)fd, (void)what;
    LIST_FOREACH (fetch, &fetches->list, link) {
        if (fetch->telling || fetch->ended)
            continue;
        say_why(fetch, why);
        if (strcmp(why, fetch->why) == 0 && ++fetch->silent < TELL_TICKS)
            continue;
        snprintf(fetch->why, sizeof(fetch->why), "%s", why);
        fetch->silent = 0;
        fetch->telling =
            store_fetch_tell(fetches->app->store, fetch->job, LEASE_S, why, job_told, fetch, &err) == 0;
    }
    if (fetches->ticks++ % IDLE_TICKS == 0)
        fetches_look(fetches);
}

int fetches_create(struct app *app, struct job_fetches **out, struct err *err)
{
    const struct timeval every = {TICK_MS / 1000, TICK_MS % 1000 * 1000};
    struct job_fetches *fetches = calloc(1, sizeof(*fetches));
    if (!fetches || !(fetches->timer = event_new(app->base, -1, EV_PERSIST, fetches_tick, fetches))) {
        free(fetches);
        return err_set(err, ERR_NOMEM, "out of memory for fetches");
    }
    fetches->app = app;
    LIST_INIT(&fetches->list);
    if (app->config->hub.fetch != API_HUB_NOBODY)
        event_add(fetches->timer, &every);
    *out = fetches;
    return 0;
}

void fetches_destroy(struct job_fetches *fetches)
{
    if (!fetches)
        return;
    event_free(fetches->timer);
    while (!LIST_EMPTY(&fetches->list))
        job_fetch_free(LIST_FIRST(&fetches->list));
    free(fetches);
}
