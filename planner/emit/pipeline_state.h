/* Memory and time of sharding weights and optimiser state in pipelines of replica stages. For planner/ only;
 * pure. */
#ifndef MOTLEY_PLANNER_EMIT_PIPELINE_STATE_H
#define MOTLEY_PLANNER_EMIT_PIPELINE_STATE_H

#include "planner/candidate/candidate.h"

/* Returns the bytes of state that the members of a stage shard, over all their ranges of blocks; 0: none. */
double pipeline_state_bytes(const struct problem *problem, const struct candidate *candidate, uint32_t stage);
/* The seconds of a step outside micro-batches, per stage, by cost/price.c's seconds for the plan's
 * instructions. A step ends at max(end of the stage's last event + after_s) + max(update_s); its first
 * event begins at before_s. */
struct pipeline_sync {
    double before_s; /* seconds of gathering weights */
    double after_s;  /* seconds of reducing gradients, and of all-reducing the norm over all ranks */
    double update_s; /* seconds of broadcasting the norm, and of the optimiser step */
};
/* Fills syncs[stage_count] for the members' state_share, or for even shares if they have none. ERR_NOMEM. */
int pipeline_syncs(const struct problem *problem, const struct candidate *candidate,
                   struct pipeline_sync *syncs, struct err *err);

#endif
