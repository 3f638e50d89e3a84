/* Iterated local search over the candidates of one placement (Lourenço, Martin, Stützle 2003). It tries all
 * typed moves (moves.h) in random order and takes each that improves, until none does. Then it applies a few
 * random moves, searches on from there, and keeps the result if it is better. The same search runs on two
 * values: the estimate, and the simulation of the emitted programs. For planner/search only; pure: it ends
 * when its budget is spent. */
#ifndef MOTLEY_PLANNER_SEARCH_LOCAL_H
#define MOTLEY_PLANNER_SEARCH_LOCAL_H

#include "common/rand.h"
#include "planner/kind/kind.h"
#include "planner/search/moves.h"

enum local_cut {
    CUT_EITHER,
    CUT_EVEN,
    CUT_TILTED
}; /* how blocks are divided over stages: all stages may take the same time for a micro-batch, or earlier ones
      longer (seconds_allowed in cut.c); CUT_EITHER: one of the two at random */

struct local_state {
    struct workbench *bench;
    const struct placement_kind *kind;
    struct rand_stream rand;
    enum local_cut cut;
    bool even; /* true: the best candidate so far was cut CUT_EVEN; false: CUT_TILTED. CUT_EITHER cuts as the
                  best was cut in three of four cases. */
    bool simulate;          /* values are those of the simulation, not of the estimate */
    uint32_t steps;         /* for how many of the problem's sampled steps a candidate is simulated */
    uint32_t must_use;      /* index of a device in the cluster plus 1: candidates without that device do not
                               count; 0: all candidates count */
    bool runnable_only;     /* candidates that workers of this release cannot run do not count */
    uint64_t spent, budget; /* work spent so far, and the most to spend, in units of half to one
                               microsecond (SETTLE_UNITS in local.c) */
    struct candidate_list *found; /* receives every local optimum that was found; may be NULL */
    uint64_t *seen;               /* [LOCAL_SEEN] hash table of candidates that were simulated */
    double looked;                /* estimated value of the candidate that local_value was last called with */
    double estimated; /* estimated value of the candidate that has to be beaten; INFINITY: unknown */
};

#define LOCAL_SEEN 4096u

/* Divides the blocks over the stages anew (MOVE_CUT) and fills in rows, micro-batches in flight,
 * recomputation and shares (also MOVE_SETTLE), as `level` asks. Returns the candidate's value by the job's
 * objective (also in candidate->estimate_s). INFINITY: it does not fit, is not allowed, or is not below
 * `rival`. Negative: ERR_NOMEM. */
double local_value(struct local_state *local, struct candidate *candidate, enum move_level level,
                   double rival);
/* Improves *candidate, whose value is *value, until the budget is spent or `rounds` perturbations (random
 * moves) in a row found nothing better. Returns 0, −1 on ERR_NOMEM. */
int local_search(struct local_state *local, struct candidate *candidate, double *value, uint32_t rounds);
/* Returns a candidate's value by the job's objective, from its emitted plan and the simulation of at most
 * steps_max sampled steps. *seconds, which may be NULL, receives the seconds of a step. INFINITY: the
 * candidate does not fit, or its value is below `checked` and plan_check refuses the plan. Negative:
 * ERR_NOMEM. */
double candidate_simulate(const struct problem *problem, const struct candidate *candidate,
                          uint32_t steps_max, double checked, double *seconds, struct err *err);
/* Makes a candidate fit that has several stages, one of them with several members: reduces its micro-batches
 * in flight, each time by about a sixth and at most three times, until its plan can be emitted. Returns 1
 * (also for other candidates, which are not tried); 0 if it still does not fit; −1 ERR_NOMEM. */
int candidate_fit(const struct problem *problem, struct candidate *candidate, struct err *err);

#endif
