/* Cuts for clusters with little memory: how few bytes a chain of stages lacks. For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_KIND_TIGHT_H
#define MOTLEY_PLANNER_KIND_TIGHT_H

#include "planner/kind/kind.h"

/* Cuts the blocks of stages of one device each, in their given order. Stages take as many blocks as memory
 * holds with one micro-batch in flight, from both ends, and the rest goes to the device in between that
 * then lacks least. Returns 1 if all fit, with the blocks set; 0 if one does not, with its shortage
 * recorded as the placement's. A device without room for any block counts as not fitting. */
int tight_cut(struct workbench *bench, struct candidate *candidate);

#endif
