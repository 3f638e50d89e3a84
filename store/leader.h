/* Leader election: a PostgreSQL session advisory lock, and an epoch that rises with every change of leader.
 *
 * A candidate has its own connection; the session that holds the lock leads. When the process dies, the
 * server releases the lock at once. Every write of a scheduler begins with motley_fence(epoch), so a leader
 * that was replaced (because it froze or was cut off) can commit nothing more and gets ERR_STALE. A standby
 * ends the session of a leader that holds the lock but gives no sign of life.
 */
#ifndef MOTLEY_STORE_LEADER_H
#define MOTLEY_STORE_LEADER_H

#include <stdint.h>
#include "common/err.h"

struct event_base;
struct store_leader;

struct store_leader_events {
    void (*gained)(void *arg, int64_t epoch); /* this process became the leader */
    /* this process is no longer the leader; it goes on standing for election by itself */
    void (*lost)(void *arg, const struct err *why);
    void (*trouble)(void *arg, const struct err *why); /* the database cannot be reached; may be NULL */
    /* a standby that may lack the last commits took over: so many jobs that ran are in the queue again, and
     * nothing of the time before is continued; may be NULL */
    void (*went_back)(void *arg, int64_t jobs);
};

struct store_leader_config {
    const char *conninfo;
    const char *name;   /* the scheduler's name, shown by status; 1..100 bytes */
    unsigned silent_ms; /* a leader that shows no sign of life for this time is deposed; 0: 15000 */
    unsigned poll_ms;   /* how often a standby tries to become the leader; 0: 250 */
};

/* Stands for election until destroyed. Thread: the event base's. */
struct store_leader *store_leader_create(struct event_base *base, const struct store_leader_config *config,
                                         const struct store_leader_events *events, void *arg,
                                         struct err *err);
/* Ends the candidacy and releases the lock. NULL is a no-op. Must not be called from one of the leader's
 * callbacks. */
void store_leader_destroy(struct store_leader *leader);

#endif
