/* The beginnings of the search: devices in a few orders, in groups of a few sizes, with blocks cut by the
 * kind. For planner/search only; pure. */
#ifndef MOTLEY_PLANNER_SEARCH_SEEDS_H
#define MOTLEY_PLANNER_SEARCH_SEEDS_H

#include "planner/search/local.h"

/* Values seeds of local->kind by estimates and adds those that fit to *list, until all are tried or the
 * budget is spent. Returns 0, −1 on ERR_NOMEM. */
int seeds_add(struct local_state *local, struct candidate_list *list);

#endif
