/* Cutting the blocks anew for stages whose devices are given. For this room only; pure. */
#ifndef MOTLEY_PLANNER_SEARCH_RECUT_H
#define MOTLEY_PLANNER_SEARCH_RECUT_H

#include "planner/search/placement.h"

/* Blocks shared out so that the slowest stage is as fast as can be and every member holds its own,
 * recomputing only where it must; windows become one more than the stages that follow. By dynamic programming
 * over exact means, for models of up to RECUT_BLOCKS blocks. Returns 1 when the choice is another now, 0 when
 * nothing fits or it was so before, −1 with ERR_NOMEM. */
#define RECUT_BLOCKS 200
int choice_recut(const struct problem *problem, struct place_choice *choice, struct err *err);

#endif
