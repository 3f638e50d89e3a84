/* What keeping and exchanging state takes in chains of replica stages. For planner/ only; pure. */
#ifndef MOTLEY_PLANNER_EMIT_PIPELINE_STATE_H
#define MOTLEY_PLANNER_EMIT_PIPELINE_STATE_H

#include "planner/candidate/candidate.h"

/* Bytes of state (full fine-tuning) that a stage's members keep together. */
double pipeline_state_bytes(const struct problem *problem, const struct stage *stage);
/* What a step takes beside micro-batches, by stage, at the seconds that cost/price.c gives the plan's
 * instructions. A step is over at max(end of the stage's last event + after_s) + max(update_s); its first
 * event begins at before_s. */
struct pipeline_sync {
    double before_s; /* gathering weights */
    double after_s;  /* reducing gradients, and the norm over all ranks */
    double update_s; /* telling the members the norm, and the optimiser's step */
};
/* Fills syncs[stage_count], by the members' state_share, or even shares where they have none. ERR_NOMEM. */
int pipeline_syncs(const struct problem *problem, const struct candidate *candidate,
                   struct pipeline_sync *syncs, struct err *err);

#endif
