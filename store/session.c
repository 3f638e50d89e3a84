/* Checks whether each connection to the database is a session of its own. */
#include <stdio.h>

#include "store/session.sql.h"

enum { RIVALS = 5, ANSWER_MS = 5000 };

static int session_refuse(int64_t pid, const char *seen, struct err *err)
{
    return err_set(
        err, ERR_UNSUPPORTED,
        "PostgreSQL is reached through a proxy that pools transactions: %s (server process %lld); locks and "
        "notifications need sessions of their own: connect directly, or pool sessions",
        seen, (long long)pid);
}

/* Opens one more connection and holds it in a transaction, so that its server process is taken; then checks
 * that the first connection still has its own session. */
static int rival_check(struct pg_conn *ours, int64_t mine, const char *conninfo, struct pg_conn **rival,
                       struct err *err)
{
    int64_t theirs = 0, now = 0, marked = 0;
    *rival = pg_connect(conninfo, ANSWER_MS, err);
    if (!*rival || pg_script(*rival, "BEGIN", err) < 0 ||
        pg_ask(*rival, session_pid_sql.sql, &theirs, err) < 0)
        return -1;
    if (theirs == mine)
        return session_refuse(mine, "two connections were given one session", err);
    if (pg_ask(ours, session_pid_sql.sql, &now, err) < 0 ||
        pg_ask(ours, session_marked_sql.sql, &marked, err) < 0)
        return -1;
    return now != mine || marked != 1 ? session_refuse(now, "a connection was given another session", err)
                                      : 0;
}

int store_session_check(const char *conninfo, struct err *err)
{
    struct pg_conn *rivals[RIVALS] = {NULL};
    int64_t mine = 0, length = 0;
    int rc = -1;
    struct pg_conn *ours = pg_connect(conninfo, ANSWER_MS, err);
    if (ours && pg_ask(ours, session_mark_sql.sql, &length, err) == 0)
        rc = pg_ask(ours, session_pid_sql.sql, &mine, err);
    for (int i = 0; i < RIVALS && rc == 0; i++)
        rc = rival_check(ours, mine, conninfo, &rivals[i], err);
    for (int i = 0; i < RIVALS; i++)
        pg_disconnect(rivals[i]);
    pg_disconnect(ours);
    return rc;
}
