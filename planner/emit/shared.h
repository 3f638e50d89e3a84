/* Which boundary tensors go straight from one device's memory into the other's: those that only neighbours on
 * the same node send, from a device of the same kind (docs/PROGRAM.md, Links within a node).
 *
 * For planner/answer; pure but for the plan that is filled.
 */
#ifndef MOTLEY_PLANNER_EMIT_SHARED_H
#define MOTLEY_PLANNER_EMIT_SHARED_H

#include "planner/cost/problem.h"

/* Of an emitted plan with its programs. Such a slot has place for all of its ring, in pieces that the devices
 * can share; where a rank's limit has no room for that, the slot stays as it is. ERR_NOMEM. */
int plan_share_slots(struct plan *plan, const struct cluster *cluster, struct err *err);

#endif
