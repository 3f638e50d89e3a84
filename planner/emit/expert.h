/* Plans with attention and experts on different ranks (or on the same ones), in zebra order. expert.c makes
 * groups, memory and slots, expert_program.c the instruction lists, expert_split.c the assignment of
 * experts.
 *
 * In a candidate of this kind every member's `rows` are the rows of each micro-batch whose attention it
 * computes (0: none). Members with rows come first, and the rows sum to micro_batch_rows. expert_share is
 * the member's share of every layer's experts (0: none; they sum to 1). There is one stage. window: number
 * of micro-batches of a wave, a set that goes through all layers forward and back before the next wave
 * starts. delay: number of micro-batches by which a rank's experts run behind its attention; 0: the rank
 * finishes a layer before it starts the next.
 *
 * For planner/emit and planner/kind/expert.c.
 */
#ifndef MOTLEY_PLANNER_EMIT_EXPERT_H
#define MOTLEY_PLANNER_EMIT_EXPERT_H

#include "planner/emit/expert_split.h"

/* Fills the memory that a member needs for its experts and for the rows whose attention it computes.
 * ERR_NOMEM. */
int expert_member_need(const struct problem *problem, struct expert_model *model,
                       const struct candidate *candidate, const struct expert_split *split, uint32_t member,
                       struct expert_need *need, struct err *err);

/* Makes the plan of a candidate, as `emit` in struct placement_kind (planner/kind/kind.h) says. */
struct plan *expert_emit(const struct problem *problem, const struct candidate *candidate,
                         enum emit_programs programs, struct err *err);

#endif
