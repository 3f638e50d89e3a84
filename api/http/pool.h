/* Threads for blocking work (hashing, encoding, planning, files), so that the event loop never blocks.
 *
 * A task's work() runs on one of the threads and uses only the task's own data; its done() runs afterwards on
 * the event loop's thread and frees the task. Tasks start in the order given; the queue is bounded.
 */
#ifndef MOTLEY_API_HTTP_POOL_H
#define MOTLEY_API_HTTP_POOL_H

#include <event2/event.h>
#include <stdbool.h>

#include "common/err.h"

struct pool;

struct pool_task {
    void (*work)(struct pool_task *task); /* on a pool thread; may take long */
    void (*done)(struct pool_task *task); /* on the loop thread; owns the task again */
    struct pool_task *next;               /* used by the pool */
    bool ran;                             /* used by the pool; see pool_ran */
};

/* Makes a pool of `threads` threads (1 to 64), in whose queue at most queue_max tasks wait (above 0). Returns
 * NULL with an error. */
struct pool *pool_create(struct event_base *base, unsigned threads, unsigned queue_max, struct err *err);
/* Waits for the running tasks, then calls done() of all tasks that were not begun or whose done() was not
 * called yet. Later calls of pool_run are refused. */
void pool_stop(struct pool *pool);
/* Calls pool_stop, then frees. NULL is a no-op. */
void pool_destroy(struct pool *pool);
/* To be called in done(): returns whether work() was called. If not (the server stops), sets ERR_CANCELLED
 * unless 'err' is already set. */
bool pool_ran(const struct pool_task *task, struct err *err);
/* Queues a task. ERR_BUSY when the queue is full; the caller then still owns the task. Loop thread. */
int pool_run(struct pool *pool, struct pool_task *task, struct err *err);
unsigned pool_waiting(struct pool *pool);

#endif
