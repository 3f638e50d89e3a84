/* Changing interleaved pipelines: what polish.c tries on them. For this room only; pure. */
#ifndef MOTLEY_PLANNER_PIPELINE_LAP_MOVES_H
#define MOTLEY_PLANNER_PIPELINE_LAP_MOVES_H

#include "planner/search/moves.h"

#define LAP_MOVES_MAX 8u /* ranges a rank that are tried */

/* Makes a pipeline of one stage a device go round so many times. 1, 0 when that is no choice, −1 ERR_NOMEM.
 */
int lap_begin(const struct problem *problem, struct place_choice *choice, uint32_t laps, struct err *err);

/* Cuts the ranges of an interleaved choice with windows set: each rank gets as many blocks as it has time
 * and, by a rule of thumb, memory for, in ranges as alike as can be. False: no room, or too many ranks; then
 * nothing has changed. */
bool lap_share(const struct problem *problem, struct place_choice *choice);

/* As move_range and move_apply, of a choice with SCHEDULE_INTERLEAVED. MOVE_WINDOW: a: rank, or the rank
 * count for all; b: up, down. MOVE_REGROUP: a: ranges a rank. MOVE_DROP: a: rank. MOVE_ADD: a: device, b: its
 * rank. After these three all ranges are cut anew and alike. */
void lap_move_range(const struct problem *problem, const struct place_choice *choice, enum move_kind kind,
                    uint32_t *a_count, uint32_t *b_count);
int lap_move_apply(const struct problem *problem, struct place_choice *choice, enum move_kind kind,
                   uint32_t a, uint32_t b, struct err *err);

#endif
