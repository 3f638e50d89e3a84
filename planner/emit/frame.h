/* Fills the fields that plans of every placement have: the plan's frame (all but ranks and programs), a
 * rank's frame, and slots. For planner/emit only. Pure, except that the plan is filled. */
#ifndef MOTLEY_PLANNER_EMIT_FRAME_H
#define MOTLEY_PLANNER_EMIT_FRAME_H

#include "planner/candidate/candidate.h"
#include "planner/cost/memory.h"
#include "planner/cost/problem.h"

/* Fills the bounds and counts of a plan. */
void plan_frame_fill(struct plan *plan, const struct problem *problem, const struct candidate *candidate);
/* For one stage whose members have row counts: replaces the micro-batches that plan_create cut by the
 * members' consecutive micro-batches, whose sizes differ. ERR_INTERNAL if they do not sum to the batch's
 * rows; ERR_NOMEM. */
int plan_rows_fill(struct plan *plan, const struct candidate *candidate, struct err *err);
/* Fills device, node, limits and memory of a rank. ERR_NOFIT if `need` exceeds the limit; ERR_NOMEM. */
int plan_rank_fill(struct plan_rank *rank, const struct problem *problem, const struct member *member,
                   const struct memory_need *need, struct err *err);
/* Appends a slot and returns its number; −1 if out of memory, now or for an earlier slot of the rank. Fields
 * that are zero stand for: rings of 1, bytes_bound equal to bytes_fixed, bytes_total for the whole ring at
 * its bound. */
int32_t plan_rank_slot(struct plan_rank *rank, const struct plan_slot *slot);
/* ERR_NOMEM if memory was lacking for one of the rank's slots. */
int plan_rank_slots_made(const struct plan_rank *rank, struct err *err);
/* Appends a slot of one buffer of `bytes` bytes, which covers all of the rank's blocks and whose size does
 * not depend on rows or tokens: on the host if it lives for a step, else on the device. Returns what
 * plan_rank_slot returns. */
int32_t plan_rank_fixed_slot(struct plan_rank *rank, int kind, int lifetime, int purpose, uint64_t bytes);
/* Makes a group of `count` ranks, from rank `first` on. ERR_NOMEM. */
int plan_group_fill(struct plan_group *group, uint32_t first, uint32_t count, struct err *err);
/* Returns an emitted plan, or NULL after its release if `result` is below 0. */
struct plan *plan_emitted(struct plan *plan, int result);

/* Returns an instruction with defaults, on its kind's queue, for a micro-batch (PLAN_NONE: none) and blocks
 * [begin, end). */
struct instr instr_at(enum instr_op op, int32_t micro_batch, int32_t begin, int32_t end);
/* Adds the sum of a step's loss over all ranks, which waits for this rank's last forward. */
int32_t program_add_loss(struct program_builder *b, int32_t scalars_slot, int32_t last_forward);
/* Adds the optimiser's step of a rank's blocks; `group` shards their state (PLAN_NONE: none). */
void program_add_step(struct program_builder *b, const struct plan_rank *rank, int32_t group,
                      const int32_t *after, size_t count);
/* Ends a sampling program: rank `chooser` chooses the token and sends it to the others. */
void program_add_choice(struct program_builder *b, uint32_t rank, uint32_t chooser, int32_t token_slot,
                        int32_t ready);
/* Makes the program that saves: all ranks save, and then wait for each other. */
void program_add_save(struct program_builder *b, int32_t barrier_slot);

#endif
