/* The search for the best candidates of every placement, by one method: seeds (seeds.h), iterated local
 * search on estimates, emission and simulation of the best few, then local search on simulations if
 * programs are short. The simulator's seconds decide. For planner/ only; pure: it ends when its budget is
 * spent. */
#ifndef MOTLEY_PLANNER_SEARCH_SEARCH_H
#define MOTLEY_PLANNER_SEARCH_SEARCH_H

#include "planner/kind/kind.h"

#define EVALUATIONS_DEFAULT 20000u /* one is 150 units of local search, about 0.1 ms of a core */

struct search_options {
    uint64_t evaluations; /* budget; 0: the default */
    uint64_t seed;
    bool runnable_only; /* exclude plans that a worker of this release cannot run */
    /* A further candidate to begin with; the result is never slower than it. NULL: none. Borrowed. */
    const struct candidate *from;
};

struct search_found {
    bool tried[PLACE_COUNT];            /* the placement is allowed and possible */
    struct candidate best[PLACE_COUNT]; /* estimate_s: its value by the job's objective, simulated over
                                           `steps` priced steps; INFINITY: there is none */
    double seconds[PLACE_COUNT];        /* seconds of a step of `best` */
    struct candidate runnable; /* the best that workers of this release can run; estimate_s as for `best` */
    double runnable_s;
    /* Of the fastest candidate, whatever the objective; INFINITY: there is none. */
    double fastest_s, fastest_value;
    struct shortage shortage[PLACE_COUNT];
    int chosen;     /* placement of the best value; −1: nothing fits */
    uint32_t steps; /* how many priced steps were compared */
    uint64_t evaluations;
};

/* The units of local search that a search may spend, from its budget in
 * evaluations (0: the default) and the number of usable devices. Pure. */
uint64_t search_budget(uint64_t evaluations, uint32_t devices);

/* Fills *found; search_found_fini releases it, also after an error. ERR_INVALID or ERR_UNSUPPORTED if the
 * requested placement is impossible for this workload; ERR_NOMEM. */
int search_run(const struct problem *problem, const struct search_options *options,
               struct search_found *found, struct err *err);
void search_found_fini(struct search_found *found);

/* Adds a device that found->best[found->chosen] leaves out to that candidate and searches on with part of
 * the budget. Writes the seconds over found->steps (INFINITY: none fits) and the candidate *with
 * (candidate_fini) with its value. Returns 0, −1 on ERR_NOMEM. */
int search_with(const struct problem *problem, const struct search_options *options,
                const struct search_found *found, uint32_t device, struct candidate *with, double *seconds,
                struct err *err);

/* A device alone: its candidate (candidate_fini) and simulated seconds. If it does not fit they are
 * INFINITY, and *shortage says what it lacks. ERR_NOMEM. */
int search_single(const struct problem *problem, uint32_t device, struct candidate *single, double *seconds,
                  struct shortage *shortage, struct err *err);

#endif
