/* An assignment as a document, what a planner of somebody else's answers where it does not write programs
 * itself:
 *
 *     {"version": 1, "placement": "pipeline", "schedule": "1f1b", "micro_batch_rows": 4,
 *      "stages": [{"blocks": [0, 17], "members": [{"device": "left/cpu0", "window": 2, "recompute": false}]},
 * …]}
 *
 * Of a member, device is required. window, most micro-batches in flight: stages from here to the last where
 * it is missing (gpipe: all). rows, micro_rows, micro_count: of its own micro-batches; state_share. Those say
 * the same as the stage alone does, as long as a stage has one member.
 *
 * Now: placements single and pipeline, schedules 1f1b and gpipe. Pure.
 */
#ifndef MOTLEY_PLANNER_PLUG_DOCUMENT_H
#define MOTLEY_PLANNER_PLUG_DOCUMENT_H

#include <jansson.h>

#include "planner/given/cluster.h"
#include "planner/given/workload.h"
#include "program/program.h"

#define ASSIGNMENT_VERSION 1u

/* The plan of an assignment, with its programs and the memory that they need; neither checked, priced nor
 * sealed. *plan becomes new. −1: ERR_INVALID with the path, ERR_UNSUPPORTED for what is understood and not
 * emitted here, ERR_NOFIT with the device that is too small, ERR_NOMEM. */
int plan_from_document(const json_t *document, const struct workload *workload, const struct cluster *cluster,
                       struct plan **plan, struct err *err);

#endif
