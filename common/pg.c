/* Asynchronous PostgreSQL.
 *
 * Works wait in two lists (reads, writes). A *link* is one connection in pipeline mode; when it is free it
 * takes a *group* of works from a list, sends all their statements and one Sync, and answers the works when
 * the Sync has come back: between two Syncs the server runs one implicit transaction, so the works share one
 * commit. While a group waits for the disk, works gather for the next: groups grow with the load by
 * themselves.
 *
 * A group that fails was rolled back as a whole. The work that failed is run again alone (its error then is
 * its own), the others are put back in front of the list.
 *
 * Callbacks may queue works or destroy the pool: 'depth' counts our handlers on the stack, the memory goes
 * when the outermost returns. */
#include "common/pg.h"

#include <event2/util.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/pg_impl.h"

enum {
    LINKS_MAX = 64,
    CHANNELS_MAX = 8,
    QUEUE_MAX = 16384,
    GROUP_MAX = 256,
    TIMEOUT_MS = 10000,
    BACKOFF_MIN_MS = 50,
    BACKOFF_MAX_MS = 2000,
    CONNECT_MS = 5000,
    SWEEP_MS = 50,
    GRACE_MS = 2000, /* the server's statement_timeout speaks first */
    RETRIES_MAX = 3  /* of deadlocks and serialization failures of a work alone */
};

struct step {
    const struct pg_statement *statement;
    int count;
    const char **values;
    int *lengths;
    int *formats;
};

struct work {
    struct work *next;
    pg_done_fn *done;
    void *arg;
    uint64_t deadline_ns;
    bool write;
    bool alone;     /* a transaction of its own */
    bool abandoned; /* answered by its deadline while in flight */
    int retries;
    int step_count;
    PGresult *results[PG_STEPS_MAX];
    struct step steps[]; /* then the parameters */
};

struct list {
    struct work *head;
    struct work *tail;
};

enum link_state { LINK_DOWN, LINK_CONNECTING, LINK_READY };

/* What the next result of a link answers: the statement of a step, or its preparation. */
struct slot {
    struct work *work;
    int step;
    bool prepare;
};

struct link {
    struct pg *pg;
    PGconn *conn;
    struct event *readable;
    struct event *writable;
    struct event *timer;
    enum link_state state;
    uint32_t backoff_ms;
    bool writes;
    bool reads;
    bool listener;
    struct pg_prepared prepared;
    struct list group; /* in flight */
    struct slot *slots;
    int slot_count;
    int slot_capacity;
    int slot_at;
    bool failed; /* the group, by 'culprit' (NULL: by its commit) */
    struct work *culprit;
    struct err error;
    uint32_t listened; /* channels of the listener asked for on this connection */
};

struct channel {
    char *name;
    pg_notify_fn *notified;
    void *arg;
};

struct pg {
    struct event_base *base;
    struct event *pump;
    struct event *sweep;
    struct list reads;
    struct list writes;
    uint32_t queued;
    struct link *links[LINKS_MAX + 1]; /* the listener, once there is one, last */
    unsigned link_count;
    struct link *listener;
    struct channel channels[CHANNELS_MAX];
    uint32_t channel_count;
    char *conninfo;
    char *application;
    struct pg_config config;
    unsigned depth;
    bool destroyed;
};

static void link_start(struct link *link);
static void link_lost(struct link *link, const struct err *why);
static void link_read(evutil_socket_t fd, short what, void *arg);

/* ---- lists and works ---- */

static void list_push(struct list *list, struct work *work)
{
    work->next = NULL;
    if (list->tail != NULL) {
        list->tail->next = work;
    } else {
        list->head = work;
    }
    list->tail = work;
}

static void list_push_front(struct list *list, struct work *work)
{
    work->next = list->head;
    list->head = work;
    list->tail = list->tail == NULL ? work : list->tail;
}

static struct work *list_pop(struct list *list)
{
    struct work *work = list->head;
    if (work != NULL) {
        list->head = work->next;
        list->tail = list->head == NULL ? NULL : list->tail;
    }
    return work;
}

static void results_clear(struct work *work)
{
    for (int i = 0; i < work->step_count; i++) {
        PQclear(work->results[i]);
        work->results[i] = NULL;
    }
}

static void work_free(struct work *work)
{
    results_clear(work);
    free(work);
}

/* Answer and free. */
static void work_finish(struct pg *pg, struct work *work, const struct err *err)
{
    pg->queued--;
    if (work->done != NULL && !work->abandoned) {
        static const struct err fine = {0};
        if (err == NULL) {
            work->done(work->arg, (const struct pg_result *const *)work->results, work->step_count, &fine);
        } else {
            work->done(work->arg, NULL, 0, err);
        }
    }
    work_free(work);
}

static size_t round8(size_t size)
{
    return (size + 7) & ~(size_t)7;
}

/* Bytes of the copies of one step's parameters: arrays, then texts. */
static size_t params_size(const struct pg_params *params)
{
    if (params == NULL) {
        return 0;
    }
    size_t size = round8((size_t)params->count * (sizeof(char *) + 2 * sizeof(int)));
    for (int i = 0; i < params->count; i++) {
        size += round8((size_t)params->lengths[i] + 1);
    }
    return size;
}

static char *params_copy(struct step *step, const struct pg_params *params, char *at)
{
    if (params == NULL) {
        return at;
    }
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
        if (params->values[i] != NULL) {
            memcpy(at, params->values[i], length);
            at[length] = '\0';
            step->values[i] = at;
        }
        at += round8(length + 1);
    }
    return at;
}

static struct work *work_create(const struct pg_step *steps, int count, struct err *err)
{
    size_t size = sizeof(struct work) + (size_t)count * sizeof(struct step);
    for (int i = 0; i < count; i++) {
        if (pg_params_check(steps[i].params, err) < 0) {
            return NULL;
        }
        size += params_size(steps[i].params);
    }
    struct work *work = malloc(size);
    if (work == NULL) {
        err_set(err, ERR_NOMEM, "no memory for %d statements of %zu bytes", count, size);
        return NULL;
    }
    *work = (struct work){.step_count = count};
    char *at = (char *)(work->steps + count);
    for (int i = 0; i < count; i++) {
        work->steps[i] = (struct step){.statement = steps[i].statement};
        work->write = work->write || steps[i].statement->kind == PG_WRITE;
        at = params_copy(&work->steps[i], steps[i].params, at);
    }
    return work;
}

static void pump_soon(struct pg *pg)
{
    event_active(pg->pump, EV_TIMEOUT, 1);
}

static void sweep_arm(struct pg *pg)
{
    if (!event_pending(pg->sweep, EV_TIMEOUT, NULL)) {
        struct timeval wait = {.tv_usec = SWEEP_MS * 1000};
        event_add(pg->sweep, &wait);
    }
}

int pg_query_with(struct pg *pg, const struct pg_step *steps, int count, uint32_t timeout_ms, bool alone,
                  pg_done_fn *done, void *arg, struct err *err)
{
    if (pg->destroyed) {
        return err_set(err, ERR_CANCELLED, "the PostgreSQL pool is closing");
    }
    if (count < 1 || count > PG_STEPS_MAX) {
        return err_set(err, ERR_TOO_BIG, "%d statements in one work, the limit is %d", count, PG_STEPS_MAX);
    }
    if (pg->queued >= pg->config.queue_max) {
        return err_set(err, ERR_BUSY, "%u statements wait for PostgreSQL already", pg->queued);
    }
    struct work *work = work_create(steps, count, err);
    if (work == NULL) {
        return -1;
    }
    work->done = done;
    work->arg = arg;
    work->alone = alone;
    work->deadline_ns =
        clock_mono_ns() + (uint64_t)(timeout_ms != 0 ? timeout_ms : pg->config.timeout_ms) * 1000000;
    list_push(work->write ? &pg->writes : &pg->reads, work);
    pg->queued++;
    pump_soon(pg);
    sweep_arm(pg);
    return 0;
}

int pg_query_steps(struct pg *pg, const struct pg_step *steps, int count, pg_done_fn *done, void *arg,
                   struct err *err)
{
    return pg_query_with(pg, steps, count, 0, false, done, arg, err);
}

int pg_query(struct pg *pg, const struct pg_statement *statement, const struct pg_params *params,
             pg_done_fn *done, void *arg, struct err *err)
{
    struct pg_step step = {.statement = statement, .params = params};
    return pg_query_with(pg, &step, 1, 0, false, done, arg, err);
}

/* ---- groups ---- */

static bool slot_push(struct link *link, struct work *work, int step, bool prepare)
{
    if (link->slot_count == link->slot_capacity) {
        int capacity = link->slot_capacity == 0 ? 256 : link->slot_capacity * 2;
        struct slot *slots = realloc(link->slots, (size_t)capacity * sizeof(*slots));
        if (slots == NULL) {
            return false;
        }
        link->slots = slots;
        link->slot_capacity = capacity;
    }
    link->slots[link->slot_count++] = (struct slot){.work = work, .step = step, .prepare = prepare};
    return true;
}

/* Queue the statements of one work on the connection; false: the connection is to be dropped. */
static bool work_send(struct link *link, struct work *work)
{
    for (int i = 0; i < work->step_count; i++) {
        const struct step *step = &work->steps[i];
        if (!pg_prepared_has(&link->prepared, step->statement)) {
            if (!pg_prepared_add(&link->prepared, step->statement) ||
                PQsendPrepare(link->conn, step->statement->name, step->statement->sql, 0, NULL) == 0 ||
                !slot_push(link, work, i, true)) {
                return false;
            }
        }
        if (PQsendQueryPrepared(link->conn, step->statement->name, step->count, step->values, step->lengths,
                                step->formats, 0) == 0 ||
            !slot_push(link, work, i, false)) {
            return false;
        }
    }
    return true;
}

static void link_flush(struct link *link)
{
    int left = PQflush(link->conn);
    if (left < 0) {
        struct err why;
        pg_error_conn(link->conn, &why);
        link_lost(link, &why);
    } else if (left > 0) {
        event_add(link->writable, NULL);
    }
}

/* Take works of one list until the group is full; a work that wants to be alone is a group of its own. */
static void group_take(struct link *link, struct list *list)
{
    uint32_t count = 0;
    while (list->head != NULL && count < link->pg->config.group_max) {
        bool alone = list->head->alone;
        if (alone && count > 0) {
            break;
        }
        list_push(&link->group, list_pop(list));
        count++;
        if (alone) {
            break;
        }
    }
}

static void group_start(struct link *link, struct list *list)
{
    group_take(link, list);
    link->slot_count = 0;
    link->slot_at = 0;
    link->failed = false;
    link->culprit = NULL;
    bool good = true;
    for (struct work *work = link->group.head; good && work != NULL; work = work->next) {
        good = work_send(link, work);
    }
    if (!good || PQpipelineSync(link->conn) == 0) {
        struct err why;
        pg_error_conn(link->conn, &why);
        link_lost(link, &why);
        return;
    }
    link_flush(link);
}

static void group_succeeded(struct link *link)
{
    struct pg *pg = link->pg;
    struct list done = link->group;
    link->group = (struct list){0};
    pump_soon(pg); /* the next group may start before these callbacks queue more */
    struct work *work;
    while ((work = list_pop(&done)) != NULL) {
        work_finish(pg, work, NULL);
    }
}

/* Put the group's works back in front, in their order. */
static void group_put_back(struct link *link, struct list *works)
{
    struct list turned = {0};
    struct work *work;
    while ((work = list_pop(works)) != NULL) {
        results_clear(work);
        list_push_front(&turned, work);
    }
    while ((work = list_pop(&turned)) != NULL) {
        list_push_front(work->write ? &link->pg->writes : &link->pg->reads, work);
    }
}

static void group_failed(struct link *link)
{
    struct pg *pg = link->pg;
    struct list works = link->group;
    link->group = (struct list){0};
    pump_soon(pg);
    bool single = works.head != NULL && works.head->next == NULL;
    if (single) {
        struct work *work = list_pop(&works);
        work->alone = true;
        if (link->error.code == ERR_BUSY && work->retries < RETRIES_MAX) {
            work->retries++;
            list_push(&works, work);
            group_put_back(link, &works);
            return;
        }
        struct err err = link->error;
        work_finish(pg, work, &err);
        return;
    }
    for (struct work *work = works.head; work != NULL; work = work->next) {
        work->alone = work->alone || link->culprit == NULL || work == link->culprit;
    }
    group_put_back(link, &works);
}

/* ---- results ---- */

static void result_failed(struct link *link, const struct slot *slot, PGresult *result)
{
    if (slot != NULL && slot->prepare) {
        pg_prepared_remove(&link->prepared, slot->work->steps[slot->step].statement);
    }
    if (PQresultStatus(result) == PGRES_FATAL_ERROR && !link->failed) {
        link->failed = true;
        link->culprit = slot == NULL ? NULL : slot->work;
        pg_error_result(result, &link->error);
        if (slot != NULL) {
            err_wrap(&link->error, "%s", slot->work->steps[slot->step].statement->name);
        }
    }
    PQclear(result);
}

/* Take one result; false when the link is gone or has no group any more. */
static bool result_take(struct link *link, PGresult *result)
{
    struct slot *slot = link->slot_at < link->slot_count ? &link->slots[link->slot_at] : NULL;
    ExecStatusType status = PQresultStatus(result);
    if (status == PGRES_PIPELINE_SYNC) {
        PQclear(result);
        if (link->failed) {
            group_failed(link);
        } else {
            group_succeeded(link);
        }
        return false;
    }
    if (status == PGRES_FATAL_ERROR && pg_error_is_shutdown(result)) {
        struct err why;
        pg_error_result(result, &why);
        PQclear(result);
        link_lost(link, &why);
        return false;
    }
    if (slot == NULL || (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)) {
        result_failed(link, slot, result);
    } else if (slot->prepare) {
        PQclear(result);
    } else {
        PQclear(slot->work->results[slot->step]);
        slot->work->results[slot->step] = result;
    }
    return true;
}

static void results_read(struct link *link)
{
    while (link->group.head != NULL && !PQisBusy(link->conn)) {
        PGresult *result = PQgetResult(link->conn);
        if (result != NULL) {
            if (!result_take(link, result)) {
                return;
            }
        } else if (link->slot_at < link->slot_count) {
            link->slot_at++;
        } else if (PQstatus(link->conn) != CONNECTION_OK) {
            struct err why;
            pg_error_conn(link->conn, &why);
            link_lost(link, &why);
            return;
        } else {
            return; /* the Sync is still to come */
        }
    }
}

static void notifications_read(struct link *link)
{
    struct pg *pg = link->pg;
    PGresult *result;
    while (!PQisBusy(link->conn) && (result = PQgetResult(link->conn)) != NULL) {
        PQclear(result);
    }
    PGnotify *notify;
    while (!pg->destroyed && link->state == LINK_READY && (notify = PQnotifies(link->conn)) != NULL) {
        for (uint32_t i = 0; i < pg->channel_count && !pg->destroyed; i++) {
            if (strcmp(pg->channels[i].name, notify->relname) == 0) {
                pg->channels[i].notified(pg->channels[i].arg, notify->relname, notify->extra);
            }
        }
        PQfreemem(notify);
    }
}

static void handler_leave(struct pg *pg);

static void link_read(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct link *link = arg;
    struct pg *pg = link->pg;
    pg->depth++;
    if (PQconsumeInput(link->conn) == 0) {
        /* What the server said before it closed ("terminating connection …") is in the connection's message.
         */
        struct err why;
        pg_error_conn(link->conn, &why);
        link_lost(link, &why);
    } else if (link->listener) {
        notifications_read(link);
    } else if (link->group.head == NULL && PQstatus(link->conn) != CONNECTION_OK) {
        struct err why;
        pg_error_conn(link->conn, &why);
        link_lost(link, &why);
    } else {
        results_read(link);
        if (!pg->destroyed && link->state == LINK_READY && event_pending(link->writable, EV_WRITE, NULL)) {
            link_flush(link); /* reading may have made room: libpq asks for both */
        }
    }
    handler_leave(pg);
}

static void link_write(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct link *link = arg;
    struct pg *pg = link->pg;
    pg->depth++;
    link_flush(link);
    handler_leave(pg);
}

/* ---- links ---- */

static void timer_arm(struct link *link, uint32_t ms)
{
    struct timeval wait = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    event_add(link->timer, &wait);
}

static void link_events_drop(struct link *link)
{
    if (link->readable != NULL) {
        event_free(link->readable);
        link->readable = NULL;
    }
    if (link->writable != NULL) {
        event_free(link->writable);
        link->writable = NULL;
    }
}

static void link_close(struct link *link)
{
    link_events_drop(link);
    PQfinish(link->conn);
    link->conn = NULL;
    link->state = LINK_DOWN;
    link->prepared.count = 0;
    link->listened = 0;
}

/* Close, answer or keep what was in flight, come back later. */
static void link_lost(struct link *link, const struct err *why)
{
    struct pg *pg = link->pg;
    link_close(link);
    link->backoff_ms = link->backoff_ms == 0 ? pg->config.backoff_ms_min : link->backoff_ms * 2;
    if (link->backoff_ms > pg->config.backoff_ms_max) {
        link->backoff_ms = pg->config.backoff_ms_max;
    }
    timer_arm(link, link->backoff_ms);
    struct list works = link->group;
    struct list again = {0};
    link->group = (struct list){0};
    struct err err;
    err_set(&err, ERR_NET, "%s; whether the change was made is not known", why->text);
    struct work *work;
    struct list unknown = {0};
    while ((work = list_pop(&works)) != NULL) {
        list_push(work->write || work->abandoned ? &unknown : &again, work);
    }
    group_put_back(link, &again);
    while ((work = list_pop(&unknown)) != NULL) {
        work_finish(pg, work, &err);
    }
    if (!pg->destroyed && pg->config.trouble != NULL) {
        pg->config.trouble(pg->config.arg, why);
    }
}

static void listen_send(struct link *link)
{
    struct pg *pg = link->pg;
    if (link->state != LINK_READY || link->listened == pg->channel_count || PQisBusy(link->conn)) {
        return;
    }
    struct buf sql;
    struct err err;
    buf_init(&sql, 4096);
    uint32_t from = link->listened;
    bool good = true;
    for (uint32_t i = from; good && i < pg->channel_count; i++) {
        char *name = PQescapeIdentifier(link->conn, pg->channels[i].name, strlen(pg->channels[i].name));
        good = name != NULL && buf_printf(&sql, &err, "LISTEN %s;", name) == 0;
        PQfreemem(name);
    }
    if (good && PQsendQuery(link->conn, buf_str(&sql)) == 1) {
        link->listened = pg->channel_count;
        link_flush(link);
    }
    buf_fini(&sql);
    for (uint32_t i = from; i < link->listened && !pg->destroyed; i++) {
        pg->channels[i].notified(pg->channels[i].arg, pg->channels[i].name, NULL);
    }
}

static void notice_ignore(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result;
}

static void link_ready(struct link *link)
{
    struct pg *pg = link->pg;
    link_events_drop(link);
    link->readable = event_new(pg->base, PQsocket(link->conn), EV_READ | EV_PERSIST, link_read, link);
    link->writable = event_new(pg->base, PQsocket(link->conn), EV_WRITE, link_write, link);
    PQsetNoticeReceiver(link->conn, notice_ignore, NULL);
    bool good = link->readable != NULL && link->writable != NULL && PQsetnonblocking(link->conn, 1) == 0 &&
                event_add(link->readable, NULL) == 0;
    if (!good || (!link->listener && PQenterPipelineMode(link->conn) == 0)) {
        struct err why;
        err_set(&why, ERR_NOMEM, "a PostgreSQL connection could not be set up");
        link_lost(link, &why);
        return;
    }
    event_del(link->timer);
    link->state = LINK_READY;
    link->backoff_ms = 0;
    if (link->listener) {
        listen_send(link);
    } else {
        pump_soon(pg);
    }
}

static void link_connecting(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct link *link = arg;
    struct pg *pg = link->pg;
    pg->depth++;
    PostgresPollingStatusType polled = PQconnectPoll(link->conn);
    if (polled == PGRES_POLLING_OK) {
        link_ready(link);
    } else if (polled == PGRES_POLLING_READING || polled == PGRES_POLLING_WRITING) {
        /* The socket may be another one now. */
        link_events_drop(link);
        short wanted = polled == PGRES_POLLING_READING ? EV_READ : EV_WRITE;
        link->readable = event_new(pg->base, PQsocket(link->conn), wanted, link_connecting, link);
        if (link->readable != NULL) {
            event_add(link->readable, NULL);
        }
    } else {
        struct err why;
        pg_error_conn(link->conn, &why);
        link_lost(link, &why);
    }
    handler_leave(pg);
}

static void link_start(struct link *link)
{
    struct pg *pg = link->pg;
    struct pg_conn_params params;
    pg_conn_params_make(&params, pg->conninfo, pg->application, pg->config.timeout_ms);
    link->conn = PQconnectStartParams(params.keywords, params.values, 1);
    if (link->conn == NULL || PQstatus(link->conn) == CONNECTION_BAD) {
        struct err why;
        pg_error_conn(link->conn, &why);
        link_lost(link, &why);
        return;
    }
    link->state = LINK_CONNECTING;
    timer_arm(link, CONNECT_MS);
    link->readable = event_new(pg->base, PQsocket(link->conn), EV_WRITE, link_connecting, link);
    if (link->readable != NULL) {
        event_add(link->readable, NULL);
    }
}

static void link_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct link *link = arg;
    struct pg *pg = link->pg;
    pg->depth++;
    if (link->state == LINK_DOWN) {
        link_start(link);
    } else if (link->state == LINK_CONNECTING) {
        struct err why;
        err_set(&why, ERR_TIMEOUT, "PostgreSQL did not accept a connection within %d ms", CONNECT_MS);
        link_lost(link, &why);
    } else if (link->listener) {
        listen_send(link); /* pg_listen asked for one more channel */
    }
    handler_leave(pg);
}

static struct link *link_create(struct pg *pg)
{
    struct link *link = calloc(1, sizeof(*link));
    if (link == NULL || (link->timer = evtimer_new(pg->base, link_timer, link)) == NULL) {
        free(link);
        return NULL;
    }
    link->pg = pg;
    pg->links[pg->link_count++] = link;
    timer_arm(link, 0);
    return link;
}

/* ---- the pool ---- */

static void pump_run(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct pg *pg = arg;
    pg->depth++;
    for (unsigned i = 0; i < pg->link_count && !pg->destroyed; i++) {
        struct link *link = pg->links[i];
        if (link->state != LINK_READY || link->listener || link->group.head != NULL) {
            continue;
        }
        if (link->writes && pg->writes.head != NULL) {
            group_start(link, &pg->writes);
        } else if (link->reads && pg->reads.head != NULL) {
            group_start(link, &pg->reads);
        }
    }
    handler_leave(pg);
}

/* Answer waiting works whose deadline passed. */
static void list_sweep(struct pg *pg, struct list *list, uint64_t now_ns)
{
    struct list late = {0};
    struct list kept = {0};
    struct work *work;
    while ((work = list_pop(list)) != NULL) {
        list_push(work->deadline_ns <= now_ns ? &late : &kept, work);
    }
    *list = kept;
    struct err err;
    err_set(&err, ERR_TIMEOUT, "PostgreSQL did not answer in time%s",
            pg_is_ready(pg) ? "" : ": not connected");
    while ((work = list_pop(&late)) != NULL) {
        work_finish(pg, work, &err);
    }
}

/* Answer works in flight whose deadline passed; a connection that is silent for long after is dropped. */
static void link_sweep(struct link *link, uint64_t now_ns)
{
    struct err err;
    err_set(&err, ERR_TIMEOUT, "PostgreSQL did not answer in time; whether the change was made is not known");
    uint64_t grace_ns = (uint64_t)GRACE_MS * 1000000;
    bool silent = false;
    for (struct work *work = link->group.head; work != NULL && !link->pg->destroyed;) {
        struct work *next = work->next;
        silent = silent || now_ns > work->deadline_ns + grace_ns;
        if (work->deadline_ns <= now_ns && !work->abandoned) {
            pg_done_fn *done = work->done;
            work->abandoned = true;
            if (done != NULL) {
                done(work->arg, NULL, 0, &err);
            }
        }
        work = next;
    }
    if (silent && !link->pg->destroyed) {
        link_lost(link, &err);
    }
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
    for (unsigned i = 0; i < pg->link_count && !pg->destroyed; i++) {
        link_sweep(pg->links[i], now_ns);
    }
    if (!pg->destroyed && pg->queued > 0) {
        sweep_arm(pg);
    }
    handler_leave(pg);
}

static void pg_free(struct pg *pg)
{
    for (unsigned i = 0; i < pg->link_count; i++) {
        link_close(pg->links[i]);
        event_free(pg->links[i]->timer);
        free(pg->links[i]->slots);
        free(pg->links[i]);
    }
    for (uint32_t i = 0; i < pg->channel_count; i++) {
        free(pg->channels[i].name);
    }
    if (pg->pump != NULL) {
        event_free(pg->pump);
    }
    if (pg->sweep != NULL) {
        event_free(pg->sweep);
    }
    free(pg->conninfo);
    free(pg->application);
    free(pg);
}

static void handler_leave(struct pg *pg)
{
    if (--pg->depth == 0 && pg->destroyed) {
        pg_free(pg);
    }
}

static void config_defaults(struct pg_config *config)
{
    config->connections = config->connections == 0 ? 4 : config->connections;
    config->connections = config->connections > LINKS_MAX ? LINKS_MAX : config->connections;
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
    if (options == NULL) {
        err_set(err, ERR_INVALID, "the PostgreSQL address is not valid: %s", why == NULL ? "no memory" : why);
        PQfreemem(why);
        return NULL;
    }
    PQconninfoFree(options);
    struct pg *pg = calloc(1, sizeof(*pg));
    if (pg == NULL) {
        err_set(err, ERR_NOMEM, "no memory for a PostgreSQL pool");
        return NULL;
    }
    pg->base = base;
    pg->config = *config;
    config_defaults(&pg->config);
    pg->conninfo = strdup(config->conninfo);
    pg->application = config->application_name != NULL ? strdup(config->application_name) : NULL;
    pg->pump = event_new(base, -1, 0, pump_run, pg);
    pg->sweep = evtimer_new(base, sweep_run, pg);
    bool good = pg->conninfo != NULL && pg->pump != NULL && pg->sweep != NULL;
    unsigned writers = pg->config.connections == 1 ? 1 : pg->config.connections / 2;
    for (unsigned i = 0; good && i < pg->config.connections; i++) {
        struct link *link = link_create(pg);
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
    if (pg == NULL || pg->destroyed) {
        return;
    }
    pg->destroyed = true;
    pg->depth++;
    struct err why;
    err_set(&why, ERR_CANCELLED, "the PostgreSQL pool is closing");
    struct work *work;
    for (unsigned i = 0; i < pg->link_count; i++) {
        struct list works = pg->links[i]->group;
        pg->links[i]->group = (struct list){0};
        while ((work = list_pop(&works)) != NULL) {
            work_finish(pg, work, &why);
        }
        event_del(pg->links[i]->timer);
    }
    while ((work = list_pop(&pg->reads)) != NULL || (work = list_pop(&pg->writes)) != NULL) {
        work_finish(pg, work, &why);
    }
    handler_leave(pg);
}

bool pg_is_ready(const struct pg *pg)
{
    for (unsigned i = 0; i < pg->link_count; i++) {
        if (pg->links[i]->state == LINK_READY && !pg->links[i]->listener) {
            return true;
        }
    }
    return false;
}

uint32_t pg_queued(const struct pg *pg)
{
    return pg->queued;
}

int pg_listen(struct pg *pg, const char *channel, pg_notify_fn *notified, void *arg, struct err *err)
{
    if (pg->channel_count == CHANNELS_MAX) {
        return err_set(err, ERR_TOO_BIG, "more than %d channels are listened to", CHANNELS_MAX);
    }
    char *name = strdup(channel);
    if (name == NULL) {
        return err_set(err, ERR_NOMEM, "no memory for a channel");
    }
    pg->channels[pg->channel_count++] = (struct channel){.name = name, .notified = notified, .arg = arg};
    if (pg->listener == NULL) {
        pg->listener = link_create(pg);
        if (pg->listener == NULL) {
            pg->channel_count--;
            free(name);
            return err_set(err, ERR_NOMEM, "no memory for a listening connection");
        }
        pg->listener->listener = true;
    } else {
        timer_arm(pg->listener, 0); /* LISTEN to it soon, outside this call */
    }
    return 0;
}
