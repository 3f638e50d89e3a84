/* What kinds with several stages share: how many micro-batches are under way, and what a step takes. For
 * planner/kind only; pure. */
#ifndef MOTLEY_PLANNER_KIND_CHAIN_H
#define MOTLEY_PLANNER_KIND_CHAIN_H

#include "planner/kind/kind.h"

/* Seconds between two micro-batches of stage s, its members together: of the prices as they are filled in. */
double chain_period(const struct candidate *candidate, const struct stage_price *prices, uint32_t s);
/* Seconds of a micro-batch through stage s, forward and backward, at the mean over those that take it. */
double chain_pass(const struct candidate *candidate, const struct stage_price *prices, uint32_t s);
/* Latency and occupancy (s) of a mean boundary tensor between stages s and s + 1, one way, together. */
double chain_hop(const struct problem *problem, const struct candidate *candidate, uint32_t s);

/* Windows (micro-batches under way) of each stage that hide the links, into bench->windows: with the period P
 * of the slowest stage, from the tail w_s = max(w_{s+1}, max_{j>s} ⌈cycle(s, j) / P⌉ − 1 + w_j), cycle the
 * way from s to j and back (docs/PLANNER.md, Time), and `more` where there is room. most() caps them one
 * after the other, from the tail: 0 says that the stage does not fit. Returns whether all fit; *capped: a
 * window is less than it should be. Changes bench->ends. */
struct chain_windows {
    uint32_t (*most)(void *context, uint32_t s, uint32_t wish, const uint32_t *windows);
    void *context;
    uint32_t *spare; /* [stage_count] scratch */
    uint32_t more;   /* micro-batches under way beyond what the rule asks for, where there is room */
};
bool chain_windows(struct workbench *bench, const struct candidate *candidate,
                   const struct stage_price *prices, const struct chain_windows *rule, bool *capped);

/* A step of `micro_batches` (of units of `together`) in closed form (docs/PLANNER.md, Time): 1F1B's period,
 * and what windows add that are too short. Within a tenth or so of what its schedule takes (kind/README.md).
 * Writes the seconds at which each stage ends to bench->ends and returns the first one's. */
double chain_closed(struct workbench *bench, const struct candidate *candidate,
                    const struct stage_price *prices, uint32_t micro_batches);
/* Runs the schedule of a step, or takes a long one, which is nearly all period, in closed form: then
 * bench->schedule says only who takes which micro-batch, and where nobody shares any, ranks is 0. Writes the
 * seconds of its end to bench->ends[stage_count]. Returns 0, −1 with ERR_NOFIT or ERR_NOMEM. */
int chain_run(struct workbench *bench, const struct candidate *candidate, const struct stage_price *prices,
              uint32_t micro_batches);

#endif
