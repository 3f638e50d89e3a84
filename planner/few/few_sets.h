/* Sets of few devices and the groups that can be taken from them, where devices that are alike in everything
 * stand for each other: of two sets with as many of each kind one is looked at. For few_bound.h only; pure.
 */
#ifndef MOTLEY_PLANNER_FEW_FEW_SETS_H
#define MOTLEY_PLANNER_FEW_FEW_SETS_H

#include "planner/cost/problem.h"

#define FEW_DEVICES 16u
#define FEW_MICRO 64u /* micro-batches a step up to which a size is looked at */

/* A group taken from a set, of every kind the last ones, and what is left: devices, and numbers of sets. */
struct few_pair {
    uint16_t group, left;
    uint32_t group_at, left_at;
};

struct few_sets {
    const struct problem *p;
    bool single;
    uint32_t count, device[FEW_DEVICES]; /* those that can be used */
    uint32_t kinds, of_kind[FEW_DEVICES], kind[FEW_DEVICES][FEW_DEVICES];
    uint32_t sets;          /* numbered from the empty one, those within others before them */
    uint16_t *set;          /* [sets]: their devices, of every kind the first ones */
    uint32_t *first;        /* [sets + 1]: pairs of each */
    struct few_pair *pairs; /* [first[sets]] */
};

/* Groups of any size, or `single` devices alone. Returns 1; 0 where there are too few devices, too many, or
 * too many pairs; −1 ERR_NOMEM. few_sets_fini in any case. */
int few_sets_init(struct few_sets *sets, const struct problem *problem, bool single, struct err *err);
void few_sets_fini(struct few_sets *sets);

/* Are all of a step's rows on so many devices few enough to be worth it? Longer steps are arranged well
 * enough. */
bool few_worth(const struct problem *problem, uint32_t devices);
/* Are two usable devices alike in everything that decides what a plan takes, so that they may change places?
 */
bool few_alike(const struct problem *problem, uint32_t a, uint32_t b);
/* Is a size of micro-batches looked at? */
bool few_size_worth(const struct problem *problem, uint32_t rows);

#endif
