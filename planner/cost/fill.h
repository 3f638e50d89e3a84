/* Sharing out a quantity so that the last member is done soonest: water-filling. Pure. */
#ifndef MOTLEY_PLANNER_COST_FILL_H
#define MOTLEY_PLANNER_COST_FILL_H

#include <stdbool.h>
#include <stdint.h>

#define FILL_WHOLE_SLACK                                                                                     \
    1e-6 /* a share this near to a whole unit is one: far above rounding, far below a unit */

/* Shares x (Σ = 1) that minimise the largest base[i] + x[i]·each[i] of those with any, none above cap[i].
 * False when the caps do not hold all. */
bool fill_level(uint32_t n, const double *base, const double *each, const double *cap, double *x);
/* The same in whole units, each taking each[i]/units and everybody at least `least` of them: at most
 * floor(cap[i]·units) each, but for these. Giving one at a time to who is done with it first is exact. */
bool fill_whole(uint32_t n, uint32_t units, uint32_t least, const double *base, const double *each,
                const double *cap, uint32_t *count);

#endif
