/* What can be changed about layered choices (sharded data, server), for moves.c. For this room only; pure. */
#ifndef MOTLEY_PLANNER_SHARDED_SHARDED_MOVES_H
#define MOTLEY_PLANNER_SHARDED_SHARDED_MOVES_H

#include "planner/search/moves.h"

/* As move_range and move_apply, of a choice with gathered_layers. MOVE_WINDOW means: a: number of gathered
 * layers (all of a few; two, half, all of many), b: enum share_aim and two more, which look at the links
 * inward or outward alone; of LoRA: back to replicas. MOVE_ADD: a device gets half of member b's rows; from
 * member_count on it keeps state alone (server: it holds, for the holder), MOVE_DROP: b gets a's rows, and
 * what it holds. Shares are chosen anew after every change. */
void sharded_move_range(const struct problem *problem, const struct place_choice *choice, enum move_kind kind,
                        uint32_t *a_count, uint32_t *b_count);
int sharded_move_apply(const struct problem *problem, struct place_choice *choice, enum move_kind kind,
                       uint32_t a, uint32_t b, struct err *err);

/* How many times longer a layered program is than a pipeline's of as many ranks and micro-batches; 1 for
 * other choices. */
uint32_t sharded_program_length(const struct problem *problem, const struct place_choice *choice);

#endif
