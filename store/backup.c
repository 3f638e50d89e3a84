#include "store/backup.sql.h"
#include "store/backup.h"

#include <stdio.h>
#include <stdlib.h>

#include "common/pg.h"
#include "store/store.h"

enum { ANSWER_MS = 600000 };

struct store_snapshot {
    struct pg_conn *conn;
    char name[128];
};

struct store_snapshot *store_snapshot_create(const char *conninfo, unsigned wait_ms, struct err *err)
{
    struct pg_result *result = NULL;
    struct store_snapshot *snapshot = calloc(1, sizeof(*snapshot));
    if (!snapshot) {
        err_set(err, ERR_NOMEM, "no memory for a backup");
        return NULL;
    }
    snapshot->conn = pg_connect_patiently(conninfo, ANSWER_MS, wait_ms, err);
    int status = snapshot->conn ? pg_script(snapshot->conn,
                                            "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY; "
                                            "SET LOCAL idle_in_transaction_session_timeout = 0",
                                            err)
                                : -1;
    if (status == 0)
        status = pg_exec(snapshot->conn, &backup_snapshot_sql, NULL, &result, err);
    if (status == 0 && pg_i64(result, 0, BACKUP_SNAPSHOT_SCHEMA) != store_schema_version()) {
        status = err_set(err, ERR_UNSUPPORTED,
                         "the database's schema is version %lld, and this program makes backups of %u alone",
                         (long long)pg_i64(result, 0, BACKUP_SNAPSHOT_SCHEMA), store_schema_version());
    }
    if (status == 0)
        snprintf(snapshot->name, sizeof(snapshot->name), "%s", pg_text(result, 0, BACKUP_SNAPSHOT_NAME));
    pg_result_free(result);
    if (status == 0)
        return snapshot;
    store_snapshot_destroy(snapshot);
    return NULL;
}

void store_snapshot_destroy(struct store_snapshot *snapshot)
{
    if (snapshot)
        pg_disconnect(snapshot->conn);
    free(snapshot);
}

const char *store_snapshot_name(const struct store_snapshot *snapshot)
{
    return snapshot->name;
}

int store_snapshot_files(struct store_snapshot *snapshot, store_file_fn *found, void *arg, struct err *err)
{
    struct pg_result *result = NULL;
    int status = pg_exec(snapshot->conn, &backup_files_sql, NULL, &result, err);
    for (int i = 0; status == 0 && i < pg_rows(result); i++)
        status = found(
            arg, pg_text(result, i, BACKUP_FILES_SHA256), (uint64_t)pg_i64(result, i, BACKUP_FILES_SIZE),
            pg_is_null(result, i, BACKUP_FILES_PATH) ? NULL : pg_text(result, i, BACKUP_FILES_PATH), err);
    pg_result_free(result);
    return status;
}

int store_is_empty(const char *conninfo, unsigned wait_ms, bool *empty, struct err *err)
{
    struct pg_result *result = NULL;
    struct pg_conn *conn = pg_connect_patiently(conninfo, ANSWER_MS, wait_ms, err);
    int status = conn ? pg_exec(conn, &backup_tables_sql, NULL, &result, err) : -1;
    if (status == 0)
        *empty = pg_i64(result, 0, BACKUP_TABLES_COUNT) == 0;
    pg_result_free(result);
    pg_disconnect(conn);
    return status;
}

int store_take_files_in(const char *conninfo, const char *const *left_out, size_t count, struct err *err)
{
    struct pg_params params;
    struct pg_conn *conn = pg_connect(conninfo, ANSWER_MS, err);
    sql_backup_take_in(&params, left_out, count);
    int status = conn ? pg_exec(conn, params.statement, &params, NULL, err) : -1;
    pg_params_fini(&params);
    pg_disconnect(conn);
    return status;
}
