/* Iterated local search over candidates of one kind (Lourenço, Martin, Stützle 2003): sweeps over all typed
 * moves in random order, first improvement, until none improves; then a perturbation of a few random moves of
 * structure, kept where the next local optimum is better. The same search runs on two evaluations: the
 * estimator's, and the simulator's of the emitted programs. For planner/search only; pure: it ends when its
 * budget is spent. */
#ifndef MOTLEY_PLANNER_SEARCH_LOCAL_H
#define MOTLEY_PLANNER_SEARCH_LOCAL_H

#include "common/rand.h"
#include "planner/kind/kind.h"
#include "planner/search/moves.h"

enum local_cut { CUT_EITHER, CUT_EVEN, CUT_TILTED }; /* of blocks (cut.c); CUT_EITHER: at random */

struct local {
    struct workbench *bench;
    const struct kind *kind;
    struct rand_stream rand;
    enum local_cut cut;
    bool even;                    /* what has suited so far, and is tried three times as often */
    bool simulate;                /* candidates are simulated */
    uint32_t steps;               /* priced steps that are simulated */
    uint32_t must_use;            /* only candidates with this device of the cluster, plus 1; 0: all */
    bool runnable_only;           /* only what workers of this release can run */
    uint64_t spent, budget;       /* units of work: SETTLE_UNITS in local.c */
    struct candidate_list *found; /* every local optimum is added, by its value; may be NULL */
    uint64_t *seen;               /* [LOCAL_SEEN] hashes of what was simulated */
    double looked;                /* estimated value of what was valued last */
    double estimated;             /* estimated value of what is to be beaten; INFINITY: not known */
};

#define LOCAL_SEEN 4096u

/* Cuts and settles as `level` asks, and gives the candidate's value by the job's objective (also in
 * candidate->estimate_s); INFINITY: it does not fit, must not be, or is not below `rival`. Negative:
 * ERR_NOMEM. */
double local_value(struct local *local, struct candidate *candidate, enum move_level level, double rival);
/* Improves *candidate, whose value is *value, until the budget is spent or `rounds` perturbations in a row
 * found nothing. Returns 0, −1 on ERR_NOMEM. */
int local_search(struct local *local, struct candidate *candidate, double *value, uint32_t rounds);
/* The value by emitting, and simulating over at most so many priced steps (*seconds: of a step; may be NULL);
 * INFINITY when it does not fit, or is below `checked` and not a plan that passes the checker. Negative:
 * ERR_NOMEM. */
double candidate_simulate(const struct problem *problem, const struct candidate *candidate,
                          uint32_t steps_max, double checked, double *seconds, struct err *err);
/* Lets a candidate with groups have fewer micro-batches under way until its plan fits. Returns 1; 0 when it
 * does not; −1 ERR_NOMEM. Candidates without groups are left as they are. */
int candidate_fit(const struct problem *problem, struct candidate *candidate, struct err *err);

#endif
