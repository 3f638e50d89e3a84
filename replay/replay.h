/* Re-execution of recorded runs with their own instruction times, unchanged or with changes. Pure:
 * documents in, documents out; the caller reads files. */
#ifndef MOTLEY_REPLAY_REPLAY_H
#define MOTLEY_REPLAY_REPLAY_H

#include <jansson.h>
#include <stdbool.h>

#include "common/err.h"
#include "planner/answer/plan.h"

/* Changes of a run that `motley replay JOB` can make without planning again. */
struct replay_change {
    double *device_speed; /* per rank, factor on the recorded speed; NULL: no change */
    uint32_t link_count;
    struct {
        const char *from, *to; /* nodes, in either order */
        double bytes_per_s, latency_s;
    } links[16];
};

struct replay_answer {
    uint32_t steps;     /* complete recorded steps */
    double recorded_s;  /* median seconds of a step: from `metrics` if given, else from the trace */
    double simulated_s; /* seconds of a step recomputed from the recorded instruction times (replay_walk.h) */
    double changed_s;   /* seconds of a step with the change; without a change equal to simulated_s */
    double gaps_s; /* mean seconds per step for which the next instruction of a compute queue was ready and
                      had not begun */
    double
        outside_s; /* median seconds of recorded_s before and after the program, such as filling the batch */
    /* [ranks], mean seconds per step on the compute queue; memory of the caller, or NULL */
    double *compute_s;
};

/* Replays a recorded run: a plan and the trace of at least one step. metrics: an array of step lines
 * ({"step","seconds","tokens","rows"}) or NULL. links: the link documents (CONTRACTS.md) of the run, or
 * NULL; a changed link is compared with them. `change` NULL: none. `timeline` receives the last step's
 * events, with the change if there is one; the caller initialises it, or passes NULL. ERR_INVALID: no
 * complete step, a link between nodes that exchange nothing, or an invalid document. */
int replay_run(const struct plan *plan, const struct trace *recorded, const json_t *metrics,
               const json_t *links, const struct replay_change *change, struct replay_answer *answer,
               struct trace *timeline, struct err *err);

/* Changes an inputs document (planner/given/inputs.h) so that its tables price this plan's computing as
 * the run recorded it: each device's `speed` becomes table seconds / compute_s[rank]. *priced_s receives
 * the seconds of the recorded plan at these costs, 0 if the document lacks one of its devices. */
int replay_calibrate(struct plan *plan, const double *compute_s, json_t *inputs, double *priced_s,
                     struct err *err);

#endif
