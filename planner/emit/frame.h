/* What every emitter shares: the frame of a plan, of a rank, and slots.
 *
 * For planner/emit only; pure but for the plan that is filled.
 */
#ifndef MOTLEY_PLANNER_EMIT_FRAME_H
#define MOTLEY_PLANNER_EMIT_FRAME_H

#include "planner/candidate/candidate.h"
#include "planner/cost/memory.h"
#include "planner/cost/problem.h"

/* Fills what every plan holds beside ranks and programs: bounds, counts. */
void plan_frame_fill(struct plan *plan, const struct problem *problem, const struct candidate *candidate);
/* One stage whose members say how many rows they take: their micro-batches one after the other, of unlike
 * sizes, replace what plan_create cut. ERR_INTERNAL when they are not the batch's rows; ERR_NOMEM. */
int plan_rows_fill(struct plan *plan, const struct candidate *candidate, struct err *err);
/* Device, node, limits and memory of one rank. ERR_NOFIT when need exceeds the limit; ERR_NOMEM. */
int plan_rank_fill(struct plan_rank *rank, const struct problem *problem, const struct member *member,
                   const struct memory_need *need, struct err *err);
/* Appends a slot; returns its number, or −1 out of memory. */
int32_t plan_rank_slot(struct plan_rank *rank, const struct plan_slot *slot);
/* The same for a slot of one place of `bytes` that knows the rank's blocks and nothing of rows. */
int32_t plan_rank_fixed_slot(struct plan_rank *rank, int kind, int lifetime, int place, int purpose,
                             uint64_t bytes);

/* A program's end where a token is chosen: by rank `chooser`, which tells the others. */
void program_add_choice(struct program_builder *b, uint32_t rank, uint32_t chooser, int32_t token_slot,
                        int32_t ready);
/* The program that saves: all do, then all know. */
void program_add_save(struct program_builder *b, int32_t barrier_slot);

#endif
