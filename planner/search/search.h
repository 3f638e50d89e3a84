/* The search: of every kind of placement the best candidates, by one method. Seeds (seeds.h), iterated local
 * search on the estimator, the best few emitted and simulated, then the same local search on the simulator
 * while programs are short. The simulator's seconds decide. For planner/ only; pure: it ends when its budget
 * is spent. */
#ifndef MOTLEY_PLANNER_SEARCH_SEARCH_H
#define MOTLEY_PLANNER_SEARCH_SEARCH_H

#include "planner/kind/kind.h"

#define EVALUATIONS_DEFAULT 20000u /* how much work one is: UNITS in search.c */

struct search_options {
    uint64_t evaluations; /* 0: the default */
    uint64_t seed;
    bool runnable_only; /* leave out what a worker of this release cannot run */
    /* A candidate to begin with as well; what is found is never slower than it. NULL: none. Borrowed. */
    const struct candidate *from;
};

struct search_found {
    bool tried[PLACE_COUNT];            /* asked for, and possible at all */
    struct candidate best[PLACE_COUNT]; /* estimate_s: its value by the job's objective, simulated over
                                           `steps` priced steps; INFINITY: none */
    double seconds[PLACE_COUNT];        /* of a step of these */
    struct candidate runnable;          /* the best that workers of this release can run, likewise */
    double runnable_s;
    double fastest_s, fastest_value; /* the fastest seen, whatever the objective; INFINITY: none */
    struct shortage shortage[PLACE_COUNT];
    int chosen;     /* the placement of the fastest; −1: nothing fits */
    uint32_t steps; /* priced steps over which all of them were compared */
    uint64_t evaluations;
};

/* Fills *found, which search_found_fini releases also after an error. ERR_INVALID or ERR_UNSUPPORTED when the
 * placement asked for is not possible for this workload; ERR_NOMEM. */
int search_run(const struct problem *problem, const struct search_options *options,
               struct search_found *found, struct err *err);
void search_found_fini(struct search_found *found);

/* The best candidate with a device that found->best[found->chosen] leaves out, put into it and searched on
 * from there with part of the budget: its seconds over found->steps; INFINITY: none fits. *with: it
 * (candidate_fini), with its value. Returns 0, −1 on ERR_NOMEM. */
int search_with(const struct problem *problem, const struct search_options *options,
                const struct search_found *found, uint32_t device, struct candidate *with, double *seconds,
                struct err *err);

/* A device alone: the candidate (candidate_fini) and its simulated seconds; INFINITY where it does not fit,
 * and then *shortage says what it lacks. ERR_NOMEM. */
int search_single(const struct problem *problem, uint32_t device, struct candidate *single, double *seconds,
                  struct shortage *shortage, struct err *err);

#endif
