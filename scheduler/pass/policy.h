/* The order of the queue. Pure functions over arrays: no clock, no database. A further criterion, such as
 * fair share or aging, becomes a field of policy_job and a term here.
 */
#ifndef MOTLEY_SCHEDULER_PASS_POLICY_H
#define MOTLEY_SCHEDULER_PASS_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct policy_job {
    int64_t id;       /* jobs that were submitted earlier have smaller ids */
    int32_t priority; /* jobs of higher priority go first */
};

/* Writes to order[0..count) the indices of the jobs in the order in which they are to be placed: by priority,
 * then by id. Stable; equal inputs give equal answers. */
void policy_order(const struct policy_job *jobs, size_t count, size_t *order);

/* Computes which devices a job may use while jobs before it wait. A waiting job reserves the devices it would
 * run on, so it cannot starve, and the jobs behind it get the devices that it has no use for. Sets usable[i]
 * = free_devices[i] && !reserved[i] for each of `count` devices. Returns how many are usable. */
size_t policy_usable(const bool *free_devices, const bool *reserved, size_t count, bool *usable);

/* Milliseconds to wait before the attempt that follows loss number `losses` (from 1): min * 2^(losses-1), at
 * most max. */
uint32_t policy_backoff_ms(uint32_t losses, uint32_t min_ms, uint32_t max_ms);

/* Milliseconds that a transfer or a step of a run may stand still: `steps` times the plan's predicted step
 * time, between min and max; min when max is less than min. */
uint32_t policy_wait_ms(double step_s, uint32_t steps, uint32_t min_ms, uint32_t max_ms);

#endif
