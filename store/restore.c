/* Prepares a database that went back to an earlier state: one that was restored from a backup, or a standby
 * that was promoted and may lack the last commits.
 *
 * The runs, messages and event numbers in it belong to the past, and the agents have gone on since then. None
 * of them can be continued, so all are ended here, in one transaction, and the jobs begin from their last
 * checkpoint. The ids given out since then are unknown, so every sequence moves beyond all ids that could
 * have been given out since the last sign of life of a leader.
 */
#include "store/restore.h"

#include <stdio.h>
#include <string.h>

#include "store/store.h"

enum { ANSWER_MS = 600000 };

/* clang-format off */
/* Takes the leader's lock, since a leader could write in the meantime. */
static const struct pg_statement lock = {"restore_lock", "SELECT pg_try_advisory_xact_lock(5570193040)", PG_WRITE};

const struct pg_statement store_restore_renew = {
    "restore_incarnation",
    "UPDATE cluster SET incarnation = fresh.text, since = now(), restored = true "
    "FROM (SELECT motley_incarnation() AS text) fresh WHERE fresh.text > incarnation RETURNING incarnation",
    PG_WRITE};

/* Advances each sequence by a million, and in addition, for each second since a leader's last sign of life,
 * by the most ids that are given out in one second. The leader's epoch rises too, so that an old leader that
 * still runs somewhere finds itself replaced. */
const struct pg_statement store_restore_sequences = {
    "restore_sequences",
    "WITH quiet AS (SELECT greatest(0, extract(epoch FROM clock_timestamp() - greatest("
    "    (SELECT max(beat) FROM leader_beat), (SELECT max(updated_at) FROM jobs), (SELECT since FROM leader))))::bigint "
    "    AS seconds), "
    "moved AS (SELECT setval(format('%I.%I', s.schemaname, s.sequencename)::regclass, coalesce(s.last_value, 0) + "
    "    1000000 + q.seconds * CASE s.sequencename WHEN 'events_id_seq' THEN 100000 ELSE 10000 END) "
    "  FROM pg_sequences s, quiet q WHERE s.schemaname = current_schema()), "
    "led AS (UPDATE leader SET epoch = epoch + 1000000 + q.seconds, timeline = motley_timeline() FROM quiet q RETURNING 1) "
    "SELECT (SELECT count(*) FROM moved), (SELECT seconds FROM quiet)",
    PG_WRITE};

/* Parameter: $1: why, for people. */
const struct pg_statement store_restore_runs = {
    "restore_runs",
    "WITH r AS (UPDATE runs SET state = 'lost', ended_at = now(), why = $1 "
    "    WHERE state IN ('starting', 'running', 'stopping') RETURNING 1), "
    "a AS (UPDATE assignments SET state = 'lost' WHERE state IN ('sent', 'ready', 'running') RETURNING 1), "
    "j AS (UPDATE jobs SET state = CASE stop_why WHEN 'cancel' THEN 'cancelled' WHEN 'hold' THEN 'held' ELSE 'queued' "
    "      END, ended_at = CASE stop_why WHEN 'cancel' THEN now() END, stop_why = NULL, not_before = NULL, "
    "      updated_at = now(), why = $1 || '; goes on from its last checkpoint' "
    "    WHERE state IN ('starting', 'running', 'stopping') RETURNING id, state, why, attempt), "
    "e AS (INSERT INTO events (job, type, body) SELECT id, 'state', json_build_object('state', state, 'why', why, "
    "      'attempt', attempt) FROM j RETURNING 1) "
    "SELECT (SELECT count(*) FROM j), (SELECT count(*) FROM r), (SELECT count(*) FROM a), (SELECT count(*) FROM e)",
    PG_WRITE};

/* Forgets the messages for agents, the measurements that agents were asked for, and the numbers of agents'
 * last events. A backup from another server may also name transactions that this server has not begun yet
 * (jobs.changed). */
const struct pg_statement store_restore_forget = {
    "restore_forget",
    "WITH o AS (DELETE FROM outbox RETURNING 1), q AS (DELETE FROM requests RETURNING 1), "
    "j AS (UPDATE jobs SET changed = pg_current_xact_id() WHERE changed > pg_current_xact_id()), "
    "m AS (DELETE FROM measures RETURNING 1), n AS (UPDATE nodes SET boot = NULL, last_seq = 0, "
    "  state = CASE state WHEN 'joining' THEN state ELSE 'unreachable' END RETURNING 1) "
    "SELECT (SELECT count(*) FROM o), (SELECT count(*) FROM q), (SELECT count(*) FROM m), (SELECT count(*) FROM n)",
    PG_WRITE};
/* clang-format on */

/* Runs a statement; *result is freed and becomes the statement's result. */
static int step(struct pg_conn *conn, const struct pg_statement *statement, struct pg_result **result,
                struct err *err)
{
    struct pg_params why;
    pg_params_init(&why);
    if (statement == &store_restore_runs)
        pg_param_text(&why, "the database was restored from a backup");
    pg_result_free(*result);
    *result = NULL;
    int rc = pg_exec(conn, statement, &why, result, err);
    pg_params_fini(&why);
    return rc;
}

static int restore(struct pg_conn *conn, struct store_restored *restored, struct pg_result **result,
                   struct err *err)
{
    if (pg_script(conn, "BEGIN", err) < 0 || step(conn, &lock, result, err) < 0)
        return -1;
    if (!pg_bool(*result, 0, 0))
        return err_set(err, ERR_BUSY, "a scheduler leads this database: stop all schedulers first");
    if (step(conn, &store_restore_renew, result, err) < 0)
        return -1;
    if (pg_rows(*result) != 1)
        return err_set(err, ERR_CONFLICT, "the clock of the database's machine is behind the backup's");
    snprintf(restored->incarnation, sizeof(restored->incarnation), "%s", pg_text(*result, 0, 0));
    if (step(conn, &store_restore_sequences, result, err) < 0)
        return -1;
    restored->seconds = pg_i64(*result, 0, 1);
    if (step(conn, &store_restore_runs, result, err) < 0)
        return -1;
    restored->jobs = pg_i64(*result, 0, 0);
    return step(conn, &store_restore_forget, result, err) < 0 ? -1 : pg_script(conn, "COMMIT", err);
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
