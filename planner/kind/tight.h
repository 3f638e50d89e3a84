/* Where memory decides: how few bytes a chain of stages lacks. For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_KIND_TIGHT_H
#define MOTLEY_PLANNER_KIND_TIGHT_H

#include "planner/kind/kind.h"

/* Lets stages of one device each, in the order that they have, take as many blocks as memory holds with one
 * micro-batch under way: from both ends, the rest for the device in between that then lacks least. Returns 1
 * when all fit, the blocks set; 0 when one does not, its shortage noted as the placement's; a device that has
 * no room for any block counts as fitting nothing. */
int tight_cut(struct workbench *bench, struct candidate *candidate);

/* What a member must hold at least for its stage as cut: one micro-batch under way, recomputed if allowed. */
uint64_t tight_need(const struct workbench *bench, const struct candidate *candidate, uint32_t stage);

#endif
