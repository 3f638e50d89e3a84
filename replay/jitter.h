/* The spread of step times if instructions do not always take the same time.
 *
 * Each instruction's seconds are multiplied by a log-normal factor of mean 1 drawn from (seed,
 * instruction); run i has seed + i. A plan that waits for the slowest of many ranks takes longer than mean
 * times say; how much longer depends on its windows. Pure: the same seed gives the same numbers.
 */
#ifndef MOTLEY_REPLAY_JITTER_H
#define MOTLEY_REPLAY_JITTER_H

#include "planner/answer/answer.h"

#define JITTER_RUNS_MAX 10000u

struct plan_spread {
    double still_s;                         /* seconds of a step without jitter */
    double mean_s, low_s, median_s, high_s; /* of all runs' steps; nine of ten lie between low_s and high_s */
    uint32_t runs;
};

/* The plan needs programs. sigma: relative deviation of an instruction's seconds, 0..2. ERR_INVALID,
 * ERR_NOMEM. */
int plan_jitter(const struct plan *plan, const struct workload *workload, const struct cluster *cluster,
                double sigma, uint64_t seed, uint32_t runs, struct plan_spread *spread, struct err *err);

#endif
