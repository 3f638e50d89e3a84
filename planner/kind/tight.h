/* Divides blocks over stages by memory alone, for clusters with so little memory that no cut by time fits.
 * For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_KIND_TIGHT_H
#define MOTLEY_PLANNER_KIND_TIGHT_H

#include "planner/kind/kind.h"

/* Divides the blocks over stages of one device each, in the given order. Stages from both ends of the model
 * take as many blocks as their memory holds with one micro-batch in flight, and one stage between takes the
 * rest; the stage that then lacks least memory is chosen. Returns 1 if all fit, with the blocks set; 0 if
 * not, with the missing bytes recorded for the placement. A device without room for any block counts as not
 * fitting. */
int tight_cut(struct workbench *bench, struct candidate *candidate);

#endif
