/* Windows and step times of the kinds with several stages. For planner/kind only; pure. */
#ifndef MOTLEY_PLANNER_KIND_CHAIN_H
#define MOTLEY_PLANNER_KIND_CHAIN_H

#include "planner/kind/kind.h"

/* Seconds between two micro-batches of stage s, all its members together, by the given prices. */
double chain_period(const struct candidate *candidate, const struct stage_price *prices, uint32_t s);

/* Writes to bench->windows the window of each stage (micro-batches in flight) that hides the links. With
 * the period P of the slowest stage, counted from the tail: w_s = max(w_{s+1}, max_{j>s} ⌈cycle(s, j) / P⌉
 * − 1 + w_j), where cycle is the way from s to j and back (docs/PLANNER.md, Time), plus `more` if memory
 * has room. most() limits the windows one after the other from the tail; 0 means that the stage does not
 * fit. Returns true if all stages fit; *capped: some window is smaller than it should be. Changes
 * bench->ends. */
struct chain_windows {
    uint32_t (*most)(void *context, uint32_t s, uint32_t wish, const uint32_t *windows);
    void *context;
    uint32_t *spare; /* [stage_count] scratch */
    uint32_t more;   /* micro-batches in flight beyond the rule, if memory has room */
};
bool chain_windows(struct workbench *bench, const struct candidate *candidate,
                   const struct stage_price *prices, const struct chain_windows *rule, bool *capped);

/* Estimates a step of `micro_batches` (in units of `together`) in closed form: 1F1B's period, and what too
 * short windows add (docs/PLANNER.md, Time). The result is within about a tenth of the schedule's
 * (kind/README.md). Writes the seconds at which each stage ends to bench->ends and returns the first
 * stage's. */
double chain_closed(struct workbench *bench, const struct candidate *candidate,
                    const struct stage_price *prices, uint32_t micro_batches);
/* Runs the schedule of a step. A long step, which is nearly all period, is estimated in closed form
 * instead; then bench->schedule has only the assignment of micro-batches, and ranks is 0 if stages have
 * one member each. Writes the seconds at which each stage ends to bench->ends[stage_count]. Returns 0, −1
 * with ERR_NOFIT or ERR_NOMEM. */
int chain_run(struct workbench *bench, const struct candidate *candidate, const struct stage_price *prices,
              uint32_t micro_batches);

#endif
