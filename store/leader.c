/* Leader election.
 *
 * Invariant: `epoch` is non-zero exactly while this process believes that its session, with the server
 * process `pid`, holds the lock. The pool has one connection, which reconnects silently. A new session has
 * another pid and no lock, so a changed pid shows that the lock was lost, even if no statement was being run.
 *
 * A standby that was promoted continues under another timeline. If commits did not wait for it, it may lack
 * the last ones: events that agents consider stored, and ids that would be given out again. Then the database
 * is put into use like a restored backup (restore.c) before anybody leads. A leader's beat tells whether
 * commits waited.
 */
#include "store/leader.h"

#include <event2/event.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/pg.h"
#include "store/call.sql.h"
#include "store/restore.sql.h"
#include "store/leader.sql.h"

enum { ASK_MS = 3000, SETTLE_MS = 10000 };

struct store_leader {
    struct pg *pg;
    struct event *timer;
    struct store_leader_events events;
    void *arg;
    char name[104];
    unsigned poll_ms, silent_ms;
    bool asking;
    bool waited; /* whether commits waited for a standby when PostgreSQL last answered; true at the start */
    int64_t epoch, pid;
};

static void leader_arm(struct store_leader *leader)
{
    const struct timeval pause = {.tv_sec = leader->poll_ms / 1000, .tv_usec = leader->poll_ms % 1000 * 1000};
    event_add(leader->timer, &pause);
}

static void lose(struct store_leader *leader, const struct err *why)
{
    if (leader->epoch != 0) {
        leader->epoch = 0;
        leader->events.lost(leader->arg, why);
    }
}

/* Takes note that an answer came. Returns false if the client is closing. */
static bool answer_came(struct store_leader *leader, const struct err *err)
{
    leader->asking = false;
    if (err->code != ERR_CANCELLED)
        leader_arm(leader);
    return err->code != ERR_CANCELLED;
}

/* The statements of settle(). */
enum { SETTLE_RUNS = 3, SETTLE_CONFIRM = 5, SETTLE_STEPS };

static void settled(void *arg, const struct pg_result *const *results, int count, const struct err *err)
{
    struct store_leader *leader = arg;
    (void)count;
    if (!answer_came(leader, err))
        return;
    if (err->code != ERR_NONE) {
        if (leader->events.trouble)
            leader->events.trouble(leader->arg, err);
        return; /* whoever leads next finds the earlier timeline, and tries again */
    }
    if (leader->events.went_back)
        leader->events.went_back(leader->arg, pg_i64(results[SETTLE_RUNS], 0, RESTORE_RUNS_JOBS));
    if (pg_i64(results[SETTLE_CONFIRM], 0, LEADER_ROW_PID) ==
        leader->pid) { /* else the lock went with the connection */
        leader->epoch = pg_i64(results[SETTLE_CONFIRM], 0, LEADER_ROW_EPOCH);
        leader->events.gained(leader->arg, leader->epoch);
    }
}

/* Puts a promoted standby that may lack the last commits into use. The fence refuses it when somebody else
 * has won the lock meanwhile. */
static void leader_settle(struct store_leader *leader, int64_t epoch)
{
    struct pg_params fence, why;
    struct err err;
    sql_store_fence(&fence, epoch);
    sql_restore_runs(&why, "a standby of the database took over, which may lack the last changes");
    const struct pg_step steps[SETTLE_STEPS] = {store_step(&fence),
                                                {&restore_incarnation_sql, NULL},
                                                {&restore_sequences_sql, NULL},
                                                [SETTLE_RUNS] = store_step(&why),
                                                {&restore_forget_sql, NULL},
                                                [SETTLE_CONFIRM] = {&leader_confirm_sql, NULL}};
    leader->asking =
        pg_query_with(leader->pg, steps, SETTLE_STEPS, SETTLE_MS, true, settled, leader, &err) == 0;
    pg_params_fini(&fence);
    pg_params_fini(&why);
    if (leader->asking)
        event_del(leader->timer);
}

static void leader_answered(void *arg, const struct pg_result *const *results, int count,
                            const struct err *err)
{
    struct store_leader *leader = arg;
    struct err why;
    (void)count;
    if (!answer_came(leader, err))
        return;
    if (err->code != ERR_NONE) {
        lose(leader, err);
        return;
    }
    if (pg_rows(results[0]) > 0)
        leader->waited = pg_bool(results[0], 0, LEADER_ROW_SYNCHRONOUS);
    if (pg_rows(results[0]) == 0 || pg_is_null(results[0], 0, LEADER_ROW_EPOCH))
        return; /* another process leads */
    int64_t epoch = pg_i64(results[0], 0, LEADER_ROW_EPOCH);
    int64_t pid = pg_i64(results[0], 0, LEADER_ROW_PID);
    if (leader->epoch == 0 && pg_bool(results[0], 0, LEADER_STAND_BEHIND)) {
        leader->pid = pid;
        leader_settle(leader, epoch);
    } else if (leader->epoch == 0) {
        leader->epoch = epoch;
        leader->pid = pid;
        leader->events.gained(leader->arg, epoch);
    } else if (epoch != leader->epoch || pid != leader->pid) {
        err_set(&why, ERR_STALE, "the session that held the leader lock has ended");
        lose(leader, &why);
    }
}

static void leader_ask(struct store_leader *leader)
{
    struct pg_params params;
    struct err err;
    bool leading = leader->epoch != 0;
    if (leader->asking)
        return;
    if (leading)
        sql_leader_confirm(&params);
    else
        sql_leader_stand(&params, leader->name, leader->silent_ms, leader->waited);
    const struct pg_step step = store_step(&params);
    leader->asking = pg_query_with(leader->pg, &step, 1, ASK_MS, true, leader_answered, leader, &err) == 0;
    pg_params_fini(&params);
    if (!leader->asking) {
        leader_arm(leader);
        lose(leader, &err);
    }
}

static void leader_tick(evutil_socket_t fd, short what, void *arg)
{
    (void)fd;
    (void)what;
    leader_ask(arg);
}

static void on_trouble(void *arg, const struct err *why)
{
    struct store_leader *leader = arg;
    lose(leader, why);
    if (leader->events.trouble)
        leader->events.trouble(leader->arg, why);
}

struct store_leader *store_leader_create(struct event_base *base, const struct store_leader_config *config,
                                         const struct store_leader_events *events, void *arg, struct err *err)
{
    struct store_leader *leader = calloc(1, sizeof(*leader));
    if (!leader) {
        err_set(err, ERR_NOMEM, "no memory for the leader election");
        return NULL;
    }
    leader->events = *events;
    leader->arg = arg;
    leader->waited = true;
    leader->poll_ms = config->poll_ms > 0 ? config->poll_ms : 250;
    leader->silent_ms = config->silent_ms > 0 ? config->silent_ms : 15000;
    snprintf(leader->name, sizeof(leader->name), "%s", config->name);
    const struct pg_config pg = {
        .conninfo = config->conninfo,
        .connections = 1,
        .timeout_ms = ASK_MS,
        .backoff_ms_max = 500,
        .application_name = "motley-leader",
        .trouble = on_trouble,
        .arg = leader,
    };
    leader->timer = evtimer_new(base, leader_tick, leader);
    leader->pg = leader->timer ? pg_create(base, &pg, err) : NULL;
    if (!leader->pg) {
        store_leader_destroy(leader);
        return NULL;
    }
    leader_ask(leader);
    return leader;
}

void store_leader_destroy(struct store_leader *leader)
{
    if (!leader)
        return;
    leader->epoch = 0; /* no callbacks are called from here on */
    if (leader->pg)
        pg_destroy(leader->pg);
    if (leader->timer)
        event_free(leader->timer);
    free(leader);
}
