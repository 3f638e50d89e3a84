/* The order of the queue. Pure functions over arrays: no clock, no database. A further criterion, such as
 * fair share or aging, becomes a field of queued_job and a term here.
 */
#ifndef MOTLEY_SCHEDULER_PASS_QUEUE_ORDER_H
#define MOTLEY_SCHEDULER_PASS_QUEUE_ORDER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct queued_job {
    int64_t id;       /* jobs that were submitted earlier have smaller ids */
    int32_t priority; /* jobs of higher priority go first */
};

/* Writes to order[0..count) the indices of the jobs in the order in which they are to be placed: by priority,
 * then by id. Stable; equal inputs give equal answers. */
void queue_order(const struct queued_job *jobs, size_t count, size_t *order);

#endif
