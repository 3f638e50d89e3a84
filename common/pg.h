/* PostgreSQL through libpq: an asynchronous pool with pipelining and group commit, and a blocking connection.
 * SQL texts are only in store/.
 *
 * Statements are static: {name, sql, kind}. Each connection prepares a statement when it is first used.
 * Parameters are sent as text (bytes as binary), $1… in order, and are copied.
 *
 * Asynchronous use: callers queue *works*, each of one or more statements that succeed or fail together.
 * Works of kind PG_WRITE that wait at the same time share one transaction and one commit (group commit). When
 * one of them fails, the group is rolled back and each work runs again alone, so that a work sees only its
 * own errors; a statement must therefore have no effect outside the transaction. PG_READ works share
 * pipelines, but never a transaction with writes. Works are not ordered; once a callback has been called its
 * work is committed and any later work sees it. While PostgreSQL is unreachable, works wait in a bounded
 * queue until their deadline. A connection that breaks fails the writes already sent with ERR_NET (whether
 * they were done is unknown), sends reads again, keeps the rest, and reconnects with back-off. Callbacks
 * never run inside pg_query. pg_destroy ends waiting works with ERR_CANCELLED. Errors: unique and exclusion
 * violations ERR_CONFLICT; other 23xxx and 22xxx ERR_INVALID; 40001, 40P01 ERR_BUSY; 57014 ERR_TIMEOUT; 53xxx
 * ERR_IO; connection ERR_NET; others ERR_INTERNAL with SQLSTATE and constraint in the text. Thread: the event
 * base's, or the one that uses the blocking connection.
 */
#ifndef MOTLEY_COMMON_PG_H
#define MOTLEY_COMMON_PG_H

#include <event2/event.h>
#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/err.h"

enum { PG_PARAMS_MAX = 32, PG_STEPS_MAX = 36 };

enum pg_kind { PG_READ, PG_WRITE };

struct pg_statement {
    const char *name; /* unique within the program, at most 60 characters */
    const char *sql;
    enum pg_kind kind;
};

/* Parameters of a statement. Fill them with pg_param_*; an error while filling is remembered and reported by
 * the query. pg_params_fini frees them. */
struct pg_params {
    const struct pg_statement
        *statement; /* whose parameters they are, where a typed call filled them; or NULL */
    int count;
    bool failed;
    const char *values[PG_PARAMS_MAX]; /* NULL is SQL null; freed if owned[i] is set, else borrowed */
    int lengths[PG_PARAMS_MAX];
    int formats[PG_PARAMS_MAX];
    bool owned[PG_PARAMS_MAX];
};

void pg_params_init(struct pg_params *params);
void pg_params_fini(struct pg_params *params);
/* Each function sets the statement's next parameter. */
void pg_param_null(struct pg_params *params);
void pg_param_text(struct pg_params *params,
                   const char *text); /* borrowed until the query call; NULL is SQL null */
void pg_param_bytes(struct pg_params *params, const void *data,
                    size_t size); /* bytea; borrowed until the query call */
void pg_param_i64(struct pg_params *params, int64_t value);
void pg_param_f64(struct pg_params *params, double value);
void pg_param_bool(struct pg_params *params, bool value);
void pg_param_json(struct pg_params *params, const json_t *value); /* NULL is SQL null */
void pg_param_i64_array(struct pg_params *params, const int64_t *values, size_t count);
void pg_param_text_array(struct pg_params *params, const char *const *texts,
                         size_t count); /* NULL items are SQL null */

/* A result: rows of texts, borrowed during the callback (or until pg_result_free after pg_exec). Columns are
 * numbered by position. */
struct pg_result;
int pg_rows(const struct pg_result *result);
int64_t pg_affected(const struct pg_result *result);
bool pg_is_null(const struct pg_result *result, int row, int column);
const char *pg_text(const struct pg_result *result, int row, int column); /* "" for null */
size_t pg_length(const struct pg_result *result, int row, int column);
int64_t pg_i64(const struct pg_result *result, int row,
               int column); /* 0 for null or a text that is not a number */
double pg_f64(const struct pg_result *result, int row, int column);
bool pg_bool(const struct pg_result *result, int row, int column);
json_t *pg_json(const struct pg_result *result, int row,
                int column); /* new; NULL for null or a text that is not JSON */
/* Copies a bytea of at most 'size' bytes to dst. Returns the length, or -1 if it is not a bytea or is longer.
 */
int64_t pg_bytes(const struct pg_result *result, int row, int column, void *dst, size_t size);

/* ---- the asynchronous pool ---- */
struct pg;

struct pg_config {
    const char *conninfo;
    uint32_t connections;         /* 0 means 4; half of them, at least one, prefer writes */
    uint32_t queue_max;           /* works waiting or in flight; 0 means 16384 */
    uint32_t group_max;           /* works in one transaction; 0 means 256 */
    uint32_t timeout_ms;          /* limit of a work, also the server's statement_timeout; 0 means 10000 */
    uint32_t backoff_ms_min;      /* 0 means 50 */
    uint32_t backoff_ms_max;      /* 0 means 2000 */
    const char *application_name; /* the program's name in pg_stat_activity, or NULL */
    /* Called when a connection could not be made or broke, at most once per back-off; may be NULL. */
    void (*trouble)(void *arg, const struct err *why);
    void *arg;
};

struct pg *pg_create(struct event_base *base, const struct pg_config *config, struct err *err);
void pg_destroy(struct pg *pg);

/* The result of a work: 'results' has one result for each statement, in order ('count' is 0 on error).
 * err->code is ERR_NONE on success. */
typedef void pg_done_fn(void *arg, const struct pg_result *const *results, int count, const struct err *err);

/* Queues one statement as a work. 'params' may be NULL (none); the caller still frees it. */
int pg_query(struct pg *pg, const struct pg_statement *statement, const struct pg_params *params,
             pg_done_fn *done, void *arg, struct err *err);

/* A statement of a work of several statements, which run in order and atomically. One PG_WRITE among them
 * makes the work a write. */
struct pg_step {
    const struct pg_statement *statement;
    const struct pg_params *params;
};
/* Queues several statements as a work, with a deadline of its own (timeout_ms 0: the configured one) and,
 * with 'alone', a transaction of its own, so that a work that may wait for locks or take long does not delay
 * others. */
int pg_query_with(struct pg *pg, const struct pg_step *steps, int count, uint32_t timeout_ms, bool alone,
                  pg_done_fn *done, void *arg, struct err *err);

/* Subscribes to NOTIFY: 'notified' is called for each notification on 'channel', and with payload NULL after
 * every (re)connection, when some may have been missed. Uses one extra connection. At most 8 channels. */
typedef void pg_notify_fn(void *arg, const char *channel, const char *payload);
int pg_listen(struct pg *pg, const char *channel, pg_notify_fn *notified, void *arg, struct err *err);

/* ---- the blocking connection ---- */
struct pg_conn;

/* Connects. timeout_ms (0 means 10000) limits connecting and each statement. Returns new, or NULL: ERR_NET,
 * ERR_AUTH. */
struct pg_conn *pg_connect(const char *conninfo, uint32_t timeout_ms, struct err *err);
/* As pg_connect; for wait_ms a server that does not answer is tried again. */
struct pg_conn *pg_connect_patiently(const char *conninfo, uint32_t timeout_ms, uint32_t wait_ms,
                                     struct err *err);
/* NULL is a no-op. */
void pg_disconnect(struct pg_conn *conn);

/* The settings of 'conninfo' as the section [name] of libpq's service file, new (free), its secrets among
 * them; NULL on an error. */
char *pg_service_file(const char *conninfo, const char *name, struct err *err);

/* Runs one statement (prepared when first used). *result becomes new; 'result' may be NULL. */
int pg_exec(struct pg_conn *conn, const struct pg_statement *statement, const struct pg_params *params,
            struct pg_result **result, struct err *err);
void pg_result_free(struct pg_result *result);

/* Runs a script of several statements, such as a migration, in one implicit transaction unless it has its
 * own. */
int pg_script(struct pg_conn *conn, const char *sql, struct err *err);

/* Runs a plain statement that returns a number. Nothing is prepared, so it works through any proxy. */
int pg_ask(struct pg_conn *conn, const char *sql, int64_t *value, struct err *err);

#endif
