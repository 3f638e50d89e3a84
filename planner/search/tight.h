/* Pipelines where memory is scarce: the one that takes least of it, when nothing faster was found to fit; and
 * how far from fitting one is. For this room only.
 */
#ifndef MOTLEY_PLANNER_SEARCH_TIGHT_H
#define MOTLEY_PLANNER_SEARCH_TIGHT_H

#include "planner/search/placement.h"

/* Micro-batches are as small and windows as short as they can be, with recomputation where that takes less.
 * If a pipeline fits so and `add`, it goes into the list; if none does, the list's shortfall becomes the
 * least memory more that, on one of the devices, would let it fit (or, where no one device can make up for
 * all, on all together). Not exact: the orders tried are all of up to six devices, of more those of falling
 * and rising memory, and falling with each of the largest and the smallest first or last. ERR_NOMEM. */
int tight_pipeline(const struct problem *problem, bool add, struct choice_list *list, struct err *err);

#endif
