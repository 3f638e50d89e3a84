/* Distribution of blocks over stages for the least period. It is exact except that blocks are whole and
 * windows are guessed from the tail. For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_KIND_CUT_H
#define MOTLEY_PLANNER_KIND_CUT_H

#include "planner/kind/kind.h"

/* Sets every stage's blocks for the given members. It bisects over the period; at each period, stages take
 * as many blocks as they can, from the tail, with windows that hide the way behind them. Returns 1, or 0
 * if nothing fits (then the blocks are undefined). */
int cut_blocks(struct workbench *bench, const struct placement_kind *kind, struct candidate *candidate);

/* Groups devices into stages, too. Stages are neighbours in `order` (from the tail to the head), at most
 * `widest` a stage, and devices that do not help are left out. It is dynamic programming over how many
 * blocks are covered from the tail. *candidate, whose micro_batch_rows are set, receives the stages for
 * *period; if *period is 0, the least period is searched and written there. Returns 1; 0 if nothing fits;
 * −1 ERR_NOMEM. */
int cut_groups(struct workbench *bench, const struct placement_kind *kind, struct candidate *candidate,
               const uint32_t *order, uint32_t count, uint32_t widest, double *period);

#endif
