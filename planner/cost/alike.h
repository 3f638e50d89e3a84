/* Finds interchangeable devices. Pure. */
#ifndef MOTLEY_PLANNER_COST_ALIKE_H
#define MOTLEY_PLANNER_COST_ALIKE_H

#include "planner/cost/problem.h"

/* True if two usable devices are equal in everything that decides a plan, so that exchanging them gives an
 * equally good plan: memory, price and power, links to all others, and costs of micro-batches of every size
 * that the search tries. Besides, one machine must have both, or each must be the only device of its own
 * machine, behind equal network cards. */
bool devices_alike(const struct problem *problem, uint32_t a, uint32_t b);

#endif
