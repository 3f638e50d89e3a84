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

/* clang-format off */
static const struct pg_statement export_snapshot = {
    "backup_snapshot", "SELECT pg_export_snapshot(), (SELECT coalesce(max(number), 0) FROM motley_migrations)", PG_READ};
static const struct pg_statement list_files = {
    "backup_files", "SELECT sha256, size, path FROM blobs ORDER BY sha256", PG_READ};
static const struct pg_statement count_tables = {
    "backup_tables",
    "SELECT count(*) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace WHERE c.relkind IN ('r', 'p', 'v', 'S') "
    "AND n.nspname NOT LIKE 'pg\\_%' AND n.nspname <> 'information_schema'", PG_READ};
/* The files of models are json, of which no key's place is meant to last. */
static const struct pg_statement take_in = {
    "backup_take_in",
    "WITH b AS (UPDATE blobs SET path = NULL WHERE path IS NOT NULL AND sha256 <> ALL ($1) RETURNING 1) "
    "UPDATE models SET files = (SELECT json_agg(CASE WHEN f ->> 'sha256' = ANY ($1) THEN f ELSE f - 'path' END ORDER BY n) "
    "FROM jsonb_array_elements(files::jsonb) WITH ORDINALITY AS e (f, n)) "
    "WHERE EXISTS (SELECT 1 FROM jsonb_array_elements(files::jsonb) f WHERE f ? 'path')", PG_WRITE};
/* clang-format on */

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
        status = pg_exec(snapshot->conn, &export_snapshot, NULL, &result, err);
    if (status == 0 && pg_i64(result, 0, 1) != store_schema_version()) {
        status = err_set(err, ERR_UNSUPPORTED,
                         "the database's schema is version %lld, and this program makes backups of %u alone",
                         (long long)pg_i64(result, 0, 1), store_schema_version());
    }
    if (status == 0)
        snprintf(snapshot->name, sizeof(snapshot->name), "%s", pg_text(result, 0, 0));
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
    int status = pg_exec(snapshot->conn, &list_files, NULL, &result, err);
    for (int i = 0; status == 0 && i < pg_rows(result); i++)
        status = found(arg, pg_text(result, i, 0), (uint64_t)pg_i64(result, i, 1),
                       pg_is_null(result, i, 2) ? NULL : pg_text(result, i, 2), err);
    pg_result_free(result);
    return status;
}

int store_is_empty(const char *conninfo, unsigned wait_ms, bool *empty, struct err *err)
{
    struct pg_result *result = NULL;
    struct pg_conn *conn = pg_connect_patiently(conninfo, ANSWER_MS, wait_ms, err);
    int status = conn ? pg_exec(conn, &count_tables, NULL, &result, err) : -1;
    if (status == 0)
        *empty = pg_i64(result, 0, 0) == 0;
    pg_result_free(result);
    pg_disconnect(conn);
    return status;
}

int store_take_files_in(const char *conninfo, const char *const *left_out, size_t count, struct err *err)
{
    struct pg_params params;
    struct pg_conn *conn = pg_connect(conninfo, ANSWER_MS, err);
    pg_params_init(&params);
    pg_param_text_array(&params, left_out, count);
    int status = conn ? pg_exec(conn, &take_in, &params, NULL, err) : -1;
    pg_params_fini(&params);
    pg_disconnect(conn);
    return status;
}
