/* The range of a predicted start, from how earlier predictions turned out.
 *
 * Of each job that has started, one prediction is kept: the predicted wait, the true wait, and the place in
 * the queue. A new prediction is compared with the quarter of these samples (at least START_LEAST) whose
 * predicted wait and place are closest to its own. The range is the shortest interval that holds eight of
 * nine of these samples' ratios of true to predicted waits, so that it holds seven of eight true starts.
 * Pure.
 */
#ifndef MOTLEY_SCHEDULER_POLICY_RANGE_H
#define MOTLEY_SCHEDULER_POLICY_RANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { START_SAMPLES = 512, START_LEAST = 40 };

struct start_sample {
    double predicted_s, waited_s;
    uint32_t place; /* place in the queue, from 1 */
};

/* The newest samples, in a ring. {0} is an empty history. */
struct start_history {
    struct start_sample samples[START_SAMPLES];
    size_t count; /* number of samples ever added */
};

void start_history_add(struct start_history *history, const struct start_sample *sample);
/* Writes the range of a start that is predicted after predicted_s seconds, in seconds from now. Returns false
 * when there are fewer than START_LEAST samples. */
bool start_range(const struct start_history *history, double predicted_s, uint32_t place, double *from_s,
                 double *to_s);

#endif
