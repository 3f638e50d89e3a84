/* Polishing by simulation: what is found by estimate is emitted and simulated in earnest, and changed one
 * thing at a time (moves.h) while it gets faster. For this room only. */
#ifndef MOTLEY_PLANNER_SEARCH_POLISH_H
#define MOTLEY_PLANNER_SEARCH_POLISH_H

#include "planner/search/placement.h"

/* Seconds of a choice by emitting and simulating it over at most steps_max priced steps; negative when it
 * does not fit. *err is set on ERR_NOMEM only. */
double choice_simulate(const struct problem *problem, const struct place_choice *choice, uint32_t steps_max,
                       struct err *err);

struct polish;

#define QUICK_SLACK 1.015 /* what a quick look may be off from one choice to its neighbour */

/* A polisher for choices of one problem: it remembers what it has simulated. `budget` in rank-micro-batches
 * simulated (a choice of 4 ranks and 16 micro-batches over 2 steps spends 128). Returns new, or NULL with
 * ERR_NOMEM. */
struct polish *polish_create(const struct problem *problem, uint32_t steps_max, uint64_t budget,
                             uint64_t seed, struct err *err);
void polish_destroy(struct polish *polish);

/* Seconds of a choice, as choice_simulate, out of the budget; negative also when that is spent. */
double polish_seconds(struct polish *polish, const struct place_choice *choice);
/* The same, after recomputing more, or with smaller windows or micro-batches, where that makes it fit. */
double polish_fit(struct polish *polish, struct place_choice *choice);
/* Windows, cuts, rows and recomputation alone, while it gets faster; who does what stays. */
void polish_settle(struct polish *polish, struct place_choice *choice, double *seconds);
/* A quick look (group_quick.h), out of the budget. Negative: it cannot say. */
double polish_quick(struct polish *polish, const struct place_choice *choice);
/* The same, or negative where it is `most` or more and a bound says so. */
double polish_quick_below(struct polish *polish, const struct place_choice *choice, double most);
/* How many quick looks the budget lets, when some of what was looked at is simulated. */
uint64_t polish_looks(const struct polish *polish, const struct place_choice *choice);
/* Equal for choices that run alike, as far as can be told without running them. */
uint64_t polish_hash(const struct place_choice *choice);
/* Another number for each way in which the choice is meant. */
uint64_t polish_hash_as(const struct place_choice *choice, uint32_t as);
/* Was it asked about with the same choice before? Once is enough for what leads to the same end again. */
bool polish_again(struct polish *polish, const struct place_choice *choice);
/* Does it fit? */
bool polish_fits(struct polish *polish, const struct place_choice *choice);
/* Cuts, rows, order and windows by quick looks alone, while they get better, fit, and are below `most`. */
void polish_quick_settle(struct polish *polish, struct place_choice *choice, double *quick, double most);
/* The same, and who takes which micro-batch outright. */
void polish_quick_deal(struct polish *polish, struct place_choice *choice, double *quick);
/* Changes *choice (owned by the caller) while simulation says it gets faster; *seconds is its time before and
 * after. Returns whether it did. */
bool polish_descend(struct polish *polish, struct place_choice *choice, double *seconds);
/* Descends, then kicks it about at random and descends again, keeping the best, until `kicks` in a row found
 * nothing or the budget is spent. */
void polish_search(struct polish *polish, struct place_choice *choice, double *seconds, uint32_t kicks);
/* A choice of devices, order and stages at random, that fits (choice_fini), for pipelines and hybrids; false
 * when none was found. */
bool polish_fresh(struct polish *polish, enum plan_placement kind, struct place_choice *choice,
                  double *seconds);
bool polish_spent(const struct polish *polish);
/* From now on only choices that use this device count. */
void polish_must_use(struct polish *polish, uint32_t device);

#endif
