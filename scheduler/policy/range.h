/* The range of a predicted start, from how earlier predictions turned out.
 *
 * Of each job that has started one prediction is kept: the wait that was predicted, the wait that it was, and
 * the place in the queue. A new prediction is compared with the quarter of these (at least START_LEAST) whose
 * predicted wait and place were most alike, and its range holds seven of eight of their ratios of true to
 * predicted waits, in the shortest interval that does. Pure. */
#ifndef MOTLEY_SCHEDULER_POLICY_RANGE_H
#define MOTLEY_SCHEDULER_POLICY_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { START_SAMPLES = 512, START_LEAST = 40 };

struct start_sample {
    double predicted_s, waited_s;
    uint32_t place; /* from 1 */
};

/* The newest samples; {0} is empty. */
struct start_history {
    struct start_sample samples[START_SAMPLES];
    size_t count; /* samples ever added */
};

void start_history_add(struct start_history *history, const struct start_sample *sample);
/* Writes the range of a start that is predicted after predicted_s seconds, in seconds from now. Returns false
 * when there are fewer than START_LEAST samples. */
bool start_range(const struct start_history *history, double predicted_s, uint32_t place, double *from_s,
                 double *to_s);

#endif
