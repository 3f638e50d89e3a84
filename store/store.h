/* The database: every SQL statement of Motley is in this room.
 *
 * A `struct store` is a pool of pipelined PostgreSQL connections on one
 * libevent loop. Every call returns at once and answers later through its
 * callback, on the loop's thread, exactly once, also when the connection is
 * lost (ERR_NET), the deadline passes (ERR_TIMEOUT) or the store is closed
 * (ERR_CANCELLED). After ERR_NET and ERR_TIMEOUT of a write it is unknown
 * whether it was committed: repeat it (writes are idempotent where they say so).
 *
 * Arguments are borrowed for the call (copied where they are needed later).
 * In a callback, `err` is NULL on success; results are borrowed for the
 * callback (json_incref a document to keep it).
 * A function that returns int gives -1 and fills `err` when the request cannot
 * even be queued (queue full: ERR_BUSY; an argument out of its bounds:
 * ERR_INVALID); its callback is then never called.
 *
 * Errors everywhere: ERR_NOT_FOUND names the thing; ERR_CONFLICT an unexpected
 * state, a key used twice or a stale epoch (ERR_STALE); ERR_BUSY/ERR_NET/
 * ERR_TIMEOUT are worth a retry.
 *
 * Threads: one store belongs to the thread of its event base.
 */
#ifndef MOTLEY_STORE_STORE_H
#define MOTLEY_STORE_STORE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <jansson.h>
#include "common/err.h"

struct event_base;
struct store;

struct store_config {
    const char *conninfo;      /* libpq connection string */
    unsigned connections;      /* pool size; 0 = 4 */
    unsigned statement_ms_max; /* deadline of one statement; 0 = 10000 */
    unsigned queue_max;        /* statements queued at most; 0 = 8192 */
    unsigned job_batch_max;    /* jobs that share one commit at most; 0 = 128, at most 1024 */
    unsigned job_batches_max;  /* job batches in flight at most; 0 = 2 */
    /* Called when a connection could not be made or broke (as often as it is tried); may be NULL. */
    void (*trouble)(void *arg, const struct err *why);
    void *trouble_arg;
};

/* Generic answers. `doc` is borrowed for the call. */
typedef void store_done_fn(void *arg, const struct err *err);
typedef void store_doc_fn(void *arg, const struct err *err, json_t *doc);
typedef void store_id_fn(void *arg, const struct err *err, int64_t id);

/* Starts connecting; calls that come before the connection stands are queued.
 * Returns 0 and *store (caller destroys), or -1. */
int store_create(struct event_base *base, const struct store_config *config, struct store **store,
                 struct err *err);

/* Calls every pending callback with ERR_CANCELLED, closes. Not inside one of
 * its callbacks. NULL is a no-op. */
void store_destroy(struct store *store);

/* One trivial statement: is the database there and is its schema the one this
 * program was built for? ERR_UNSUPPORTED where it is older or newer. For
 * /readyz and for the start of every daemon. */
int store_ping(struct store *store, store_done_fn *done, void *arg, struct err *err);

/* Calls `notify` for every NOTIFY on `channel` ("motley_jobs": there is work for
 * the scheduler; "motley_events": payload is the job id that has new events), and
 * once with payload NULL each time the listening connection was (re)made, since
 * something may have been missed. Lasts until store_destroy. */
typedef void store_notify_fn(void *arg, const char *channel, const char *payload);
int store_listen(struct store *store, const char *channel, store_notify_fn *notify, void *arg,
                 struct err *err);

/* ---- blocking: tools and the start of daemons, not on an event loop ---- */

/* Brings the schema of `conninfo` to this program's version: each missing
 * migration in its own transaction, under an advisory lock (concurrent callers
 * wait for each other), after checking that those applied before are
 * byte-equal to ours. `wait_ms`: how long to retry a server that does not
 * answer. *applied: how many were applied now. Errors: ERR_NET (server does not
 * answer), ERR_TIMEOUT (lock), ERR_CONFLICT (an applied one differs),
 * ERR_UNSUPPORTED (database newer than the program). Forward only. */
int store_migrate(const char *conninfo, unsigned wait_ms, unsigned *applied, struct err *err);

enum { STORE_INCARNATION_SIZE = 26 };
struct store_restored {
    char incarnation[STORE_INCARNATION_SIZE]; /* the new one */
    int64_t seconds;                          /* from the backup's last sign of life until now */
    int64_t jobs;                             /* that were on devices and are in the queue again */
};
/* Once after a backup was put back, before any scheduler starts: a new incarnation, sequences beyond all that
 * could have been given out, no run or message left of those that the backup knew. ERR_BUSY while a scheduler
 * leads, ERR_CONFLICT when the clock is behind the backup's, ERR_NET, ERR_TIMEOUT. */
int store_restore(const char *conninfo, struct store_restored *restored, struct err *err);

/* Whether connections to `conninfo` are sessions of their own. Behind a proxy that lends the server's
 * sessions out transaction by transaction, the leader's lock, LISTEN and prepared statements come and go:
 * ERR_UNSUPPORTED then, with what was seen. ERR_NET, ERR_TIMEOUT: nothing can be said. Connects six times. */
int store_session_check(const char *conninfo, struct err *err);

/* The number of the newest migration in this program. */
unsigned store_schema_version(void);

/* Creates the user if need be and a token of theirs, blocking (for `motley up`
 * and administrators). As store_user_put + store_token_put in users.h. */
struct store_token_new;
int store_bootstrap_token(const char *conninfo, const char *user, const struct store_token_new *token,
                          struct err *err);

#endif
