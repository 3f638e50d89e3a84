/* An assignment as a document, what a planner of somebody else's answers where it does not write programs
 * itself: a candidate (planner/candidate) with names for devices. The least of it:
 *
 *     {"version": 1, "placement": "pipeline", "stages": [{"members": [{"device": "left/cpu0"}]},
 *                                                        {"members": [{"device": "right/cpu0"}]}]}
 *
 * Stages without blocks are cut by the kind. Where members say nothing but their devices, and no schedule,
 * eager or together is said, the kind settles all of that, at micro_batch_rows or the best size. Where
 * anything is said, it stands as it is, and what a member leaves out is: rows, those of a micro-batch; count
 * 0; window, stages from here to the last (gpipe: all); delay 0; recompute as the specification asks, or
 * false; state_share 1, expert_share 0, tensor: whole matrices.
 *
 * Pure. */
#ifndef MOTLEY_PLUG_DOCUMENT_H
#define MOTLEY_PLUG_DOCUMENT_H

#include <jansson.h>

#include "planner/candidate/candidate.h"

#define ASSIGNMENT_VERSION 1u
#define ASSIGNMENT_CELLS_MAX (1u << 19) /* candidate_cells: what is emitted and simulated in some seconds */

/* *candidate becomes new (candidate_fini, also on failure), of a shape that its kind has. runnable_only:
 * nothing else is looked at further; otherwise, kinds that workers of this release do not run may have shares
 * and parts that say nothing sensible, and must not be emitted. −1: ERR_INVALID with the path,
 * ERR_UNSUPPORTED for what cannot be said so, or run; ERR_NOFIT, ERR_TOO_BIG, ERR_NOMEM. */
int candidate_from_document(const struct problem *problem, const json_t *document, bool runnable_only,
                            struct candidate *candidate, struct err *err);
/* Can workers of this release carry it out? ERR_UNSUPPORTED. */
int candidate_run_check(const struct problem *problem, const struct candidate *candidate, struct err *err);

#endif
