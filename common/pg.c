/* The asynchronous PostgreSQL pool.
 *
 * Works wait in two lists (reads and writes). A *link* is one connection in pipeline mode. A free link takes
 * a *group* of works from a list, sends all their statements and one Sync, and answers the works when the
 * Sync has returned. Between two Syncs the server runs one implicit transaction, so the works share one
 * commit. While a group waits for the disk, works gather for the next one, so groups grow with the load.
 *
 * A group that fails was rolled back as a whole. The work that failed runs again alone, so that its error is
 * its own; the others return to the front of the list.
 *
 * Callbacks may queue works or destroy the pool: 'depth' counts our handlers on the stack, and the memory is
 * freed when the outermost one returns.
 */
#include "common/pg.h"

#include <event2/util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/pg_private.h"

enum {
    QUEUE_MAX = 16384,
    GROUP_MAX = 256,
    TIMEOUT_MS = 10000,
    BACKOFF_MIN_MS = 50,
    BACKOFF_MAX_MS = 2000,
    SWEEP_MS = 50,
    GRACE_MS = 2000 /* longer than the server's statement_timeout, which should report first */
};

/* ---- works ---- */

static size_t round8(size_t size)
{
    return (size + 7) & ~(size_t)7;
}

/* Returns the bytes of the copies of one step's parameters: first arrays, then texts. */
static size_t params_size(const struct pg_params *params)
{
    if (!params)
        return 0;
    size_t size = round8((size_t)params->count * (sizeof(char *) + 2 * sizeof(int)));
    for (int i = 0; i < params->count; i++)
        size += round8((size_t)params->lengths[i] + 1);
    return size;
}

static char *params_copy(struct pg_work_step *step, const struct pg_params *params, char *at)
{
    if (!params)
        return at;
    size_t count = (size_t)params->count;
    step->count = params->count;
    step->values = (const char **)(void *)at;
    step->lengths = (int *)(void *)(at + count * sizeof(char *));
    step->formats = step->lengths + count;
    at += round8(count * (sizeof(char *) + 2 * sizeof(int)));
    for (size_t i = 0; i < count; i++) {
        size_t length = (size_t)params->lengths[i];
        step->lengths[i] = params->lengths[i];
        step->formats[i] = params->formats[i];
        step->values[i] = NULL;
        if (params->values[i]) {
            memcpy(at, params->values[i], length);
            at[length] = '\0';
            step->values[i] = at;
        }
        at += round8(length + 1);
    }
    return at;
}

static struct pg_work *work_create(const struct pg_step *steps, int count, struct err *err)
{
    size_t size = sizeof(struct pg_work) + (size_t)count * sizeof(struct pg_work_step);
    for (int i = 0; i < count; i++) {
        if (pg_params_check(steps[i].params, err) < 0)
            return NULL;
        size += params_size(steps[i].params);
    }
    struct pg_work *work = malloc(size);
    if (!work) {
        err_set(err, ERR_NOMEM, "no memory for %d statements of %zu bytes", count, size);
        return NULL;
    }
    *work = (struct pg_work){.step_count = count};
    char *at = (char *)(work->steps + count);
    for (int i = 0; i < count; i++) {
        work->steps[i] = (struct pg_work_step){.statement = steps[i].statement};
        work->write = work->write || steps[i].statement->kind == PG_WRITE;
        at = params_copy(&work->steps[i], steps[i].params, at);
    }
    return work;
}

static void pg_sweep_arm(struct pg *pg)
{
    if (!event_pending(pg->sweep, EV_TIMEOUT, NULL)) {
        struct timeval wait = {.tv_usec = SWEEP_MS * 1000};
        event_add(pg->sweep, &wait);
    }
}

int pg_query_with(struct pg *pg, const struct pg_step *steps, int count, uint32_t timeout_ms, bool alone,
                  pg_done_fn *done, void *arg, struct err *err)
{
    if (pg->destroyed)
        return err_set(err, ERR_CANCELLED, "the PostgreSQL pool is closing");
    if (count < 1 || count > PG_STEPS_MAX)
        return err_set(err, ERR_TOO_BIG, "%d statements in one work, the limit is %d", count, PG_STEPS_MAX);
    if (pg->queued >= pg->config.queue_max)
        return err_set(err, ERR_BUSY, "%u statements wait for PostgreSQL already", pg->queued);
    struct pg_work *work = work_create(steps, count, err);
    if (!work)
        return -1;
    work->done = done;
    work->arg = arg;
    work->alone = alone;
    work->deadline_ns =
        clock_mono_ns() + (uint64_t)(timeout_ms != 0 ? timeout_ms : pg->config.timeout_ms) * 1000000;
    pg_list_push(work->write ? &pg->writes : &pg->reads, work);
    pg->queued++;
    pg_pump_soon(pg);
    pg_sweep_arm(pg);
    return 0;
}

int pg_query(struct pg *pg, const struct pg_statement *statement, const struct pg_params *params,
             pg_done_fn *done, void *arg, struct err *err)
{
    struct pg_step step = {.statement = statement, .params = params};
    return pg_query_with(pg, &step, 1, 0, false, done, arg, err);
}

/* ---- the pool ---- */

static void pump_run(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct pg *pg = arg;
    pg->depth++;
    for (unsigned i = 0; i < pg->link_count && !pg->destroyed; i++) {
        struct pg_link *link = pg->links[i];
        if (link->state != PG_LINK_READY || link->listener || link->group.head)
            continue;
        if (link->writes && pg->writes.head)
            pg_group_start(link, &pg->writes);
        else if (link->reads && pg->reads.head)
            pg_group_start(link, &pg->reads);
    }
    pg_handler_leave(pg);
}

static bool is_ready(const struct pg *pg)
{
    for (unsigned i = 0; i < pg->link_count; i++)
        if (pg->links[i]->state == PG_LINK_READY && !pg->links[i]->listener)
            return true;
    return false;
}

/* Answers waiting works whose deadline passed. */
static void list_sweep(struct pg *pg, struct pg_list *list, uint64_t now_ns)
{
    struct pg_list late = {0};
    struct pg_list kept = {0};
    struct pg_work *work;
    while ((work = pg_list_pop(list)))
        pg_list_push(work->deadline_ns <= now_ns ? &late : &kept, work);
    *list = kept;
    struct err err;
    err_set(&err, ERR_TIMEOUT, "PostgreSQL did not answer in time%s", is_ready(pg) ? "" : ": not connected");
    while ((work = pg_list_pop(&late)))
        pg_work_finish(pg, work, &err);
}

/* Answers works in flight whose deadline passed. A connection that stays silent after that is dropped. */
static void link_sweep(struct pg_link *link, uint64_t now_ns)
{
    struct err err;
    err_set(&err, ERR_TIMEOUT, "PostgreSQL did not answer in time; whether the change was made is not known");
    uint64_t grace_ns = (uint64_t)GRACE_MS * 1000000;
    bool silent = false;
    for (struct pg_work *work = link->group.head; work && !link->pg->destroyed;) {
        struct pg_work *next = work->next;
        silent = silent || now_ns > work->deadline_ns + grace_ns;
        if (work->deadline_ns <= now_ns && !work->abandoned) {
            pg_done_fn *done = work->done;
            work->abandoned = true;
            if (done)
                done(work->arg, NULL, 0, &err);
        }
        work = next;
    }
    if (silent && !link->pg->destroyed)
        pg_link_lost(link, &err);
}

static void sweep_run(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct pg *pg = arg;
    pg->depth++;
    uint64_t now_ns = clock_mono_ns();
    list_sweep(pg, &pg->reads, now_ns);
    list_sweep(pg, &pg->writes, now_ns);
    for (unsigned i = 0; i < pg->link_count && !pg->destroyed; i++)
        link_sweep(pg->links[i], now_ns);
    if (!pg->destroyed && pg->queued > 0)
        pg_sweep_arm(pg);
    pg_handler_leave(pg);
}

static void pg_free(struct pg *pg)
{
    for (unsigned i = 0; i < pg->link_count; i++) {
        pg_link_close(pg->links[i]);
        event_free(pg->links[i]->timer);
        free(pg->links[i]->slots);
        free(pg->links[i]);
    }
    for (uint32_t i = 0; i < pg->channel_count; i++)
        free(pg->channels[i].name);
    if (pg->pump)
        event_free(pg->pump);
    if (pg->sweep)
        event_free(pg->sweep);
    free(pg->conninfo);
    free(pg->application);
    free(pg);
}

static void config_defaults(struct pg_config *config)
{
    config->connections = config->connections == 0 ? 4 : config->connections;
    config->connections = config->connections > PG_LINKS_MAX ? PG_LINKS_MAX : config->connections;
    config->queue_max = config->queue_max == 0 ? QUEUE_MAX : config->queue_max;
    config->group_max = config->group_max == 0 ? GROUP_MAX : config->group_max;
    config->timeout_ms = config->timeout_ms == 0 ? TIMEOUT_MS : config->timeout_ms;
    config->backoff_ms_min = config->backoff_ms_min == 0 ? BACKOFF_MIN_MS : config->backoff_ms_min;
    config->backoff_ms_max = config->backoff_ms_max == 0 ? BACKOFF_MAX_MS : config->backoff_ms_max;
}

struct pg *pg_create(struct event_base *base, const struct pg_config *config, struct err *err)
{
    char *why = NULL;
    PQconninfoOption *options = PQconninfoParse(config->conninfo, &why);
    if (!options) {
        err_set(err, ERR_INVALID, "the PostgreSQL address is not valid: %s", !why ? "no memory" : why);
        PQfreemem(why);
        return NULL;
    }
    PQconninfoFree(options);
    struct pg *pg = calloc(1, sizeof(*pg));
    if (!pg) {
        err_set(err, ERR_NOMEM, "no memory for a PostgreSQL pool");
        return NULL;
    }
    pg->base = base;
    pg->free = pg_free;
    pg->config = *config;
    config_defaults(&pg->config);
    pg->conninfo = strdup(config->conninfo);
    pg->application = config->application_name ? strdup(config->application_name) : NULL;
    pg->pump = event_new(base, -1, 0, pump_run, pg);
    pg->sweep = evtimer_new(base, sweep_run, pg);
    bool good = pg->conninfo && pg->pump && pg->sweep;
    unsigned writers = pg->config.connections == 1 ? 1 : pg->config.connections / 2;
    for (unsigned i = 0; good && i < pg->config.connections; i++) {
        struct pg_link *link = pg_link_create(pg);
        good = link != NULL;
        if (good) {
            link->writes = i < writers;
            link->reads = i >= writers || pg->config.connections == 1;
        }
    }
    if (!good) {
        pg_free(pg);
        err_set(err, ERR_NOMEM, "no memory for a PostgreSQL pool");
        return NULL;
    }
    return pg;
}

void pg_destroy(struct pg *pg)
{
    if (!pg || pg->destroyed)
        return;
    pg->destroyed = true;
    pg->depth++;
    struct err why;
    err_set(&why, ERR_CANCELLED, "the PostgreSQL pool is closing");
    struct pg_work *work;
    for (unsigned i = 0; i < pg->link_count; i++) {
        struct pg_list works = pg->links[i]->group;
        pg->links[i]->group = (struct pg_list){0};
        while ((work = pg_list_pop(&works)))
            pg_work_finish(pg, work, &why);
        event_del(pg->links[i]->timer);
    }
    while ((work = pg_list_pop(&pg->reads)) || (work = pg_list_pop(&pg->writes)))
        pg_work_finish(pg, work, &why);
    pg_handler_leave(pg);
}

int pg_listen(struct pg *pg, const char *channel, pg_notify_fn *notified, void *arg, struct err *err)
{
    if (pg->channel_count == PG_CHANNELS_MAX)
        return err_set(err, ERR_TOO_BIG, "more than %d channels are listened to", PG_CHANNELS_MAX);
    char *name = strdup(channel);
    if (!name)
        return err_set(err, ERR_NOMEM, "no memory for a channel");
    pg->channels[pg->channel_count++] = (struct pg_channel){.name = name, .notified = notified, .arg = arg};
    if (!pg->listener) {
        pg->listener = pg_link_create(pg);
        if (!pg->listener) {
            pg->channel_count--;
            free(name);
            return err_set(err, ERR_NOMEM, "no memory for a listening connection");
        }
        pg->listener->listener = true;
    } else {
        pg_link_timer(pg->listener, 0); /* send LISTEN soon, outside this call */
    }
    return 0;
}
