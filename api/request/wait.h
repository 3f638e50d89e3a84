/* Lets a request be one function that waits: for the store, for a thread of a pool, for a time, for another
 * request.
 *
 * wait_run gives a function a stack of its own, on the loop's thread. Where the function waits, the loop goes
 * on, and what the function waits for lets it go on in its turn. So there is one thread, and nothing changes
 * between two waits. Loop thread.
 *
 * A call of the store is waited for so; *err says why it failed:
 *
 *     struct wait wait = wait_of(app);
 *     if (wait_end(&wait, store_blob_get(app->store, asker, name, wait_doc, &wait, err), err) < 0)
 *         return -1;
 *     json_t *blob = wait.doc;
 */
#ifndef MOTLEY_API_REQUEST_WAIT_H
#define MOTLEY_API_REQUEST_WAIT_H

#include <jansson.h>

#include "api/request/app.h"

#if !JSON_HAVE_ATOMIC_BUILTINS && !JSON_HAVE_SYNC_BUILTINS
#error "requests and the pool's threads share documents: jansson must count references atomically"
#endif

struct waits; /* the stacks, and who waits for a time */

/* Begins without any. */
int waits_create(struct app *app, struct waits **waits, struct err *err);
/* Ends all pauses with ERR_CANCELLED, and refuses further ones. */
void waits_stop(struct waits *waits);
/* NULL is a no-op. Every function that wait_run began must have ended. */
void waits_destroy(struct waits *waits);

/* Calls `body`, and returns at its first wait, or at its end. ERR_NOMEM: it was not called. */
int wait_run(struct app *app, void (*body)(void *arg), void *arg, struct err *err);

/* One thing that is waited for. It lies on the stack of the function that waits. */
struct wait {
    struct app *app;
    struct stack *sleeper; /* who is to go on; NULL: nobody waits yet */
    bool ended;
    struct err err;
    json_t *doc; /* what the store answered (wait_doc), new: the caller's to release */
    TAILQ_ENTRY(wait) link;
};
struct wait wait_of(struct app *app);

/* Callbacks of the store: the wait is over. A callback of another form ends with wait_done. */
void wait_doc(void *arg, const struct err *err, json_t *doc);
void wait_done(void *arg, const struct err *err);

/* `called`: what the call returned to which the wait was given; below 0 it has set *err, and nothing is
 * waited for. Returns 0, or -1 with the error. */
int wait_end(struct wait *wait, int called, struct err *err);

/* Runs `work` on a thread of the pool. Until it has ended, what `arg` reaches is the thread's to change.
 * Returns what it returned; ERR_BUSY when the pool's queue is full, ERR_CANCELLED when the server stops. */
int wait_work(struct app *app, struct pool *pool, int (*work)(void *arg, struct err *err), void *arg,
              struct err *err);

/* Waits for this time. ERR_CANCELLED when the server stops. */
int wait_pause(struct app *app, unsigned ms, struct err *err);

/* Those who wait for one that does the same work; begun by TAILQ_INIT. */
TAILQ_HEAD(wait_list, wait);
/* Waits until wait_wake; returns 0, or -1 with the error that it was given. */
int wait_in(struct app *app, struct wait_list *list, struct err *err);
/* Lets all go on, in their order, each until it waits again. `err` NULL: the work succeeded. */
void wait_wake(struct wait_list *list, const struct err *err);

#endif
