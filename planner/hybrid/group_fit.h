/* Groups of replicas where memory is tight: which stages recompute, and how wide windows can be. For this
 * room only; pure. */
#ifndef MOTLEY_PLANNER_HYBRID_GROUP_FIT_H
#define MOTLEY_PLANNER_HYBRID_GROUP_FIT_H

#include "planner/search/polish.h"

#define WINDOW_WAYS 6u /* all micro-batches; fewer: as many times what follows */

/* Windows of one way, 1 … WINDOW_WAYS. */
void group_windows(const struct problem *problem, struct place_choice *choice, uint32_t way);

/* Makes a hybrid fit, if it does not: of every set of stages that recompute and every way of windows, what
 * quick looks say is fastest. *quick: its quick look. Returns whether anything fits (else *choice is spoilt).
 * *err is set on ERR_NOMEM only. */
bool group_fit(struct polish *polish, const struct problem *problem, struct place_choice *choice,
               double *quick, struct err *err);

#endif
