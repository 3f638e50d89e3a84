/* Declarations that pg.c, pg_link.c, pg_work.c, pg_value.c and pg_block.c share; not for other rooms. struct
 * pg_result is another name for libpq's PGresult. */
#ifndef MOTLEY_COMMON_PG_PRIVATE_H
#define MOTLEY_COMMON_PG_PRIVATE_H

#include <event2/event.h>
#include <libpq-fe.h>
#include <stdbool.h>

#include "common/err.h"
#include "common/pg.h"

enum { PG_PREPARED_MAX = 512, PG_LINKS_MAX = 64, PG_CHANNELS_MAX = 8 };

/* The statements that one connection has prepared. */
struct pg_prepared {
    const struct pg_statement *statements[PG_PREPARED_MAX];
    int count;
};

bool pg_prepared_has(const struct pg_prepared *prepared, const struct pg_statement *statement);
bool pg_prepared_add(struct pg_prepared *prepared,
                     const struct pg_statement *statement); /* false when the list is full */
void pg_prepared_remove(struct pg_prepared *prepared, const struct pg_statement *statement);

/* Fills err from a failed result, by pg.h's table of codes. Always returns -1. */
int pg_error_result(const PGresult *result, struct err *err);
/* Fills err from a failed connection: ERR_NET, or ERR_AUTH when the server refused the user. Always returns
 * -1. */
int pg_error_conn(const PGconn *conn, struct err *err);
/* Whether the result says that the server is shutting down. */
bool pg_error_is_shutdown(const PGresult *result);

/* Returns 0, or -1 with the error that occurred while the parameters were filled. 'params' may be NULL. */
int pg_params_check(const struct pg_params *params, struct err *err);

/* Keywords and values for PQconnectStartParams and PQconnectdbParams: NULL-terminated, valid as long as
 * 'room'. */
struct pg_conn_params {
    const char *keywords[16];
    const char *values[16];
    char options[64];
    char timeout[16];
    char turned[3][1024]; /* hosts, addresses and ports (pg_conn_params_turn) */
};
void pg_conn_params_make(struct pg_conn_params *room, const char *conninfo, const char *application,
                         uint32_t timeout_ms);
/* Lets the connection begin with another one of the hosts that 'conninfo' names, 'turns' further. */
void pg_conn_params_turn(struct pg_conn_params *room, const char *conninfo, unsigned turns);

/* ---- the pool (pg.c, pg_link.c) ---- */

struct pg_work_step {
    const struct pg_statement *statement;
    int count;
    const char **values;
    int *lengths;
    int *formats;
};

struct pg_work {
    struct pg_work *next;
    pg_done_fn *done;
    void *arg;
    uint64_t deadline_ns;
    bool write;
    bool alone;     /* runs in a transaction of its own */
    bool abandoned; /* answered at its deadline while it was in flight */
    int retries;
    int step_count;
    PGresult *results[PG_STEPS_MAX];
    struct pg_work_step steps[]; /* copies of the parameters follow in the same memory */
};

struct pg_list {
    struct pg_work *head;
    struct pg_work *tail;
};

enum pg_link_state { PG_LINK_DOWN, PG_LINK_CONNECTING, PG_LINK_READY };

/* Says for what a connection's next result is the answer: one statement (`step`) of a piece of work, or the
 * preparation of that statement. */
struct pg_slot {
    struct pg_work *work;
    int step;
    bool prepare;
};

struct pg_link {
    struct pg *pg;
    PGconn *conn;
    struct event *readable;
    struct event *writable;
    struct event *timer;
    enum pg_link_state state;
    uint32_t backoff_ms;
    unsigned turns; /* attempts to connect that timed out: each next one begins with the next host */
    bool writes;
    bool reads;
    bool listener;
    struct pg_prepared prepared;
    struct pg_list group; /* works that were sent on this connection and are not answered */
    struct pg_slot *slots;
    int slot_count;
    size_t slot_capacity;
    int slot_at;
    bool failed; /* the group failed, because of the work 'culprit' or, if that is NULL, in its commit */
    struct pg_work *culprit;
    struct err error;
    uint32_t listened; /* number of channels for which LISTEN was sent on this connection */
    uint32_t told;     /* number of channels for which LISTEN is complete and the callback was called */
};

struct pg_channel {
    char *name;
    pg_notify_fn *notified;
    void *arg;
};

struct pg {
    struct event_base *base;
    struct event *pump;
    struct event *sweep;
    struct pg_list reads;
    struct pg_list writes;
    uint32_t queued;
    struct pg_link *links[PG_LINKS_MAX + 1]; /* the listener, if there is one, is the last */
    unsigned link_count;
    struct pg_link *listener;
    struct pg_channel channels[PG_CHANNELS_MAX];
    uint32_t channel_count;
    char *conninfo;
    char *application;
    struct pg_config config;
    unsigned depth;
    bool destroyed;
    void (*free)(struct pg *pg); /* called when the pool was destroyed and the outermost handler returns */
};

/* Lists of works; defined in pg_work.c, as are the functions down to pg_handler_leave. */
void pg_list_push(struct pg_list *list, struct pg_work *work);
void pg_list_push_front(struct pg_list *list, struct pg_work *work);
struct pg_work *pg_list_pop(struct pg_list *list); /* NULL when the list is empty */

/* Drops a work's results, before the work is sent again or freed. */
void pg_work_clear(struct pg_work *work);
/* Answers a work (with its results when err is NULL) and frees it. The callback may do anything with the
 * pool. */
void pg_work_finish(struct pg *pg, struct pg_work *work, const struct err *err);

/* Schedules free links to take groups after the running handler. */
void pg_pump_soon(struct pg *pg);
/* Ends a handler that did pg->depth++; frees the pool if it was destroyed meanwhile. */
void pg_handler_leave(struct pg *pg);

/* Makes a link of the pool, which connects soon. NULL when memory is short. */
struct pg_link *pg_link_create(struct pg *pg);
/* Schedules a (re)connection, or LISTEN for new channels, in 'ms' milliseconds. */
void pg_link_timer(struct pg_link *link, uint32_t ms);
/* Closes the connection; works in flight stay with the link. */
void pg_link_close(struct pg_link *link);
/* Closes the connection, answers or requeues the works in flight, and reconnects after the back-off. */
void pg_link_lost(struct pg_link *link, const struct err *why);
/* Sends the next group of 'list' over a free link. */
void pg_group_start(struct pg_link *link, struct pg_list *list);

#endif
