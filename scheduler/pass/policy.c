/* The order of the queue: by priority, then by submission. */
#include "scheduler/pass/policy.h"

static bool goes_before(const struct policy_job *a, const struct policy_job *b)
{
    if (a->priority != b->priority) {
        return a->priority > b->priority;
    }
    return a->id < b->id;
}

/* Insertion sort, since the queue arrives nearly sorted from the database's index. */
void policy_order(const struct policy_job *jobs, size_t count, size_t *order)
{
    for (size_t i = 0; i < count; i++) {
        size_t at = i;
        while (at > 0 && goes_before(&jobs[i], &jobs[order[at - 1]])) {
            order[at] = order[at - 1];
            at--;
        }
        order[at] = i;
    }
}

size_t policy_usable(const bool *free_devices, const bool *reserved, size_t count, bool *usable)
{
    size_t found = 0;
    for (size_t i = 0; i < count; i++) {
        usable[i] = free_devices[i] && !reserved[i];
        found += usable[i] ? 1 : 0;
    }
    return found;
}

uint32_t policy_backoff_ms(uint32_t losses, uint32_t min_ms, uint32_t max_ms)
{
    uint64_t wait = min_ms;
    for (uint32_t i = 1; i < losses && wait < max_ms; i++) {
        wait *= 2;
    }
    return wait < max_ms ? (uint32_t)wait : max_ms;
}

uint32_t policy_wait_ms(double step_s, uint32_t steps, uint32_t min_ms, uint32_t max_ms)
{
    double wait_ms = step_s * 1e3 * (double)steps;
    if (!(wait_ms > (double)min_ms) || max_ms < min_ms) {
        return min_ms;
    }
    return wait_ms < (double)max_ms ? (uint32_t)wait_ms : max_ms;
}
