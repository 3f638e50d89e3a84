/* Interleaved pipelines of few devices, to the end: branch and bound as in pipe_exact.h, over devices'
 * orders, how often they go round, ranges, windows and recomputation (README.md says what is bounded by
 * what). For this room only; pure. */
#ifndef MOTLEY_PLANNER_PIPELINE_LAP_EXACT_H
#define MOTLEY_PLANNER_PIPELINE_LAP_EXACT_H

#include "planner/search/placement.h"

/* Looks for interleaved pipelines whose mean of `steps_max` priced steps is below beat_s. `budget`:
 * micro-batches through ranges that may be followed, there or back. Returns 1 with the best found in *choice
 * (choice_fini) and its simulated seconds; 0 when there is none; −1 ERR_NOMEM. *whole (may be NULL):
 * everything was looked at or is no faster. Nothing is looked at where there are more usable devices, blocks
 * or micro-batches than pipe_exact.h names, or where only what workers run is wanted. */
int lap_exact(const struct problem *problem, double beat_s, uint32_t steps_max, uint64_t budget,
              struct place_choice *choice, double *seconds, bool *whole, struct err *err);

#endif
