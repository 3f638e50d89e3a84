/* Applies migrations: forward only, each in one transaction, under a lock. A migration that was applied must
 * not be edited afterwards.
 */
#include "store/migrate.sql.h"
#include "store/migrations.h"
#include "store/store.h"
#include "store/users.h"

#include <string.h>

#include "common/buf.h"
#include "common/digest.h"
#include "common/pg.h"

static const char ledger_sql[] = "CREATE TABLE IF NOT EXISTS motley_migrations ("
                                 "number integer PRIMARY KEY, name text NOT NULL, digest text NOT NULL, "
                                 "applied_at timestamptz NOT NULL DEFAULT now())";

unsigned store_schema_version(void)
{
    return store_migrations[store_migration_count - 1].number;
}

/* Checks that the applied migrations are the first ones of this program, byte for byte. *next is the index of
 * the first missing one. */
static int check_applied(const struct pg_result *applied, size_t *next, struct err *err)
{
    int rows = pg_rows(applied);
    for (int i = 0; i < rows; i++) {
        if ((size_t)i >= store_migration_count) {
            return err_set(err, ERR_RELEASE, "the database has migration %s, newer than this program (%s)",
                           pg_text(applied, i, MIGRATE_APPLIED_NAME),
                           store_migrations[store_migration_count - 1].name);
        }
        const struct store_migration *mine = &store_migrations[i];
        char digest[DIGEST_HEX_SIZE];
        if (digest_sha256_hex(mine->sql, mine->size, digest, err) < 0)
            return -1;
        if (pg_i64(applied, i, MIGRATE_APPLIED_NUMBER) != (int64_t)mine->number ||
            strcmp(pg_text(applied, i, MIGRATE_APPLIED_DIGEST), digest) != 0) {
            return err_set(
                err, ERR_CONFLICT,
                "migration %s was applied to this database with other contents than %s of this program",
                pg_text(applied, i, MIGRATE_APPLIED_NAME), mine->name);
        }
    }
    *next = (size_t)rows;
    return 0;
}

/* Runs the migration and records it in motley_migrations, in one transaction. */
static int migrate_apply(struct pg_conn *conn, const struct store_migration *migration, struct err *err)
{
    char digest[DIGEST_HEX_SIZE];
    struct buf script;
    buf_init(&script, migration->size + 4096);
    int rc = -1;
    if (digest_sha256_hex(migration->sql, migration->size, digest, err) < 0 ||
        buf_text(&script, "BEGIN;\n", err) < 0 ||
        buf_append(&script, migration->sql, migration->size, err) < 0 ||
        buf_printf(&script, err,
                   "\nINSERT INTO motley_migrations (number, name, digest) VALUES (%u, '%s', '%s');\nCOMMIT;",
                   migration->number, migration->name, digest) < 0) {
        goto out;
    }
    if (pg_script(conn, buf_str(&script), err) < 0) {
        err_wrap(err, "migration %s", migration->name);
        goto out;
    }
    rc = 0;
out:
    buf_fini(&script);
    return rc;
}

int store_migrate(const char *conninfo, unsigned wait_ms, unsigned *applied, struct err *err)
{
    struct pg_result *ledger = NULL;
    size_t next = 0;
    int rc = -1;

    *applied = 0;
    struct pg_conn *conn = pg_connect_patiently(conninfo, 5000, wait_ms, err);
    if (!conn)
        return -1;
    if (pg_exec(conn, &migrate_lock_sql, NULL, NULL, err) < 0) {
        err_wrap(err, "waiting for another migration of this database");
        goto out;
    }
    if (pg_script(conn, ledger_sql, err) < 0 || pg_exec(conn, &migrate_applied_sql, NULL, &ledger, err) < 0 ||
        check_applied(ledger, &next, err) < 0) {
        goto out;
    }
    for (; next < store_migration_count; next++) {
        if (migrate_apply(conn, &store_migrations[next], err) < 0)
            goto out;
        ++*applied;
    }
    rc = pg_exec(conn, &migrate_unlock_sql, NULL, NULL, err);
out:
    pg_result_free(ledger);
    pg_disconnect(conn);
    return rc;
}

int store_pending(const char *conninfo, unsigned wait_ms, json_t **out, struct err *err)
{
    struct pg_result *ledger = NULL, *size = NULL;
    size_t next = 0;
    struct pg_conn *conn = pg_connect_patiently(conninfo, 5000, wait_ms, err);
    if (!conn)
        return -1;
    json_t *pending = json_array();
    int rc = pg_exec(conn, &migrate_applied_sql, NULL, &ledger, err) < 0 ||
                     pg_exec(conn, &migrate_size_sql, NULL, &size, err) < 0 ||
                     check_applied(ledger, &next, err) < 0
                 ? -1
                 : 0;
    for (size_t i = next; rc == 0 && i < store_migration_count; i++)
        rc = json_array_append_new(pending, json_string(store_migrations[i].name));
    if (rc == 0)
        *out =
            json_pack("{s:i, s:i, s:O, s:I}", "schema", next > 0 ? (int)store_migrations[next - 1].number : 0,
                      "needs", (int)store_schema_version(), "pending", pending, "database_bytes",
                      (json_int_t)pg_i64(size, 0, MIGRATE_SIZE_BYTES));
    if (rc == 0 && !*out)
        rc = err_set(err, ERR_NOMEM, "no memory for a list of migrations");
    json_decref(pending);
    pg_result_free(ledger);
    pg_result_free(size);
    pg_disconnect(conn);
    return rc;
}

int store_bootstrap_token(const char *conninfo, const char *user, const struct store_token_new *token,
                          struct err *err)
{
    struct pg_conn *conn = pg_connect(conninfo, 5000, err);
    if (!conn)
        return -1;
    struct pg_params params;
    sql_bootstrap_token(&params, user, token->hash, token->scopes, token->note, token->expires_us);
    int rc = pg_exec(conn, params.statement, &params, NULL, err);
    pg_params_fini(&params);
    pg_disconnect(conn);
    return rc;
}
