/* A thread that waits for copies between a device and the host, so that neither the executor's thread nor the
 * mesh's threads block on them.
 *
 * Jobs are finished one at a time, in the order in which they were pushed.
 *
 * Threads: any thread may call courier_push. The functions of a job are called on the courier's own thread
 * or, after courier_stop, on the thread that pushes.
 */
#ifndef MOTLEY_WORKER_PROGRAM_COURIER_H
#define MOTLEY_WORKER_PROGRAM_COURIER_H

#include <stdint.h>

#include "common/err.h"
#include "engine/device/backend.h"

struct courier;

/* A copy to wait for. It is embedded in an object of the caller and must live until `finish` was called. */
struct courier_job {
    /* queues the copy and records `copied`; NULL if the caller did both */
    int (*start)(void *arg, struct err *err);
    struct event *copied; /* event behind the copy, which the courier waits for */
    void (*finish)(void *arg, const struct err *failure); /* failure is NULL when the copy is complete */
    void *arg;
    struct courier_job *next;
};

/* Starts the thread. A copy fails after timeout_ns. ERR_NOMEM. */
int courier_create(uint64_t timeout_ns, struct courier **out, struct err *err);
void courier_push(struct courier *courier, struct courier_job *job);
/* Ends the thread after the job under way. Jobs that have not begun, and all that are pushed later, finish
 * with ERR_CANCELLED. May be called again. */
void courier_stop(struct courier *courier);
void courier_destroy(struct courier *courier); /* stops the thread; NULL is a no-op */

#endif
