/* A thread that waits for copies of the device, so that neither the executor's thread nor the mesh's do.
 *
 * Jobs are finished one after the other in the order in which they came.
 *
 * Threads: courier_push from any; the functions of a job are called on the courier's own thread, or, when it
 * has been stopped, on that of whoever pushes. */
#ifndef MOTLEY_WORKER_COURIER_H
#define MOTLEY_WORKER_COURIER_H

#include <stdint.h>

#include "common/err.h"
#include "engine/backend.h"

struct courier;

/* Embedded in the caller's own object; it must live until finish was called. */
struct courier_job {
    int (*start)(void *arg, struct err *err); /* queues the copy and records `copied`; NULL: that was done */
    struct event *copied;                     /* waited for */
    void (*finish)(void *arg, const struct err *failure); /* failure: NULL when the copy is done */
    void *arg;
    struct courier_job *next;
};

/* A copy is waited for at most timeout_ns. ERR_NOMEM. */
int courier_create(uint64_t timeout_ns, struct courier **out, struct err *err);
void courier_push(struct courier *courier, struct courier_job *job);
/* The job under way ends; those that have not begun, and all that come later, are finished with
 * ERR_CANCELLED. May be called again. */
void courier_stop(struct courier *courier);
void courier_destroy(struct courier *courier); /* stops it; NULL is a no-op */

#endif
