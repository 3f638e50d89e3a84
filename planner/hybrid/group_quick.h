/* Seconds of a pipeline of groups, nearly: the order that deal.h runs, at the loads of the priced steps,
 * links taken in the order in which things are made, buffers unbounded; a stage's sums keep the links of
 * their ring busy. Several times faster than emitting and simulating, to tell what is not worth that: nothing
 * is answered by it. For this room only; pure. */
#ifndef MOTLEY_PLANNER_HYBRID_GROUP_QUICK_H
#define MOTLEY_PLANNER_HYBRID_GROUP_QUICK_H

#include "planner/search/placement.h"

struct group_quick;

/* For choices of one problem; it remembers what micro-batches cost. New, or NULL with ERR_NOMEM. */
struct group_quick *group_quick_create(const struct problem *problem, uint32_t steps_max, struct err *err);
void group_quick_destroy(struct group_quick *quick);

/* Negative: it cannot say (another placement, too many devices or micro-batches, experts in full
 * fine-tuning). Memory is not looked at. */
double group_quick_seconds(struct group_quick *quick, const struct place_choice *choice);
/* No more than that, of a choice that says who takes which micro-batch, without running it: what a rank has
 * to compute, and the least time before its first and after its last micro-batch. 0: it cannot say. */
double group_quick_least(struct group_quick *quick, const struct place_choice *choice);

#endif
