/* Estimates how far a measured table may be off because the device was not quiet while it was measured. Pure.
 */
#ifndef MOTLEY_PLANNER_COST_NOISE_H
#define MOTLEY_PLANNER_COST_NOISE_H

#include "planner/given/cluster_private.h"

/* The largest share of the measuring time that other programs may take before a profile counts as doubtful.
 * Measured: 0.00 on a quiet machine, 0.42 to 0.59 on the same machine under load. */
#define NOISE_WAITED_MOST 0.05
/* The largest spread of repeats (their mean over the least, minus 1) before a profile counts as doubtful. A
 * quiet two-core machine showed 0.02 to 0.13, and under a load of 5 it showed 0.33 to 0.42. */
#define NOISE_SPREAD_MOST 0.2
/* A larger micro-batch may be faster than a smaller one by this share of the smaller one's seconds of forward
 * and backward. A larger fall makes a profile doubtful. */
#define NOISE_FALL_MOST 0.05

/* Two points of a cost table of which the one with more work takes less time, which a quiet device does not
 * show. */
struct noise_fall {
    struct profile_point less, more; /* the point with less work, and the one with more */
};

/* Writes to *first the first two points (in order of work) of this kind of block whose time falls by more
 * than NOISE_FALL_MOST, and returns the largest relative fall of all pairs. Negative: ERR_NOMEM. */
double noise_fall(const struct device_profile *profile, enum profile_block kind, struct noise_fall *first,
                  struct err *err);

/* Returns the relative error of the seconds of a doubtful profile, at most 1: the largest of the share of
 * time that other programs took, the spread of repeats, and the fall of times, where each counts only beyond
 * its limit above. 0: the profile is not doubtful. Negative: ERR_NOMEM. */
double noise_of(const struct device_profile *profile, struct err *err);

#endif
