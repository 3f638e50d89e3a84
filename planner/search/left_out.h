/* What a step would take with a device that the chosen plan leaves out. For this room only; pure. */
#ifndef MOTLEY_PLANNER_SEARCH_LEFT_OUT_H
#define MOTLEY_PLANNER_SEARCH_LEFT_OUT_H

#include "planner/search/placement.h"
#include "planner/search/search.h"

#define LEFT_OUT_TRIED                                                                                       \
    (SWIFT_DEVICES - 1)       /* devices of a cluster up to which each one left out is tried,                \
                               */
#define LEFT_OUT_PROPOSED 16u /* and up to which placements are asked for it and all is polished */

struct left_out_found { /* without asking for any device */
    const struct place_choice *best;
    double best_s;
    const struct place_choice *const *of; /* [PLACE_COUNT]: the best of each placement, or NULL; */
    const double *of_s;                   /* [PLACE_COUNT]: its seconds (0: nothing fitted) */
    const struct choice_list *lists;      /* [PLACE_COUNT]: all that was looked at closely */
};

/* The best plan found that uses the device and at least one other: it is put into what was found (join.h),
 * and placements propose again, only choices with the device being kept; what took much longer with whatever
 * devices is not asked. *choice (choice_fini; no members: none fits) and its *seconds over at most steps_max
 * priced steps. −1: ERR_NOMEM. */
int left_out_try(const struct problem *problem, const struct left_out_found *found, uint32_t device,
                 uint64_t evaluations, uint32_t steps_max, struct place_choice *choice, double *seconds,
                 struct err *err);

/* Lines of answer->left_out for every device that answer->plan does not use. with_s[device_count]: seconds of
 * the best plan with it, 0: none was found or none was looked for (NULL: nowhere). ERR_NOMEM. */
int left_out_fill(const struct problem *problem, const double *with_s, struct plan_answer *answer,
                  struct err *err);

#endif
