/* Cost curves: seconds of a block as a function of the contents of a micro-batch.
 *
 * A curve is a table of points over one number, the work of a micro-batch: tokens + kappa·Σ length² for
 * layers, labelled + kappa·tokens for the head. kappa is fitted to the points if they differ in shape,
 * else it comes from the model's FLOPs. Between two points the curve is linear, and beyond the last point
 * it continues the line through the last two (docs/PLANNER.md, Inputs: a line through all points is off by
 * up to 498 %). Below the first point it follows the first two, but never falls under the proportional
 * share.
 */
#ifndef MOTLEY_PLANNER_COST_CURVE_H
#define MOTLEY_PLANNER_COST_CURVE_H

#include "planner/given/cluster.h"
#include "planner/given/cluster_private.h"

/* The contents of a micro-batch, or of a part of one. */
struct cost_load {
    double rows, tokens, sum_sq, labelled;
};

enum cost_way { COST_FORWARD, COST_BACKWARD, COST_RECOMPUTE, COST_WAYS };

/* Returns the seconds of a forward, or of a backward that recomputes or does not. */
static inline double cost_pass_seconds(const double seconds[COST_WAYS], bool back, bool recompute)
{
    return back ? seconds[COST_BACKWARD] + (recompute ? seconds[COST_RECOMPUTE] : 0) : seconds[COST_FORWARD];
}

struct cost_point {
    double work, seconds[COST_WAYS];
};

/* The factor by which attention is slower, relative to the peak, than matrix products. It is used only if no
 * two measured points differ in shape. Rule of thumb. */
#define COST_SQUARE_SLOWNESS 2.0

/* Seconds of kernel launches in an estimated block, on any device. Rule of thumb. */
#define COST_KERNEL_OVERHEAD_S 30e-6

struct cost_curve {
    uint32_t count;
    struct cost_point *points;                  /* sorted by work, strictly rising */
    double per_token, per_square, per_labelled; /* coefficients of a load's work */
};

double cost_curve_work(const struct cost_curve *curve, const struct cost_load *load);

/* Returns the seconds of a load; 0 for an empty load. */
double cost_curve_seconds(const struct cost_curve *curve, enum cost_way way, const struct cost_load *load);

/* Builds a curve from raw points in any order; points of equal work are averaged. The points stay the
 * caller's. */
int cost_curve_build(struct cost_curve *curve, const struct profile_point *points, uint32_t count,
                     enum profile_block kind, double flops_square_per_token, double flops_token_per_labelled,
                     struct err *err);

/* Builds the curve of an unmeasured device. A unit of work takes flops/flops_per_s seconds but at least
 * read_s, plus overhead_s; the backward takes `back` times that. The caller has set the coefficients of
 * the work. */
int cost_curve_estimate(struct cost_curve *curve, double flops, double flops_per_s, double read_s,
                        double overhead_s, double back, struct err *err);

#endif
