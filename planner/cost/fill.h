/* Water-filling: divides work among members so that the last member finishes as early as possible. Pure. */
#ifndef MOTLEY_PLANNER_COST_FILL_H
#define MOTLEY_PLANNER_COST_FILL_H

#include <stdbool.h>
#include <stdint.h>

/* A share this close to a whole number of units counts as that number: far above rounding, far below a
 * unit. */
#define FILL_WHOLE_SLACK 1e-6

/* Writes shares x (Σ = 1, x[i] ≤ cap[i]) that minimise the largest base[i] + x[i]·each[i] over members
 * with x[i] > 0. Returns false if the caps sum to less than 1. */
bool fill_level(uint32_t n, const double *base, const double *each, const double *cap, double *x);
/* Does what fill_level does, but in whole units, each of which takes each[i]/units. Every member gets at
 * least `least` units, and otherwise at most floor(cap[i]·units). Exact: units are given one at a time to the
 * member that would finish the unit first. */
bool fill_whole(uint32_t n, uint32_t units, uint32_t least, const double *base, const double *each,
                const double *cap, uint32_t *count);

#endif
