/* Plans with attention and experts apart (or on the same ranks), in zebra order: expert.c has groups, memory
 * and slots, expert_program.c the instruction lists, expert_split.c who holds which expert.
 *
 * In a candidate of this kind every member's rows are those of each micro-batch whose attention it computes
 * (0: none; they follow each other in member order, those with any first, and sum to micro_batch_rows), and
 * expert_share is its part of every layer's experts (0: none; they sum to 1). One stage; window:
 * micro-batches of a wave, which go through all layers forward and back before the next wave starts; delay:
 * micro-batches that a rank's experts run behind its attention, 0: it finishes a layer before it starts the
 * next.
 *
 * For planner/emit and planner/kind/expert.c. */
#ifndef MOTLEY_PLANNER_EMIT_EXPERT_H
#define MOTLEY_PLANNER_EMIT_EXPERT_H

#include "planner/emit/expert_split.h"

/* What a member needs with its experts and its rows. */
void expert_member_need(const struct problem *problem, const struct expert_model *model,
                        const struct candidate *candidate, const struct expert_split *split, uint32_t member,
                        struct expert_need *need);

/* As struct kind's emit. */
struct plan *expert_emit(const struct problem *problem, const struct candidate *candidate, bool programs,
                         struct err *err);

#endif
