/* An assignment: the answer of an external planner that does not write programs. It is a candidate
 * (planner/candidate) with names for devices. The smallest one is
 *
 *     {"version": 1, "placement": "pipeline", "stages": [{"members": [{"device": "left/cpu0"}]},
 *                                                        {"members": [{"device": "right/cpu0"}]}]}
 *
 * If stages have no blocks, the kind cuts them. If members have only their devices, and schedule, eager
 * and together are missing, the kind settles all of that, at micro_batch_rows or at the best size. If any
 * of these is given, it is taken as it is, and the missing fields of a member are: rows, those of a
 * micro-batch; count 0; window, the number of stages from its own to the last (gpipe: all micro-batches);
 * delay 0; recompute as the specification asks, or false; state_share 1, expert_share 0, tensor: whole
 * matrices.
 *
 * Pure.
 */
#ifndef MOTLEY_PLUG_DOCUMENT_H
#define MOTLEY_PLUG_DOCUMENT_H

#include <jansson.h>

#include "planner/candidate/candidate.h"

#define ASSIGNMENT_VERSION 1u
/* The largest candidate_cells (ranks × micro-batches × relative length of programs) of an assignment. A
 * candidate of this size is emitted and simulated in some seconds. */
#define ASSIGNMENT_CELLS_MAX (1u << 19)

/* *candidate becomes new (candidate_fini, also on failure) and has a shape that its kind allows.
 * runnable_only: refuses what workers of this release cannot run. Otherwise candidates of such kinds may
 * have invalid shares and parts, and must not be emitted. −1: ERR_INVALID with the path; ERR_UNSUPPORTED
 * for what this form cannot express, or workers cannot run; ERR_NOFIT, ERR_TOO_BIG, ERR_NOMEM. */
int candidate_from_document(const struct problem *problem, const json_t *document, bool runnable_only,
                            struct candidate *candidate, struct err *err);
/* Checks that workers of this release can run the candidate. ERR_UNSUPPORTED. */
int candidate_run_check(const struct problem *problem, const struct candidate *candidate, struct err *err);

#endif
