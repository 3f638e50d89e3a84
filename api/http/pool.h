/* Threads for what blocks, so that the event loop never does: hashing, encoding, planning, files.
 *
 * A task's work() runs on one of the threads and touches only the task's own data; its done() runs afterwards
 * on the event loop's thread and frees it. Tasks start in the order given; the queue is bounded.
 */
#ifndef MOTLEY_API_HTTP_POOL_H
#define MOTLEY_API_HTTP_POOL_H

#include <event2/event.h>
#include <stdbool.h>

#include "common/err.h"

struct pool;

struct pool_task {
    void (*work)(struct pool_task *task); /* pool thread; may take long */
    void (*done)(struct pool_task *task); /* loop thread; owns the task again */
    struct pool_task *next;               /* the pool's own */
    bool ran;                             /* the pool's own: see pool_ran */
};

/* threads 1..64, queue_max > 0. Returns new, or NULL. */
struct pool *pool_create(struct event_base *base, unsigned threads, unsigned queue_max, struct err *err);
/* Waits for running tasks; those not begun, and results not yet handed back, get done() here. Later pool_run
 * calls are refused. */
void pool_stop(struct pool *pool);
/* pool_stop, then frees. NULL is a no-op. */
void pool_destroy(struct pool *pool);
/* In done(): was work() called? If not (the server stops), sets ERR_CANCELLED unless 'err' is set already. */
bool pool_ran(const struct pool_task *task, struct err *err);
/* ERR_BUSY when the queue is full (the task stays the caller's). Loop thread. */
int pool_run(struct pool *pool, struct pool_task *task, struct err *err);
unsigned pool_waiting(struct pool *pool);

#endif
