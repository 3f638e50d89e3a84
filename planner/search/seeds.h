/* Seeds, the candidates that local search begins with: devices in a few orders, in stages of a few sizes,
 * with blocks divided by time or memory. For planner/search only; pure. */
#ifndef MOTLEY_PLANNER_SEARCH_SEEDS_H
#define MOTLEY_PLANNER_SEARCH_SEEDS_H

#include "planner/search/local.h"

/* Estimates the seeds of the placement local->kind and adds those that fit to *list, until all are tried or
 * the budget is spent. Returns 0, −1 on ERR_NOMEM. */
int seeds_add(struct local_state *local, struct candidate_list *list);

#endif
