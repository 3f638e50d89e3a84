/* Who goes first. Pure functions over arrays: no clock, no database. Fair share,
 * aging and backfill are further columns of policy_job and further terms here.
 */
#ifndef MOTLEY_SCHEDULER_POLICY_H
#define MOTLEY_SCHEDULER_POLICY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct policy_job {
    int64_t id;       /* submitted earlier = smaller */
    int32_t priority; /* higher first */
};

/* Writes to order[0..count) the indices of jobs in the order in which they are to be
 * placed: priority, then first come. Stable; equal inputs give equal answers. */
void policy_order(const struct policy_job *jobs, size_t count, size_t *order);

/* What a job may use while jobs before it wait: a waiting job keeps the devices it
 * would run on, so that those behind it fill only what it has no use for (no
 * starvation, and no idle device that nobody in front wants).
 * usable[i] = free[i] && !reserved[i] for each of `count` devices. Returns how many. */
size_t policy_usable(const bool *free_devices, const bool *reserved, size_t count, bool *usable);

/* Milliseconds to wait before the attempt after the losses-th loss (from 1):
 * min * 2^(losses-1), at most max. */
uint32_t policy_backoff_ms(uint32_t losses, uint32_t min_ms, uint32_t max_ms);

/* Milliseconds that a transfer or a step of a run may stand still: `steps` times the plan's predicted step,
 * between min and max (min where the two contradict). */
uint32_t policy_wait_ms(double step_s, uint32_t steps, uint32_t min_ms, uint32_t max_ms);

#endif
