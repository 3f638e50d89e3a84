/* Plans with attention and experts on different ranks (or on the same ones), in zebra order. expert.c
 * makes groups, memory and slots, expert_program.c the instruction lists, expert_split.c the assignment of
 * experts.
 *
 * In a candidate of this kind every member's `rows` are the rows of each micro-batch whose attention it
 * computes (0: none). Members with rows come first, and the rows sum to micro_batch_rows. expert_share is
 * the member's share of every layer's experts (0: none; they sum to 1). There is one stage. window:
 * micro-batches of a wave, which goes through all layers forward and back before the next wave starts.
 * delay: micro-batches that a rank's experts run behind its attention; 0: it finishes a layer before it
 * starts the next.
 *
 * For planner/emit and planner/kind/expert.c.
 */
#ifndef MOTLEY_PLANNER_EMIT_EXPERT_H
#define MOTLEY_PLANNER_EMIT_EXPERT_H

#include "planner/emit/expert_split.h"

/* Memory that a member needs with its experts and its rows. */
void expert_member_need(const struct problem *problem, const struct expert_model *model,
                        const struct candidate *candidate, const struct expert_split *split, uint32_t member,
                        struct expert_need *need);

/* See emit in struct placement_kind. */
struct plan *expert_emit(const struct problem *problem, const struct candidate *candidate, bool programs,
                         struct err *err);

#endif
