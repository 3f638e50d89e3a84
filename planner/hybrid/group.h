/* Programs of stages that are groups of replicas: what data (one stage) and hybrid share. For this room only.
 *
 * Every member of a stage holds all its blocks and all its trained state (LoRA: megabytes), takes whole
 * micro-batches, and the stage's gradients are summed over the group once a step. Who takes which, and in
 * what order, is dealt by deal.h.
 */
#ifndef MOTLEY_PLANNER_HYBRID_GROUP_H
#define MOTLEY_PLANNER_HYBRID_GROUP_H

#include "planner/search/placement.h"

/* One stage: cuts the step's rows into the members' micro-batches, one member after the other. Replaces what
 * plan_create cut. ERR_INTERNAL when they are not the batch's rows; ERR_NOMEM. */
int group_starts_fill(struct plan *plan, const struct place_choice *choice, struct err *err);

/* Emits a plan. Stages' windows are those of their first members, counted in micro-batches of the step. With
 * one stage, member i takes micro_count micro-batches of micro_rows rows each, in order; with more,
 * micro-batches of choice->micro_batch_rows rows are dealt in proportion to micro_count. NULL with ERR_NOFIT,
 * ERR_NOMEM. */
struct plan *group_emit(const struct problem *problem, const struct place_choice *choice, bool programs,
                        struct err *err);

#endif
