/* Boundary tensors that are copied directly between the memories of two devices: those sent only between
 * neighbours on one node whose devices are of one kind (docs/PROGRAM.md, Links within a node). For
 * planner/answer. Pure, except that the plan is changed. */
#ifndef MOTLEY_PLANNER_EMIT_SHARED_H
#define MOTLEY_PLANNER_EMIT_SHARED_H

#include "planner/cost/problem.h"

/* Marks as SLOT_SHARED the boundary slots of an emitted plan, with programs, that devices of one node can
 * share. A marked slot's bytes cover its whole ring, in pieces that the devices can share; if a rank's limit
 * has no room for that, the slot is not marked. ERR_NOMEM. */
int plan_share_slots(struct plan *plan, const struct cluster *cluster, struct err *err);

#endif
