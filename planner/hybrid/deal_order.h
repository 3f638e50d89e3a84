/* The last word on the order in which everybody works: what deal.h runs is one of many. For this room only.
 */
#ifndef MOTLEY_PLANNER_HYBRID_DEAL_ORDER_H
#define MOTLEY_PLANNER_HYBRID_DEAL_ORDER_H

#include "planner/search/polish.h"

/* Says the order of a hybrid and changes it, two events of a rank at a time, while that is faster; nothing is
 * said where nothing is. *seconds: the choice's, by polish_seconds, before and after. *err is set on
 * ERR_NOMEM only. */
void deal_order(struct polish *polish, const struct problem *problem, struct place_choice *choice,
                double *seconds, struct err *err);

#endif
