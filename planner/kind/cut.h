/* Distributes the model's blocks over pipeline stages so that the period (the seconds between two
 * micro-batches that the slowest stage completes) is as short as possible. The result is exact but for two
 * things: blocks are whole, and windows (micro-batches in flight) are derived from the later stages' times.
 * For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_KIND_CUT_H
#define MOTLEY_PLANNER_KIND_CUT_H

#include "planner/kind/kind.h"

/* Chooses every stage's blocks, for the devices that the candidate's stages have. It bisects the period. For
 * each period, stages from the last to the first take as many blocks as they compute within it, with enough
 * micro-batches in flight to hide transfers and later stages' work behind computation. Returns 1, or 0 if
 * nothing fits in memory (then the stages' blocks are undefined). */
int cut_blocks(struct workbench *bench, const struct placement_kind *kind, struct candidate *candidate);

/* Does what cut_blocks does, and also decides which devices form a stage: at most `widest` neighbours in
 * `order`, which begins with devices for the last stage. Devices that do not help are left out. The method is
 * dynamic programming over the number of blocks, counted from the model's end, that the first devices of
 * `order` compute within the period. *candidate, whose micro_batch_rows are set, receives the stages. *period
 * is the period to reach in seconds; if it is 0, the shortest possible one is searched and written there.
 * Returns 1; 0 if nothing fits; −1 ERR_NOMEM. */
int cut_groups(struct workbench *bench, const struct placement_kind *kind, struct candidate *candidate,
               const uint32_t *order, uint32_t count, uint32_t widest, double *period);

#endif
