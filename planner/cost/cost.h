/* Cost tables: seconds a device takes for a block, as a function of what a micro-batch holds.
 *
 * A curve is a table of points over one number, the work of a micro-batch: tokens + kappa·Σ length² for
 * layers, labelled
 * + kappa·tokens for the head. kappa is read off the points themselves where they differ in shape, else taken
 * from the model's FLOPs. Between points it interpolates, beyond the last it goes on along the last two
 * (docs/PLANNER.md, Inputs: a line through all is off by up to 498 %). Below the first it goes along the
 * first two, never under the proportional share.
 */
#ifndef MOTLEY_PLANNER_COST_COST_H
#define MOTLEY_PLANNER_COST_COST_H

#include "model/blocks.h"
#include "planner/given/cluster.h"
#include "planner/given/cluster_private.h"
#include "planner/given/workload.h"

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

/* Parts of a layer, priced apart where the model has experts, so that attention and experts may be on
 * different devices. A layer with experts costs exactly the sum of its parts: attention, router, and all its
 * experts with an even share of the tokens. */
enum cost_part { COST_PART_ATTENTION, COST_PART_FFN, COST_PART_ROUTER, COST_PART_EXPERT, COST_PARTS };

/* All curves of one device for one workload. */
struct cost_device {
    struct cost_curve curves[COST_CLASSES];
    struct cost_curve parts[COST_PARTS]; /* empty if dense; one expert's is over the tokens it gets */
    double part_step_s[COST_PARTS];      /* optimiser, a part (one expert) */
    double experts_overhead_s;           /* of running any experts of a layer, once */
    uint32_t experts, experts_active;    /* of a layer; 0: dense */
    double step_s[COST_CLASSES];         /* optimiser, a block */
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

/* Seconds of one block of a class; of layers with experts by their parts. */
double cost_class_seconds(const struct cost_device *cost, enum cost_class cls, enum cost_way way,
                          const struct cost_load *load);
/* Seconds of one part (one expert). */
double cost_part_seconds(const struct cost_device *cost, enum cost_part part, enum cost_way way,
                         const struct cost_load *load);
/* Seconds of `count` experts of one layer, with `tokens` each on average (below 1: some get none). */
double cost_experts_seconds(const struct cost_device *cost, enum cost_way way, double count, double tokens);

/* Fills the part curves for a model with experts (expert_cost.c); cost_device_init calls it. */
int cost_parts_init(struct cost_device *cost, const struct device *device, const struct workload *workload,
                    const struct block_list *blocks, struct err *err);
/* FLOP/s that an entry is taken to reach, and bytes/s it reads; `threads` of a CPU. */
void cost_entry_rates(const struct catalogue_entry *entry, const struct workload *workload, double threads,
                      double *flops_per_s, double *bytes_per_s);
/* The catalogue entry to estimate a device from; NULL: none. */
const struct catalogue_entry *cost_entry_of(const struct device *device);
#define COST_KERNEL_OVERHEAD_S 30e-6 /* of an estimated block, any device */
#define COST_SQUARE_SLOWNESS 2.0     /* see cost.c */

/* Builds a curve from raw points (any order; equal work is averaged). Takes nothing. */
int cost_curve_build(struct cost_curve *curve, const struct profile_point *points, uint32_t count,
                     enum profile_block kind, double flops_square_per_token, double flops_token_per_labelled,
                     struct err *err);

#endif
