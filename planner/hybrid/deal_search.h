/* The last word on who takes which micro-batch of a hybrid whose choice says so: dealt again from every
 * window of every stage, then kicked about. For this room only. */
#ifndef MOTLEY_PLANNER_HYBRID_DEAL_SEARCH_H
#define MOTLEY_PLANNER_HYBRID_DEAL_SEARCH_H

#include "planner/search/polish.h"

/* Keeps the best, until enough kicks in a row found nothing or the polisher's budget is spent; who is in
 * which stage stays. *seconds: the choice's, by polish_seconds, before and after. *err is set on ERR_NOMEM
 * only. */
void deal_search(struct polish *polish, const struct problem *problem, uint64_t seed,
                 struct place_choice *choice, double *seconds, struct err *err);

#endif
