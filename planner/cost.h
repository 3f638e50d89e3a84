/* Cost tables: seconds a device takes for a block, as a function of what a micro-batch holds.
 *
 * A curve is a table of points over one number, the work of a micro-batch: tokens + kappa·Σ length² for
 * layers, labelled
 * + kappa·tokens for the head. kappa is read off the points themselves where they differ in shape, else taken
 * from the model's FLOPs. Between points it interpolates, beyond the last it goes on along the last two
 * (docs/PLANNER.md, Inputs: a line through all is off by up to 498 %). Below the first it goes along the
 * first two, never under the proportional share.
 */
#ifndef MOTLEY_PLANNER_COST_H
#define MOTLEY_PLANNER_COST_H

#include "model/blocks.h"
#include "planner/cluster_private.h"
#include "planner/workload.h"

/* What a micro-batch (or a part of one) holds. */
struct cost_load {
    double rows, tokens, sum_sq, labelled;
};

enum cost_class { COST_EMBEDDING, COST_LAYER, COST_LAYER_SPARSE, COST_HEAD, COST_CLASSES };
enum cost_way { COST_FORWARD, COST_BACKWARD, COST_RECOMPUTE, COST_WAYS };

struct cost_point {
    double work, seconds[COST_WAYS];
};

struct cost_curve {
    uint32_t count;
    struct cost_point *points;                  /* work strictly rising */
    double per_token, per_square, per_labelled; /* work of a load */
};

/* All curves of one device for one workload. */
struct cost_device {
    struct cost_curve curves[COST_CLASSES];
    double step_s[COST_CLASSES]; /* optimiser, a block */
    enum cost_origin origin;
    double uncertainty; /* relative */
};

/* Class of a block of the list. */
enum cost_class cost_class_of(const struct block *block);

/* Builds the curves of one device: from its profile, else estimated from the catalogue entry and the blocks'
 * FLOPs. `fallback` (may be NULL) is the entry used when the device names none. ERR_INVALID when neither is
 * there; ERR_NOMEM. */
int cost_device_init(struct cost_device *cost, const struct device *device, const struct workload *workload,
                     const struct block_list *blocks, struct err *err);
void cost_device_fini(struct cost_device *cost);

/* Seconds; 0 for an empty load. */
double cost_curve_seconds(const struct cost_curve *curve, enum cost_way way, const struct cost_load *load);

/* Builds a curve from raw points (any order; equal work is averaged). Takes nothing. */
int cost_curve_build(struct cost_curve *curve, const struct profile_point *points, uint32_t count,
                     enum profile_block kind, double flops_square_per_token, double flops_token_per_labelled,
                     struct err *err);

#endif
