/* Placements of which nothing is left out among few devices: contiguous pipelines
 * (planner/pipeline/pipe_exact.h) and replicas (planner/sharded/replica_exact.h). For this room only; pure.
 */
#ifndef MOTLEY_PLANNER_SEARCH_EXACT_H
#define MOTLEY_PLANNER_SEARCH_EXACT_H

#include "planner/search/placement.h"

/* Looks for choices of the placement whose mean of `steps_max` priced steps is below beat_s, within a budget.
 * Returns 1 with the best in *choice (choice_fini) and its simulated seconds; 0 when there is none, or the
 * placement or number of devices is none of these; −1 ERR_NOMEM. */
int exact_look(const struct problem *problem, enum plan_placement kind, double beat_s, uint32_t steps_max,
               struct place_choice *choice, double *seconds, struct err *err);

#endif
