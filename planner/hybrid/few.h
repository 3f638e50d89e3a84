/* Hybrids of few devices: of all ordered groupings at all sizes of micro-batches, those that promise most
 * (planner/few/) get windows that fit, are settled and dealt by quick looks, and the best of them simulated.
 * For this room only; pure. */
#ifndef MOTLEY_PLANNER_HYBRID_FEW_H
#define MOTLEY_PLANNER_HYBRID_FEW_H

#include "planner/search/placement.h"

/* Adds what it finds, with simulated seconds as estimates. Adds nothing where there are too many
 * devices or blocks (few_bound.h), and for experts in full fine-tuning. Returns −1 on ERR_NOMEM only. */
int few_propose(const struct problem *problem, struct choice_list *list, struct err *err);

#endif
