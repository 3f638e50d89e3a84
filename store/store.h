/* The database: all SQL statements of Motley are in this room.
 *
 * A `struct store` is a pool of pipelined PostgreSQL connections on one libevent loop. Every call returns at
 * once and answers later through its callback, on the loop's thread, exactly once: also when the connection
 * is lost (ERR_NET), the deadline passes (ERR_TIMEOUT) or the store is closed (ERR_CANCELLED). After ERR_NET
 * or ERR_TIMEOUT it is unknown whether a write was committed: repeat it (the comment of each write says
 * whether it is idempotent).
 *
 * Arguments are borrowed for the call and copied when they are needed later. In a callback, `err` is NULL on
 * success, and results are borrowed for the callback (json_incref a document to keep it). A function that
 * returns int returns -1 and fills `err` when the request cannot be queued (ERR_BUSY: the queue is full;
 * ERR_INVALID: an argument is out of its bounds); its callback is then never called.
 *
 * Errors of all calls: ERR_NOT_FOUND names the missing thing. ERR_CONFLICT means an unexpected state or a key
 * that was used for something else, ERR_STALE an old epoch. ERR_BUSY, ERR_NET and ERR_TIMEOUT are worth a
 * retry.
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
    unsigned queue_max;        /* most statements that wait in the queue; 0 = 8192 */
    unsigned job_batch_max;    /* most jobs that share one commit; 0 = 128, at most 1024 */
    unsigned job_batches_max;  /* most batches of jobs whose commits are under way; 0 = 2 */
    /* Called each time that a connection could not be made or broke; may be NULL. */
    void (*trouble)(void *arg, const struct err *why);
    void *trouble_arg;
};

/* Answers of most calls. `doc` is borrowed for the callback. */
typedef void store_done_fn(void *arg, const struct err *err);
typedef void store_doc_fn(void *arg, const struct err *err, json_t *doc);
typedef void store_id_fn(void *arg, const struct err *err, int64_t id);

/* Creates a store and starts connecting; calls made before a connection stands are queued. Returns 0 and
 * *store (the caller destroys it), or -1. */
int store_create(struct event_base *base, const struct store_config *config, struct store **store,
                 struct err *err);

/* Calls every pending callback with ERR_CANCELLED and closes. Must not be called from one of the store's
 * callbacks. NULL is a no-op. */
void store_destroy(struct store *store);

/* Runs one trivial statement, to see whether the database answers and has the schema that this program was
 * built for; ERR_UNSUPPORTED when the schema is older, ERR_RELEASE when it is newer. For /readyz and for the
 * start of every daemon. */
int store_ping(struct store *store, store_done_fn *done, void *arg, struct err *err);

/* Calls `newer` once, with ERR_RELEASE, when the schema has become newer than this program's: somebody
 * upgrades the cluster, and the program is to end. It is looked at every five seconds, until store_destroy.
 */
typedef void store_newer_fn(void *arg, const struct err *why);
int store_watch_schema(struct store *store, store_newer_fn *newer, void *arg, struct err *err);

/* Whether PostgreSQL itself refused a statement, whose name begins the text, and rolled the transaction back.
 */
bool store_err_is_refusal(const struct err *err);
/* Whether PostgreSQL refused the statement for another reason than its rows: something that it needs is
 * missing or barred, or a lock or time lacked. Other rows would be refused as well. */
bool store_err_is_of_statement(const struct err *err);

/* Calls `notify` for every NOTIFY on `channel`: "motley_jobs" means that the scheduler has work;
 * "motley_events" carries the id of a job that has new events. Also calls it with a NULL payload each time
 * the listening connection was made, since notifications may have been missed. Lasts until store_destroy. */
typedef void store_notify_fn(void *arg, const char *channel, const char *payload);
int store_listen(struct store *store, const char *channel, store_notify_fn *notify, void *arg,
                 struct err *err);

/* ---- blocking: tools and the start of daemons, not on an event loop ---- */

/* Brings the schema of `conninfo` to this program's version. Each missing migration runs in its own
 * transaction, under an advisory lock (concurrent callers wait for each other), after a check that the
 * applied ones are byte-equal to this program's. `wait_ms` is how long to retry a server that does not
 * answer; *applied counts the migrations applied now. Errors: ERR_NET (the server does not answer),
 * ERR_TIMEOUT (the lock), ERR_CONFLICT (an applied migration differs), ERR_RELEASE (the database is newer
 * than the program). There is no way back to an older schema. */
int store_migrate(const char *conninfo, unsigned wait_ms, unsigned *applied, struct err *err);

/* Answers what store_migrate would do, and changes nothing: *out is new, {"schema": the database's version,
 * "needs": this program's, "pending": [names of migrations], "database_bytes"}. The errors are those of
 * store_migrate. */
int store_pending(const char *conninfo, unsigned wait_ms, json_t **out, struct err *err);

enum { STORE_INCARNATION_SIZE = 26 };
struct store_restored {
    char incarnation[STORE_INCARNATION_SIZE]; /* the new incarnation */
    int64_t seconds;                          /* seconds from the backup's last sign of life until now */
    int64_t jobs;                             /* number of jobs that were running and are queued again */
};
/* Prepares a restored backup for use. Run it once after the backup was put back, before any scheduler starts.
 * It sets a new incarnation, moves all sequences beyond every id that could have been given out, ends all
 * runs and drops all messages that the backup contains. ERR_BUSY while a scheduler leads; ERR_CONFLICT when
 * the clock is behind the backup's; ERR_NET; ERR_TIMEOUT. */
int store_restore(const char *conninfo, struct store_restored *restored, struct err *err);

/* Checks that each connection to `conninfo` is a session of its own. Behind a proxy that pools transactions,
 * the leader's lock, LISTEN and prepared statements are lost between transactions: ERR_UNSUPPORTED then, with
 * what was observed. ERR_NET and ERR_TIMEOUT mean that the check itself failed. Connects six times. */
int store_session_check(const char *conninfo, struct err *err);

/* Returns the number of the newest migration in this program. */
unsigned store_schema_version(void);

/* Creates a token for the user, and the user if the name is new, as store_user_put and store_token_put do
 * (users.h). Blocks. For `motley up` and administrators. */
struct store_token_new;
int store_bootstrap_token(const char *conninfo, const char *user, const struct store_token_new *token,
                          struct err *err);

#endif
