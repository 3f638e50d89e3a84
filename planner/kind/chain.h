/* Windows (micro-batches in flight) and step times of placements with several stages. For planner/kind only;
 * pure. */
#ifndef MOTLEY_PLANNER_KIND_CHAIN_H
#define MOTLEY_PLANNER_KIND_CHAIN_H

#include "planner/kind/kind.h"

/* Returns the period of stage s: mean seconds between two micro-batches that its members, working side by
 * side, complete at the given prices. */
double chain_period(const struct candidate *candidate, const struct stage_price *prices, uint32_t s);

/* Writes to bench->windows each stage's window: the micro-batches that it may have in flight, enough to hide
 * the transfers between stages behind computation. With P, the period of the slowest stage, from the last
 * stage to the first: w_s = max(w_{s+1}, max_{j>s} ⌈cycle(s, j) / P⌉ − 1 + w_j), where cycle(s, j) is the
 * time of one micro-batch from stage s to stage j and back, computation and transfers (docs/PLANNER.md,
 * Time). rule->more is added where memory has room. rule->most() is asked for each stage in the same order
 * and returns the largest window that its memory holds; 0: the stage does not fit. Returns true if all stages
 * fit; *capped is set if memory makes a window smaller than the formula asks. Overwrites bench->ends. */
struct chain_windows {
    uint32_t (*most)(void *context, uint32_t s, uint32_t wish, const uint32_t *windows);
    void *context;
    uint32_t *spare; /* [stage_count] scratch memory: how many more micro-batches a stage's memory holds */
    uint32_t more;   /* micro-batches in flight to add to the formula's, where memory has room */
};
bool chain_windows(struct workbench *bench, const struct candidate *candidate,
                   const struct stage_price *prices, const struct chain_windows *rule, bool *capped);

/* Returns the estimated seconds of a step of 1F1B in closed form, plus the waiting that too small windows
 * cause (docs/PLANNER.md, Time). `micro_batches` counts units of candidate->together micro-batches. The
 * result is within about a tenth of the list schedule's (kind/README.md). Writes the time at which each stage
 * ends, in seconds from the step's beginning, to bench->ends; the first stage's is the result. */
double chain_closed(struct workbench *bench, const struct candidate *candidate,
                    const struct stage_price *prices, uint32_t micro_batches);
/* List-schedules a step and writes the time at which each stage ends, in seconds, to
 * bench->ends[stage_count]. A step of many micro-batches a stage is estimated with chain_closed instead;
 * bench->schedule then has only the member that each micro-batch goes to, and its `ranks` is 0 if every stage
 * has one member. Returns 0; 1 as soon as it is certain that some stage ends no sooner than limit_s; −1 with
 * ERR_NOFIT or ERR_NOMEM. */
int chain_run(struct workbench *bench, const struct candidate *candidate, const struct stage_price *prices,
              uint32_t micro_batches, double limit_s);

#endif
