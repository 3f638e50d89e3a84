/* A device that a choice leaves out, put into it. For this room only; pure. */
#ifndef MOTLEY_PLANNER_SEARCH_JOIN_H
#define MOTLEY_PLANNER_SEARCH_JOIN_H

#include "planner/search/polish.h"

/* The device joins each stage of `from`, with one micro-batch or with as many as its speed is worth, or is a
 * stage of its own at each place, with half of a neighbour's blocks or with one; what looks best so is
 * settled and simulated. `polish` says which device (polish_must_use) and how long. Returns 1 with the best
 * in *choice (choice_fini) and its simulated seconds; 0: none fits; −1 ERR_NOMEM. */
int choice_join(const struct problem *problem, struct polish *polish, const struct place_choice *from,
                uint32_t device, struct place_choice *choice, double *seconds, struct err *err);

#endif
