/* One arrangement of devices into groups, as place_hybrid.c and its search for many devices build it. For
 * this room only. */
#ifndef MOTLEY_PLANNER_HYBRID_HYBRID_H
#define MOTLEY_PLANNER_HYBRID_HYBRID_H

#include "planner/cost/micro.h"
#include "planner/search/placement.h"

#define HYBRID_STAGES_MAX 256u
#define HYBRID_DEVICES_MAX 4096u

struct hybrid {
    const struct problem *p;
    struct choice_list *list;
    uint32_t rows, micro_batches, device_count, stages;
    uint32_t device[HYBRID_DEVICES_MAX];
    struct micro_cost cost[HYBRID_DEVICES_MAX];
    uint32_t first[HYBRID_STAGES_MAX + 1]; /* device[first[s]] … are stage s */
    int32_t end[HYBRID_STAGES_MAX], capacity[HYBRID_STAGES_MAX];
    uint32_t window[HYBRID_STAGES_MAX];
    bool recompute[HYBRID_STAGES_MAX];
};

/* Takes groups and blocks as they stand: chooses recomputation and windows, evens out neighbours, and adds
 * the choice if it fits and competes. Returns −1 on ERR_NOMEM only. */
int hybrid_finish(struct hybrid *hybrid, struct err *err);

/* Groups of one to eight neighbours in the order of device[], sizes and blocks by dynamic programming over
 * the period; devices that do not help are skipped. Changes device[] and device_count. */
int hybrid_dynamic(struct hybrid *hybrid, struct err *err);

#endif
