/* Devices that stand for each other. Pure. */
#ifndef MOTLEY_PLANNER_COST_ALIKE_H
#define MOTLEY_PLANNER_COST_ALIKE_H

#include "planner/cost/problem.h"

/* Are two usable devices alike in everything that decides what a plan takes, so that they may change places?
 * Memory, price and power, links to all others, costs of micro-batches of every size worth trying; and one
 * machine holds both, or each is the only device of its own, behind equal network cards. */
bool devices_alike(const struct problem *problem, uint32_t a, uint32_t b);

#endif
