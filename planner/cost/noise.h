/* Estimates how far a measured table may be off because the device was not quiet while it was measured. Pure.
 */
#ifndef MOTLEY_PLANNER_COST_NOISE_H
#define MOTLEY_PLANNER_COST_NOISE_H

#include "planner/given/cluster_private.h"

/* The largest share of the measuring time that other programs may take. Measured: 0.00 on a quiet machine,
 * 0.42 to 0.59 on the same machine under load. */
#define NOISE_WAITED_MOST 0.05
/* The largest spread of repeats, their mean over the least minus 1. A quiet two-core machine showed 0.02 to
 * 0.13, and under a load of 5 it showed 0.33 to 0.42. */
#define NOISE_SPREAD_MOST 0.2
/* The largest share of a smaller size's forward and backward by which a larger size may be faster. */
#define NOISE_FALL_MOST 0.05

/* Two points of a cost table of which the one with more work takes less time, which a quiet device does not
 * show. */
struct noise_fall {
    struct profile_point less, more; /* the point with less work, and the one with more */
};

/* Writes to *fall the first two points (in order of work) of this kind of block whose time falls by more than
 * NOISE_FALL_MOST, and returns the largest relative fall of all pairs. Negative: ERR_NOMEM. */
double noise_fall(const struct device_profile *profile, enum profile_block kind, struct noise_fall *first,
                  struct err *err);

/* Relative error of the seconds of a doubtful profile: the largest of the share of time that other programs
 * took, of the spread of repeats, and of times that fall, each where it is beyond its limit; at most 1. 0:
 * the profile is not doubtful. Negative: ERR_NOMEM. */
double noise_of(const struct device_profile *profile, struct err *err);

#endif
