/* Searches the best candidates of every placement by one method: first candidates (seeds.h), iterated local
 * search on estimates, emission and simulation of the best few, then local search on simulations if programs
 * are short. The simulated seconds decide. For planner/ only; pure: it ends when its budget is spent. */
#ifndef MOTLEY_PLANNER_SEARCH_SEARCH_H
#define MOTLEY_PLANNER_SEARCH_SEARCH_H

#include "planner/kind/kind.h"

#define EVALUATIONS_DEFAULT 20000u /* one evaluation is 150 units of work, about 0.1 ms of a core */

struct search_options {
    uint64_t evaluations; /* the search's budget in evaluations; 0: the default */
    uint64_t seed;
    bool runnable_only; /* exclude plans that a worker of this release cannot run */
    /* A further candidate to begin with; the result is never slower than this one. NULL: none. Borrowed. */
    const struct candidate *from;
};

struct search_found {
    bool tried[PLACE_COUNT];            /* the job allows the placement and the cluster can have it */
    struct candidate best[PLACE_COUNT]; /* estimate_s: value by the job's objective, simulated over `steps`
                                           sampled steps; INFINITY: no candidate fits */
    double seconds[PLACE_COUNT];        /* simulated seconds of a step of `best` */
    struct candidate runnable; /* the best candidate that workers of this release can run; estimate_s as in
                                  `best` */
    double runnable_s;
    /* Seconds of a step and value of the fastest candidate, whatever the objective; INFINITY: no candidate
     * fits. */
    double fastest_s, fastest_value;
    struct shortage shortage[PLACE_COUNT];
    int chosen;     /* placement of the best value; −1: nothing fits */
    uint32_t steps; /* how many sampled steps candidates were simulated over */
    uint64_t evaluations;
    struct workbench *bench; /* what was computed on the way, for search_with; owned */
};

/* Returns the units of work that a search may spend, from its budget in evaluations (0: the default) and the
 * number of usable devices. Pure. */
uint64_t search_budget(uint64_t evaluations, uint32_t devices);

/* Fills *found; search_found_fini releases it, also after an error. ERR_INVALID or ERR_UNSUPPORTED if the
 * requested placement is impossible for this workload; ERR_NOMEM. */
int search_run(const struct problem *problem, const struct search_options *options,
               struct search_found *found, struct err *err);
void search_found_fini(struct search_found *found);

/* Searches the best candidate that uses a device which the chosen one leaves out, with a part of the budget.
 * Begins with seeds and with the best candidates of `found`, the device added. Writes the seconds of a step
 * over found->steps (INFINITY: none fits), and the candidate *with (candidate_fini) with its value. Returns
 * 0, −1 on ERR_NOMEM. */
int search_with(const struct problem *problem, const struct search_options *options,
                const struct search_found *found, uint32_t device, struct candidate *with, double *seconds,
                struct err *err);

/* Searches the best candidate that uses one device alone, and its simulated seconds. If the job does not fit
 * on the device they are INFINITY, and *shortage says what memory it lacks. The caller calls candidate_fini.
 * ERR_NOMEM. */
int search_single(const struct problem *problem, uint32_t device, struct candidate *single, double *seconds,
                  struct shortage *shortage, struct err *err);

#endif
