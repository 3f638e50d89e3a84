/* Iterated local search over candidates of one kind (Lourenço, Martin, Stützle 2003). It sweeps over all
 * typed moves in random order and takes the first improvement, until none improves. Then it perturbs by a
 * few random moves of structure, and keeps the result if the next local optimum is better. The same search
 * runs on two evaluations: the estimate, and the simulation of the emitted programs. For planner/search
 * only; pure: it ends when its budget is spent. */
#ifndef MOTLEY_PLANNER_SEARCH_LOCAL_H
#define MOTLEY_PLANNER_SEARCH_LOCAL_H

#include "common/rand.h"
#include "planner/kind/kind.h"
#include "planner/search/moves.h"

enum local_cut { CUT_EITHER, CUT_EVEN, CUT_TILTED }; /* how blocks are cut (cut.c); CUT_EITHER: at random */

struct local_state {
    struct workbench *bench;
    const struct placement_kind *kind;
    struct rand_stream rand;
    enum local_cut cut;
    bool even;         /* the cut of the best candidate so far, which is tried three times as often */
    bool simulate;     /* candidates are simulated, not only estimated */
    uint32_t steps;    /* how many priced steps are simulated */
    uint32_t must_use; /* only candidates with this device: 1 + its index in the cluster; 0: all candidates */
    bool runnable_only;           /* only candidates that workers of this release can run */
    uint64_t spent, budget;       /* units of work: SETTLE_UNITS in local.c */
    struct candidate_list *found; /* receives every local optimum with its value; may be NULL */
    uint64_t *seen;               /* [LOCAL_SEEN] hashes of simulated candidates */
    double looked;                /* estimate of the candidate that was valued last */
    double estimated;             /* estimate of the candidate to be beaten; INFINITY: unknown */
};

#define LOCAL_SEEN 4096u

/* Cuts and settles as `level` requires, and returns the candidate's value by the job's objective (also in
 * candidate->estimate_s). INFINITY: it does not fit, is not allowed, or is not below `rival`. Negative:
 * ERR_NOMEM. */
double local_value(struct local_state *local, struct candidate *candidate, enum move_level level,
                   double rival);
/* Improves *candidate, whose value is *value, until the budget is spent or `rounds` perturbations in a row
 * found nothing. Returns 0, −1 on ERR_NOMEM. */
int local_search(struct local_state *local, struct candidate *candidate, double *value, uint32_t rounds);
/* The value by emitting the plan and simulating at most steps_max priced steps (*seconds of a step; may be
 * NULL). INFINITY: it does not fit, or it is below `checked` and its plan fails the checker. Negative:
 * ERR_NOMEM. */
double candidate_simulate(const struct problem *problem, const struct candidate *candidate,
                          uint32_t steps_max, double checked, double *seconds, struct err *err);
/* Reduces the windows of a candidate with groups until its plan fits. Returns 1; 0 if it does not fit; −1
 * ERR_NOMEM. Candidates without groups are not changed. */
int candidate_fit(const struct problem *problem, struct candidate *candidate, struct err *err);

#endif
