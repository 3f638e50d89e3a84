/* The blocking connection, used by migrations, the leader's lock, tools and tests. */
#include "common/pg.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/pg_private.h"

struct pg_conn {
    PGconn *conn;
    uint32_t timeout_ms;
    struct pg_prepared prepared;
};

static void pg_block_notice_ignore(void *arg, const PGresult *result)
{
    (void)arg;
    (void)result; /* libpq would print notices such as "relation exists, skipping" */
}

struct pg_conn *pg_connect(const char *conninfo, uint32_t timeout_ms, struct err *err)
{
    struct pg_conn *conn = calloc(1, sizeof(*conn));
    if (!conn) {
        err_set(err, ERR_NOMEM, "no memory for a connection");
        return NULL;
    }
    conn->timeout_ms = timeout_ms == 0 ? 10000 : timeout_ms;
    struct pg_conn_params params;
    pg_conn_params_make(&params, conninfo, NULL, conn->timeout_ms);
    conn->conn = PQconnectdbParams(params.keywords, params.values, 1);
    if (PQstatus(conn->conn) != CONNECTION_OK) {
        pg_error_conn(conn->conn, err);
        pg_disconnect(conn);
        return NULL;
    }
    PQsetNoticeReceiver(conn->conn, pg_block_notice_ignore, NULL);
    return conn;
}

struct pg_conn *pg_connect_patiently(const char *conninfo, uint32_t timeout_ms, uint32_t wait_ms,
                                     struct err *err)
{
    const uint64_t deadline = clock_mono_ns() + (uint64_t)wait_ms * 1000000u;
    for (;;) {
        struct pg_conn *conn = pg_connect(conninfo, timeout_ms, err);
        if (conn || clock_mono_ns() >= deadline)
            return conn;
        poll(NULL, 0, 100);
    }
}

char *pg_service_file(const char *conninfo, const char *name, struct err *err)
{
    char *why = NULL;
    struct buf text = {.limit = 65536};
    PQconninfoOption *options = PQconninfoParse(conninfo, &why);
    int status = options
                     ? buf_printf(&text, err, "[%s]\n", name)
                     : err_set(err, ERR_INVALID, "PostgreSQL's connection: %.300s", why ? why : "no memory");
    for (PQconninfoOption *option = options; status == 0 && option && option->keyword; option++)
        if (option->val && strpbrk(option->val, "\r\n"))
            status =
                err_set(err, ERR_INVALID, "PostgreSQL's connection: %s has a line's end", option->keyword);
        else if (option->val)
            status = buf_printf(&text, err, "%s=%s\n", option->keyword, option->val);
    PQconninfoFree(options);
    PQfreemem(why);
    char *made = status == 0 ? strdup(buf_str(&text)) : NULL;
    if (status == 0 && !made)
        err_set(err, ERR_NOMEM, "no memory for a connection");
    explicit_bzero(text.data, text.size);
    buf_fini(&text);
    return made;
}

void pg_disconnect(struct pg_conn *conn)
{
    if (conn) {
        PQfinish(conn->conn);
        free(conn);
    }
}

/* Waits for all results of a statement. Returns the last error result, else the last result; NULL with err.
 */
static PGresult *results_wait(struct pg_conn *conn, struct err *err)
{
    /* The server ends the statement after timeout_ms; its answer gets two more seconds to arrive. */
    uint64_t deadline_ns = clock_mono_ns() + ((uint64_t)conn->timeout_ms + 2000) * 1000000;
    PGresult *kept = NULL;
    for (;;) {
        while (PQisBusy(conn->conn)) {
            struct pollfd entry = {.fd = PQsocket(conn->conn), .events = POLLIN};
            int left = clock_left_ms(deadline_ns, 60000);
            if (left == 0) {
                PQclear(kept);
                shutdown(PQsocket(conn->conn),
                         SHUT_RDWR); /* the connection is unusable, because the answer may still arrive */
                err_set(err, ERR_TIMEOUT, "PostgreSQL did not answer within %u ms", conn->timeout_ms);
                return NULL;
            }
            if ((poll(&entry, 1, left) < 0 && errno != EINTR) || PQconsumeInput(conn->conn) == 0) {
                PQclear(kept);
                pg_error_conn(conn->conn, err);
                return NULL;
            }
        }
        PGresult *result = PQgetResult(conn->conn);
        if (!result)
            break;
        bool kept_failed = kept && PQresultStatus(kept) == PGRES_FATAL_ERROR;
        PQclear(kept_failed ? result : kept);
        kept = kept_failed ? kept : result;
    }
    if (!kept) {
        pg_error_conn(conn->conn, err);
        return NULL;
    }
    ExecStatusType status = PQresultStatus(kept);
    if (status != PGRES_TUPLES_OK && status != PGRES_COMMAND_OK && status != PGRES_EMPTY_QUERY) {
        if (!PQresultErrorField(kept, PG_DIAG_SQLSTATE))
            pg_error_conn(conn->conn, err);
        else
            pg_error_result(kept, err);
        PQclear(kept);
        return NULL;
    }
    return kept;
}

static int statement_prepare(struct pg_conn *conn, const struct pg_statement *statement, struct err *err)
{
    if (pg_prepared_has(&conn->prepared, statement))
        return 0;
    if (PQsendPrepare(conn->conn, statement->name, statement->sql, 0, NULL) == 0)
        return pg_error_conn(conn->conn, err);
    PGresult *result = results_wait(conn, err);
    if (!result)
        return err_wrap(err, "statement %s", statement->name);
    PQclear(result);
    if (!pg_prepared_add(&conn->prepared, statement))
        return err_set(err, ERR_TOO_BIG, "more than %d prepared statements", PG_PREPARED_MAX);
    return 0;
}

int pg_exec(struct pg_conn *conn, const struct pg_statement *statement, const struct pg_params *params,
            struct pg_result **result, struct err *err)
{
    if (pg_params_check(params, err) < 0 || statement_prepare(conn, statement, err) < 0)
        return -1;
    static const struct pg_params none = {0};
    params = !params ? &none : params;
    if (PQsendQueryPrepared(conn->conn, statement->name, params->count, params->values, params->lengths,
                            params->formats, 0) == 0) {
        return pg_error_conn(conn->conn, err);
    }
    PGresult *got = results_wait(conn, err);
    if (!got)
        return err_wrap(err, "%s", statement->name);
    if (result)
        *result = (struct pg_result *)got;
    else
        PQclear(got);
    return 0;
}

int pg_script(struct pg_conn *conn, const char *sql, struct err *err)
{
    if (PQsendQuery(conn->conn, sql) == 0)
        return pg_error_conn(conn->conn, err);
    PGresult *result = results_wait(conn, err);
    PQclear(result);
    return !result ? -1 : 0;
}

int pg_ask(struct pg_conn *conn, const char *sql, int64_t *value, struct err *err)
{
    if (PQsendQuery(conn->conn, sql) == 0)
        return pg_error_conn(conn->conn, err);
    PGresult *result = results_wait(conn, err);
    if (!result)
        return -1;
    int rc = 0;
    if (PQntuples(result) != 1 || PQgetisnull(result, 0, 0))
        rc = err_set(err, ERR_INTERNAL, "PostgreSQL answered nothing to \"%.80s\"", sql);
    else
        *value = pg_i64((const struct pg_result *)result, 0, 0);
    PQclear(result);
    return rc;
}
