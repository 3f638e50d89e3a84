/* Recorded runs, played again: from their own instruction times, and changed.
 *
 * Pure: documents in, documents out; the caller reads files.
 */
#ifndef MOTLEY_REPLAY_REPLAY_H
#define MOTLEY_REPLAY_REPLAY_H

#include <jansson.h>
#include <stdbool.h>

#include "common/err.h"
#include "planner/answer/plan.h"

/* What `motley replay JOB` may change of a run without planning again. */
struct replay_change {
    double *device_speed; /* per rank, 1: as recorded; NULL: none changed */
    uint32_t link_count;
    struct {
        const char *from, *to; /* nodes, either way round */
        double bytes_per_s, latency_s;
    } links[16];
};

struct replay_answer {
    uint32_t steps; /* recorded steps that were complete */
    double
        recorded_s; /* a step, median over them: as the run measured it, where `metrics` say, else traced */
    double simulated_s; /* put together from its own times (replay_walk.h) */
    double changed_s;   /* with the change; without one: simulated_s */
    double gaps_s;      /* mean a step: what the ranks' compute queues could have run and had not begun yet */
    double outside_s;   /* median: of recorded_s outside the program (the batch is filled) */
    double *compute_s;  /* [ranks], mean a step: on the compute queue; may be NULL, else the caller's */
};

/* A recorded run from its own instruction times: plan and the trace of at least one step. metrics: an array
 * of step lines ({"step","seconds","tokens","rows"}) or NULL. links: link documents (CONTRACTS.md) as they
 * were, or NULL; they say what a changed link changes from. `change` NULL: none. `timeline` gets the last
 * step's, changed if there is a change; initialised by the caller, may be NULL.
 * ERR_INVALID: no complete step; a link between nodes that exchange nothing; a document that is nonsense. */
int replay_run(const struct plan *plan, const struct trace *recorded, const json_t *metrics,
               const json_t *links, const struct replay_change *change, struct replay_answer *answer,
               struct trace *timeline, struct err *err);

/* Makes the tables of an inputs document (planner/given/inputs.h) price this plan's computing as the run
 * recorded it: each device's `speed` is set to table seconds / compute_s[rank]. *priced_s becomes what the
 * recorded plan takes at these costs, 0 when the document lacks one of its devices. */
int replay_calibrate(struct plan *plan, const double *compute_s, json_t *inputs, double *priced_s,
                     struct err *err);

#endif
