/* Searching for the cheapest plan, or the one that takes the least energy, instead of the fastest.
 *
 * With the devices of a plan given, the fastest costs least: each is paid for the whole step. So the search
 * for time is asked about sets of devices, and what differs between them is weighed: all sets of few devices;
 * of many, those with the best speed for the price first, then adding and dropping one at a time while it
 * pays, within a limit of searches. Energy also depends on who does how much, so each set is searched once
 * more with devices slowed down by what their work takes beyond the most frugal one's. For this room only;
 * pure.
 */
#ifndef MOTLEY_PLANNER_SEARCH_OBJECTIVE_H
#define MOTLEY_PLANNER_SEARCH_OBJECTIVE_H

#include "planner/search/search.h"

/* plan_search for workload->objective COST or ENERGY. ERR_INVALID names the first device that may be used and
 * does not say its price or power; else as plan_search. */
int objective_search(const struct workload *workload, const struct cluster *cluster,
                     const struct plan_options *options, struct plan_answer **answer, struct err *err);

#endif
