/* Connections of the pool: sending groups, receiving results, notifications, reconnection. pg.c describes the
 * design. */
#include <event2/util.h>
#include <stdlib.h>
#include <string.h>

#include "common/array.h"
#include "common/buf.h"
#include "common/pg_private.h"

enum {
    CONNECT_MS = 5000,
    RETRIES_MAX = 3 /* retries of a work alone after deadlocks and serialization failures */
};

static void link_start(struct pg_link *link);

/* ---- groups ---- */

static bool slot_push(struct pg_link *link, struct pg_work *work, int step, bool prepare)
{
    struct err err;
    if (ARRAY_RESERVE(link->slots, link->slot_capacity, (size_t)link->slot_count + 1, &err) < 0)
        return false;
    link->slots[link->slot_count++] = (struct pg_slot){.work = work, .step = step, .prepare = prepare};
    return true;
}

/* Queues the statements of one work on the connection; false when the connection must be dropped. */
static bool work_send(struct pg_link *link, struct pg_work *work)
{
    for (int i = 0; i < work->step_count; i++) {
        const struct pg_work_step *step = &work->steps[i];
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

static void link_flush(struct pg_link *link)
{
    int left = PQflush(link->conn);
    if (left < 0) {
        struct err why;
        pg_error_conn(link->conn, &why);
        pg_link_lost(link, &why);
    } else if (left > 0) {
        event_add(link->writable, NULL);
    }
}

/* Takes works of one list until the group is full. A work with `alone` is a group of its own. */
static void group_take(struct pg_link *link, struct pg_list *list)
{
    uint32_t count = 0;
    while (list->head && count < link->pg->config.group_max) {
        bool alone = list->head->alone;
        if (alone && count > 0)
            break;
        pg_list_push(&link->group, pg_list_pop(list));
        count++;
        if (alone)
            break;
    }
}

void pg_group_start(struct pg_link *link, struct pg_list *list)
{
    group_take(link, list);
    link->slot_count = 0;
    link->slot_at = 0;
    link->failed = false;
    link->culprit = NULL;
    bool good = true;
    for (struct pg_work *work = link->group.head; good && work; work = work->next)
        good = work_send(link, work);
    if (!good || PQpipelineSync(link->conn) == 0) {
        struct err why;
        pg_error_conn(link->conn, &why);
        pg_link_lost(link, &why);
        return;
    }
    link_flush(link);
}

static void group_succeeded(struct pg_link *link)
{
    struct pg *pg = link->pg;
    struct pg_list done = link->group;
    link->group = (struct pg_list){0};
    pg_pump_soon(pg); /* the next group may start before these callbacks queue more works */
    struct pg_work *work;
    while ((work = pg_list_pop(&done)))
        pg_work_finish(pg, work, NULL);
}

/* Puts the group's works back to the front of their lists, in order. */
static void group_put_back(struct pg_link *link, struct pg_list *works)
{
    struct pg_list turned = {0};
    struct pg_work *work;
    while ((work = pg_list_pop(works))) {
        pg_work_clear(work);
        pg_list_push_front(&turned, work);
    }
    while ((work = pg_list_pop(&turned)))
        pg_list_push_front(work->write ? &link->pg->writes : &link->pg->reads, work);
}

static void group_failed(struct pg_link *link)
{
    struct pg *pg = link->pg;
    struct pg_list works = link->group;
    link->group = (struct pg_list){0};
    pg_pump_soon(pg);
    bool single = works.head && !works.head->next;
    if (single) {
        struct pg_work *work = pg_list_pop(&works);
        work->alone = true;
        if (link->error.code == ERR_BUSY && work->retries < RETRIES_MAX) {
            work->retries++;
            pg_list_push(&works, work);
            group_put_back(link, &works);
            return;
        }
        struct err err = link->error;
        pg_work_finish(pg, work, &err);
        return;
    }
    for (struct pg_work *work = works.head; work != NULL; work = work->next)
        work->alone = work->alone || !link->culprit || work == link->culprit;
    group_put_back(link, &works);
}

/* ---- results ---- */

static void result_failed(struct pg_link *link, const struct pg_slot *slot, PGresult *result)
{
    if (slot && slot->prepare)
        pg_prepared_remove(&link->prepared, slot->work->steps[slot->step].statement);
    if (PQresultStatus(result) == PGRES_FATAL_ERROR && !link->failed) {
        link->failed = true;
        link->culprit = !slot ? NULL : slot->work;
        pg_error_result(result, &link->error);
        if (slot)
            err_wrap(&link->error, "%s", slot->work->steps[slot->step].statement->name);
    }
    PQclear(result);
}

/* Handles one result; false when the link is gone or has no group any more. */
static bool pg_link_result_take(struct pg_link *link, PGresult *result)
{
    struct pg_slot *slot = link->slot_at < link->slot_count ? &link->slots[link->slot_at] : NULL;
    ExecStatusType status = PQresultStatus(result);
    if (status == PGRES_PIPELINE_SYNC) {
        PQclear(result);
        if (link->failed)
            group_failed(link);
        else
            group_succeeded(link);
        return false;
    }
    if (status == PGRES_FATAL_ERROR && pg_error_is_shutdown(result)) {
        struct err why;
        pg_error_result(result, &why);
        PQclear(result);
        pg_link_lost(link, &why);
        return false;
    }
    if (!slot || (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK)) {
        result_failed(link, slot, result);
    } else if (slot->prepare) {
        PQclear(result);
    } else {
        PQclear(slot->work->results[slot->step]);
        slot->work->results[slot->step] = result;
    }
    return true;
}

static void results_read(struct pg_link *link)
{
    while (link->group.head && !PQisBusy(link->conn)) {
        PGresult *result = PQgetResult(link->conn);
        if (result) {
            if (!pg_link_result_take(link, result))
                return;
        } else if (link->slot_at < link->slot_count) {
            link->slot_at++;
        } else if (PQstatus(link->conn) != CONNECTION_OK) {
            struct err why;
            pg_error_conn(link->conn, &why);
            pg_link_lost(link, &why);
            return;
        } else {
            return; /* the result of the Sync has not arrived yet */
        }
    }
}

static void listen_send(struct pg_link *link)
{
    struct pg *pg = link->pg;
    if (link->state != PG_LINK_READY || link->listened == pg->channel_count || link->told < link->listened)
        return;
    struct buf sql;
    struct err err;
    buf_init(&sql, 4096);
    bool good = true;
    for (uint32_t i = link->listened; good && i < pg->channel_count; i++) {
        char *name = PQescapeIdentifier(link->conn, pg->channels[i].name, strlen(pg->channels[i].name));
        good = name && buf_printf(&sql, &err, "LISTEN %s;", name) == 0;
        PQfreemem(name);
    }
    if (good && PQsendQuery(link->conn, buf_str(&sql)) == 1) {
        link->listened = pg->channel_count;
        link_flush(link);
    }
    buf_fini(&sql);
}

static void notifications_read(struct pg_link *link)
{
    struct pg *pg = link->pg;
    bool idle = false;
    while (!idle && !PQisBusy(link->conn)) {
        PGresult *result = PQgetResult(link->conn);
        if (result && PQresultStatus(result) != PGRES_COMMAND_OK) {
            struct err why;
            pg_error_result(result, &why);
            PQclear(result);
            pg_link_lost(link, &why);
            return;
        }
        idle = !result;
        PQclear(result);
    }
    if (idle) { /* from here on no notification is missed, so callers may now read the present state */
        while (link->told < link->listened && !pg->destroyed && link->state == PG_LINK_READY) {
            const uint32_t i = link->told++;
            pg->channels[i].notified(pg->channels[i].arg, pg->channels[i].name, NULL);
        }
        if (!pg->destroyed)
            listen_send(link);
    }
    PGnotify *notify;
    while (!pg->destroyed && link->state == PG_LINK_READY && (notify = PQnotifies(link->conn))) {
        for (uint32_t i = 0; i < pg->channel_count && !pg->destroyed; i++)
            if (strcmp(pg->channels[i].name, notify->relname) == 0)
                pg->channels[i].notified(pg->channels[i].arg, notify->relname, notify->extra);
        PQfreemem(notify);
    }
}

static void link_read(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct pg_link *link = arg;
    struct pg *pg = link->pg;
    pg->depth++;
    if (PQconsumeInput(link->conn) == 0) {
        /* The server's last message ("terminating connection …") is in the connection's error text. */
        struct err why;
        pg_error_conn(link->conn, &why);
        pg_link_lost(link, &why);
    } else if (link->listener) {
        notifications_read(link);
    } else if (!link->group.head && PQstatus(link->conn) != CONNECTION_OK) {
        struct err why;
        pg_error_conn(link->conn, &why);
        pg_link_lost(link, &why);
    } else {
        results_read(link);
        if (!pg->destroyed && link->state == PG_LINK_READY && event_pending(link->writable, EV_WRITE, NULL))
            link_flush(link); /* reading may have made room for writing: libpq requires both */
    }
    pg_handler_leave(pg);
}

static void link_write(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct pg_link *link = arg;
    struct pg *pg = link->pg;
    pg->depth++;
    link_flush(link);
    pg_handler_leave(pg);
}

/* ---- links ---- */

void pg_link_timer(struct pg_link *link, uint32_t ms)
{
    struct timeval wait = {.tv_sec = ms / 1000, .tv_usec = (suseconds_t)(ms % 1000) * 1000};
    event_add(link->timer, &wait);
}

static void link_events_drop(struct pg_link *link)
{
    if (link->readable) {
        event_free(link->readable);
        link->readable = NULL;
    }
    if (link->writable) {
        event_free(link->writable);
        link->writable = NULL;
    }
}

void pg_link_close(struct pg_link *link)
{
    link_events_drop(link);
    PQfinish(link->conn);
    link->conn = NULL;
    link->state = PG_LINK_DOWN;
    link->prepared.count = 0;
    link->listened = 0;
    link->told = 0;
}

/* Closes the connection, answers or keeps the works in flight, and reconnects later. */
void pg_link_lost(struct pg_link *link, const struct err *why)
{
    struct pg *pg = link->pg;
    pg_link_close(link);
    link->backoff_ms = link->backoff_ms == 0 ? pg->config.backoff_ms_min : link->backoff_ms * 2;
    if (link->backoff_ms > pg->config.backoff_ms_max)
        link->backoff_ms = pg->config.backoff_ms_max;
    pg_link_timer(link, link->backoff_ms);
    struct pg_list works = link->group;
    struct pg_list again = {0};
    link->group = (struct pg_list){0};
    struct err err;
    err_set(&err, ERR_NET, "%s; whether the change was made is not known", why->text);
    struct pg_work *work;
    struct pg_list unknown = {0};
    while ((work = pg_list_pop(&works)))
        pg_list_push(work->write || work->abandoned ? &unknown : &again, work);
    group_put_back(link, &again);
    while ((work = pg_list_pop(&unknown)))
        pg_work_finish(pg, work, &err);
    if (!pg->destroyed && pg->config.trouble)
        pg->config.trouble(pg->config.arg, why);
}

static void pg_link_notice_ignore(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result;
}

static void link_ready(struct pg_link *link)
{
    struct pg *pg = link->pg;
    link_events_drop(link);
    link->readable = event_new(pg->base, PQsocket(link->conn), EV_READ | EV_PERSIST, link_read, link);
    link->writable = event_new(pg->base, PQsocket(link->conn), EV_WRITE, link_write, link);
    PQsetNoticeReceiver(link->conn, pg_link_notice_ignore, NULL);
    bool good = link->readable && link->writable && PQsetnonblocking(link->conn, 1) == 0 &&
                event_add(link->readable, NULL) == 0;
    if (!good || (!link->listener && PQenterPipelineMode(link->conn) == 0)) {
        struct err why;
        err_set(&why, ERR_NOMEM, "a PostgreSQL connection could not be set up");
        pg_link_lost(link, &why);
        return;
    }
    event_del(link->timer);
    link->state = PG_LINK_READY;
    link->backoff_ms = 0;
    if (link->listener)
        listen_send(link);
    else
        pg_pump_soon(pg);
}

static void link_connecting(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct pg_link *link = arg;
    struct pg *pg = link->pg;
    pg->depth++;
    PostgresPollingStatusType polled = PQconnectPoll(link->conn);
    if (polled == PGRES_POLLING_OK) {
        link_ready(link);
    } else if (polled == PGRES_POLLING_READING || polled == PGRES_POLLING_WRITING) {
        /* libpq may have changed the socket. */
        link_events_drop(link);
        short wanted = polled == PGRES_POLLING_READING ? EV_READ : EV_WRITE;
        link->readable = event_new(pg->base, PQsocket(link->conn), wanted, link_connecting, link);
        if (link->readable)
            event_add(link->readable, NULL);
    } else {
        struct err why;
        pg_error_conn(link->conn, &why);
        pg_link_lost(link, &why);
    }
    pg_handler_leave(pg);
}

static uint32_t connect_ms(const struct pg *pg)
{
    return pg->config.timeout_ms < CONNECT_MS ? pg->config.timeout_ms : CONNECT_MS;
}

static void link_start(struct pg_link *link)
{
    struct pg *pg = link->pg;
    struct pg_conn_params params;
    pg_conn_params_make(&params, pg->conninfo, pg->application, pg->config.timeout_ms);
    pg_conn_params_turn(&params, pg->conninfo, link->turns);
    link->conn = PQconnectStartParams(params.keywords, params.values, 1);
    if (!link->conn || PQstatus(link->conn) == CONNECTION_BAD) {
        struct err why;
        pg_error_conn(link->conn, &why);
        pg_link_lost(link, &why);
        return;
    }
    link->state = PG_LINK_CONNECTING;
    pg_link_timer(link, connect_ms(pg));
    link->readable = event_new(pg->base, PQsocket(link->conn), EV_WRITE, link_connecting, link);
    if (link->readable)
        event_add(link->readable, NULL);
}

static void link_timer(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    struct pg_link *link = arg;
    struct pg *pg = link->pg;
    pg->depth++;
    if (link->state == PG_LINK_DOWN) {
        link_start(link);
    } else if (link->state == PG_LINK_CONNECTING) {
        struct err why;
        err_set(&why, ERR_TIMEOUT, "PostgreSQL did not accept a connection within %u ms", connect_ms(pg));
        link->turns++; /* libpq goes on to the next host by itself only when one refuses */
        pg_link_lost(link, &why);
    } else if (link->listener) {
        listen_send(link); /* pg_listen has added a channel */
    }
    pg_handler_leave(pg);
}

struct pg_link *pg_link_create(struct pg *pg)
{
    struct pg_link *link = calloc(1, sizeof(*link));
    if (!link || !(link->timer = evtimer_new(pg->base, link_timer, link))) {
        free(link);
        return NULL;
    }
    link->pg = pg;
    pg->links[pg->link_count++] = link;
    pg_link_timer(link, 0);
    return link;
}
