/* What can be changed about a choice of attention and experts apart: moves.h for this placement. For this
 * room only. */
#ifndef MOTLEY_PLANNER_EXPERT_EXPERT_MOVES_H
#define MOTLEY_PLANNER_EXPERT_EXPERT_MOVES_H

#include "planner/search/moves.h"

/* MOVE_CUT: member a gives experts to b (modulo members): one of every layer, one of one layer, half of them,
 * all but one of one layer. MOVE_ROWS: a row of each micro-batch. MOVE_ORDER: a and b change places, device
 * and all. MOVE_WINDOW: waves longer or shorter (b). MOVE_DELAY: experts further behind attention, or less
 * (b). MOVE_RECOMPUTE, MOVE_SWAP, MOVE_REPLACE as they are. MOVE_DROP: member a leaves what it has to b.
 * MOVE_ADD: device a comes and takes experts, as MOVE_CUT, or a row, of a member. MOVE_MICRO: micro-batches
 * of a rows. */
void expert_move_range(const struct problem *problem, const struct place_choice *choice, enum move_kind kind,
                       uint32_t *a_count, uint32_t *b_count);
/* As move_apply. */
int expert_move_apply(const struct problem *problem, struct place_choice *choice, enum move_kind kind,
                      uint32_t a, uint32_t b, struct err *err);
/* How much longer the programs of a choice are than a pipeline's, in instructions a rank and micro-batch; 1
 * for other placements. */
uint32_t expert_program_length(const struct problem *problem, const struct place_choice *choice);

#endif
