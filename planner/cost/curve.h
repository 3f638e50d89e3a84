/* Cost curves: seconds for a block as a function of what a micro-batch holds.
 *
 * A curve is a table of points over one number, the work of a micro-batch: tokens + kappa·Σ length² for
 * layers, labelled +
 * kappa·tokens for the head. kappa is read off the points themselves where they differ in shape, else taken
 * from the model's FLOPs. Between points it interpolates, beyond the last it goes on along the last two
 * (docs/PLANNER.md, Inputs: a line through all is off by up to 498 %). Below the first it goes along the
 * first two, never under the proportional share.
 */
#ifndef MOTLEY_PLANNER_COST_CURVE_H
#define MOTLEY_PLANNER_COST_CURVE_H

#include "planner/given/cluster.h"
#include "planner/given/cluster_private.h"

/* What a micro-batch (or a part of one) holds. */
struct cost_load {
    double rows, tokens, sum_sq, labelled;
};

enum cost_way { COST_FORWARD, COST_BACKWARD, COST_RECOMPUTE, COST_WAYS };

struct cost_point {
    double work, seconds[COST_WAYS];
};

/* Attention does less of the peak than matrix products; used only where no two measured points differ in
 * shape. Rule of thumb. */
#define COST_SQUARE_SLOWNESS 2.0

#define COST_KERNEL_OVERHEAD_S 30e-6 /* of an estimated block, any device: a few launches. Rule of thumb */

struct cost_curve {
    uint32_t count;
    struct cost_point *points;                  /* work strictly rising */
    double per_token, per_square, per_labelled; /* work of a load */
};

/* Seconds; 0 for an empty load. */
double cost_curve_seconds(const struct cost_curve *curve, enum cost_way way, const struct cost_load *load);

/* Builds a curve from raw points (any order; equal work is averaged). Takes nothing. */
int cost_curve_build(struct cost_curve *curve, const struct profile_point *points, uint32_t count,
                     enum profile_block kind, double flops_square_per_token, double flops_token_per_labelled,
                     struct err *err);

/* Builds the curve of something that nobody measured: flops for a unit of work at flops_per_s, but no less
 * than read_s, and overhead_s before either; backward takes `back` times that. What a load's work is stays as
 * the caller set it. */
int cost_curve_estimate(struct cost_curve *curve, double flops, double flops_per_s, double read_s,
                        double overhead_s, double back, struct err *err);

#endif
