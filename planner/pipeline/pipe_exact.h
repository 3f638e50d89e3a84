/* Contiguous pipelines of few devices, to the end: branch and bound over orders of devices, cuts, windows and
 * recomputation (README.md says what is bounded by what, and why nothing is passed over). For this room only;
 * pure. */
#ifndef MOTLEY_PLANNER_PIPELINE_PIPE_EXACT_H
#define MOTLEY_PLANNER_PIPELINE_PIPE_EXACT_H

#include "planner/search/placement.h"

#define PIPE_EXACT_DEVICES 6u
#define PIPE_EXACT_BLOCKS 34
#define PIPE_EXACT_MICRO 64u /* micro-batches a step up to which a size is looked at */

/* Looks for pipelines (one device a stage, whole backwards) whose mean of `steps_max` priced steps is below
 * beat_s. `budget`: micro-batches through stages that may be followed, there or back. Returns 1 with the best
 * found in *choice (choice_fini) and its simulated seconds; 0 when there is none; −1 ERR_NOMEM. *whole (may
 * be NULL): everything was looked at or is no faster. Nothing is looked at where there are more usable
 * devices or blocks than above. */
int pipe_exact(const struct problem *problem, double beat_s, uint32_t steps_max, uint64_t budget,
               struct place_choice *choice, double *seconds, bool *whole, struct err *err);

#endif
