/* Cutting blocks over stages: the least period, exactly but for whole blocks and for windows guessed from the
 * tail. For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_KIND_CUT_H
#define MOTLEY_PLANNER_KIND_CUT_H

#include "planner/kind/kind.h"

/* Sets every stage's blocks, the members standing as they do: bisection over the period; at each, stages take
 * as many blocks as they can from the tail, each with the window that a micro-batch's way behind it asks for.
 * Returns 1, or 0 when nothing fits (the blocks are spoilt). */
int cut_blocks(struct workbench *bench, const struct kind *kind, struct candidate *candidate);

/* Groups devices, too: neighbours in `order` (from the tail to the head), up to `widest` a stage, devices
 * left out where they do not help, by dynamic programming over how far the blocks are covered from the tail.
 * *candidate, whose micro_batch_rows are set, gets the stages for *period; 0: the least there is, which is
 * written there. Returns 1; 0 when nothing fits; −1 ERR_NOMEM. */
int cut_groups(struct workbench *bench, const struct kind *kind, struct candidate *candidate,
               const uint32_t *order, uint32_t count, uint32_t widest, double *period);

#endif
