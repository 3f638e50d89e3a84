/* What pg.c, pg_value.c and pg_block.c share. Not for other rooms. struct pg_result is libpq's PGresult by
 * our name. */
#ifndef MOTLEY_COMMON_PG_IMPL_H
#define MOTLEY_COMMON_PG_IMPL_H

#include <libpq-fe.h>
#include <stdbool.h>

#include "common/err.h"
#include "common/pg.h"

enum { PG_PREPARED_MAX = 512 };

/* The statements that one connection has prepared. */
struct pg_prepared {
    const struct pg_statement *statements[PG_PREPARED_MAX];
    int count;
};

bool pg_prepared_has(const struct pg_prepared *prepared, const struct pg_statement *statement);
bool pg_prepared_add(struct pg_prepared *prepared, const struct pg_statement *statement); /* false: full */
void pg_prepared_remove(struct pg_prepared *prepared, const struct pg_statement *statement);

/* Fill err from a failed result, as pg.h's table of codes says. Always -1. */
int pg_error_result(const PGresult *result, struct err *err);
/* … from a connection that failed: ERR_NET (ERR_AUTH when the server refused the user). Always -1. */
int pg_error_conn(const PGconn *conn, struct err *err);
/* The result says that the server is going away. */
bool pg_error_is_shutdown(const PGresult *result);

/* 0, or -1 with what went wrong while the parameters were filled. 'params' may be NULL. */
int pg_params_check(const struct pg_params *params, struct err *err);

/* Keywords and values for PQconnectStartParams / PQconnectdbParams: NULL-ended, at most 8, valid while 'room'
 * is. */
struct pg_conn_params {
    const char *keywords[8];
    const char *values[8];
    char options[64];
    char timeout[16];
};
void pg_conn_params_make(struct pg_conn_params *room, const char *conninfo, const char *application,
                         uint32_t timeout_ms);

#endif
