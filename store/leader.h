/* Who leads: a PostgreSQL session advisory lock, and an epoch that rises with
 * every change of leader.
 *
 * A candidate has one connection of its own; the session that holds the lock
 * leads, and when the process dies the server gives the lock up at once. Every
 * write of a scheduler begins with motley_fence(epoch), so a leader that has been
 * replaced (frozen, cut off) can commit nothing more: ERR_STALE. A leader that holds
 * the lock and gives no sign of life is deposed: a standby ends its session.
 */
#ifndef MOTLEY_STORE_LEADER_H
#define MOTLEY_STORE_LEADER_H

#include <stdint.h>
#include "common/err.h"

struct event_base;
struct store_leader;

struct store_leader_events {
    void (*gained)(void *arg, int64_t epoch);          /* this process leads now */
    void (*lost)(void *arg, const struct err *why);    /* and now no more; it stands by again on its own */
    void (*trouble)(void *arg, const struct err *why); /* the database cannot be asked; may be NULL */
};

struct store_leader_config {
    const char *conninfo;
    const char *name;   /* of this scheduler, shown by status; 1..100 bytes */
    unsigned silent_ms; /* a leader that gives no sign of life so long is deposed; 0: 15000 */
    unsigned poll_ms;   /* how often a standby tries; 0: 250 */
};

/* Stands for election until destroyed. Thread: the event base's. */
struct store_leader *store_leader_create(struct event_base *base, const struct store_leader_config *config,
                                         const struct store_leader_events *events, void *arg,
                                         struct err *err);
/* Gives the lock up. NULL is a no-op. Not inside one of its callbacks. */
void store_leader_destroy(struct store_leader *leader);

#endif
