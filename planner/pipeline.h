/* Pipelines over many devices: what place_pipeline.c shares with its search. For this room only. */
#ifndef MOTLEY_PLANNER_PIPELINE_H
#define MOTLEY_PLANNER_PIPELINE_H

#include "planner/placement.h"

#define PIPELINE_EXHAUSTIVE 6u /* devices up to which every order is tried */
#define PIPELINE_STAGES_MAX 256u

/* Splits the blocks over the devices in that order at that micro-batch size and adds the best (with
 * `enumerate`, up to three stages: all) that fit to the list. */
int pipeline_try(const struct problem *problem, const uint32_t *devices, uint32_t count,
                 uint32_t micro_batch_rows, bool enumerate, struct choice_list *list, struct err *err);

/* More devices than that. */
int pipeline_propose_many(const struct problem *problem, struct choice_list *list, struct err *err);

#endif
