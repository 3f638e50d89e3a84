/* Prepares a database that went back to an earlier state: one that was restored from a backup, or a standby
 * that was promoted and may lack the last commits.
 *
 * The runs, messages and event numbers in it belong to the past, and the agents have gone on since then. None
 * of them can be continued, so all are ended here, in one transaction, and the jobs begin from their last
 * checkpoint. The ids given out since then are unknown, so every sequence moves beyond all ids that could
 * have been given out since the last sign of life of a leader.
 */
#include "store/restore.sql.h"

#include <stdio.h>
#include <string.h>

#include "store/store.h"

enum { ANSWER_MS = 600000 };

/* Runs a statement; *result is freed and becomes the statement's result. */
static int restore_step(struct pg_conn *conn, struct pg_params *params, struct pg_result **result,
                        struct err *err)
{
    pg_result_free(*result);
    *result = NULL;
    int rc = pg_exec(conn, params->statement, params, result, err);
    pg_params_fini(params);
    return rc;
}

static int restore(struct pg_conn *conn, struct store_restored *restored, struct pg_result **result,
                   struct err *err)
{
    struct pg_params params;
    sql_restore_lock(&params);
    if (pg_script(conn, "BEGIN", err) < 0 || restore_step(conn, &params, result, err) < 0)
        return -1;
    if (!pg_bool(*result, 0, RESTORE_LOCK_WON))
        return err_set(err, ERR_BUSY, "a scheduler leads this database: stop all schedulers first");
    sql_restore_incarnation(&params);
    if (restore_step(conn, &params, result, err) < 0)
        return -1;
    if (pg_rows(*result) != 1)
        return err_set(err, ERR_CONFLICT, "the clock of the database's machine is behind the backup's");
    snprintf(restored->incarnation, sizeof(restored->incarnation), "%s",
             pg_text(*result, 0, RESTORE_INCARNATION_INCARNATION));
    sql_restore_sequences(&params);
    if (restore_step(conn, &params, result, err) < 0)
        return -1;
    restored->seconds = pg_i64(*result, 0, RESTORE_SEQUENCES_SECONDS);
    sql_restore_runs(&params, "the database was restored from a backup");
    if (restore_step(conn, &params, result, err) < 0)
        return -1;
    restored->jobs = pg_i64(*result, 0, RESTORE_RUNS_JOBS);
    sql_restore_forget(&params);
    return restore_step(conn, &params, result, err) < 0 ? -1 : pg_script(conn, "COMMIT", err);
}

int store_restore(const char *conninfo, struct store_restored *restored, struct err *err)
{
    struct pg_result *result = NULL;
    struct pg_conn *conn = pg_connect(conninfo, ANSWER_MS, err);
    *restored = (struct store_restored){0};
    int rc = conn ? restore(conn, restored, &result, err) : -1;
    pg_result_free(result);
    pg_disconnect(conn); /* rolls back what was not committed */
    return rc;
}
