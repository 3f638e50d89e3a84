/* What a step would take with a device that the chosen plan leaves out. For this room only; pure. */
#ifndef MOTLEY_PLANNER_SEARCH_LEFT_OUT_H
#define MOTLEY_PLANNER_SEARCH_LEFT_OUT_H

#include "planner/search/placement.h"
#include "planner/search/search.h"

#define LEFT_OUT_TRIED 16u /* devices of a cluster up to which each one left out is tried */

/* The best plan found that uses the device and at least one other: placements propose again, only choices
 * with the device are kept, and it is added to `best` as a stage of its own. any_s[PLACE_COUNT]: seconds of
 * the best of each placement with whatever devices (0: nothing fitted); what takes much longer even so is not
 * asked. *choice (choice_fini; no members: none fits) and its *seconds over at most steps_max priced steps.
 * −1: ERR_NOMEM. */
int left_out_try(const struct problem *problem, const struct place_choice *best, const double *any_s,
                 uint32_t device, uint64_t evaluations, uint32_t steps_max, struct place_choice *choice,
                 double *seconds, struct err *err);

/* Lines of answer->left_out for every device that answer->plan does not use. with_s[device_count]: seconds of
 * the best plan with it, 0: none was found or none was looked for (NULL: nowhere). ERR_NOMEM. */
int left_out_fill(const struct problem *problem, const double *with_s, struct plan_answer *answer,
                  struct err *err);

#endif
