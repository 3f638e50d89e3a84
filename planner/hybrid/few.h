/* Hybrids of few devices: every set of them in every ordered grouping, at every size of micro-batches worth
 * trying, is priced by a bound; the best are simulated and their windows, cuts and rows settled. For this
 * room only; pure. */
#ifndef MOTLEY_PLANNER_HYBRID_FEW_H
#define MOTLEY_PLANNER_HYBRID_FEW_H

#include "planner/search/placement.h"

/* Adds what it finds, with simulated seconds as estimates. Adds nothing where there are more usable devices
 * or blocks, and for full fine-tuning. Returns −1 on ERR_NOMEM only. */
int few_propose(const struct problem *problem, struct choice_list *list, struct err *err);

#endif
