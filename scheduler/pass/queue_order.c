/* The order of the queue: by priority, then by submission. */
#include "scheduler/pass/queue_order.h"

static bool goes_before(const struct queued_job *a, const struct queued_job *b)
{
    if (a->priority != b->priority)
        return a->priority > b->priority;
    return a->id < b->id;
}

/* Insertion sort, since the queue arrives nearly sorted from the database's index. */
void queue_order(const struct queued_job *jobs, size_t count, size_t *order)
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
