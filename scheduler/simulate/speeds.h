/* A model of how fast jobs of a shape run on which devices: the planner of simulations, tests and benchmarks.
 *
 * A device computes a shape at a speed relative to the reference card. k devices together compute at the sum
 * of their speeds divided by 1 + loss (k - 1); the shape needs the sum of their memories. Pure.
 */
#ifndef MOTLEY_SCHEDULER_SIMULATE_SPEEDS_H
#define MOTLEY_SCHEDULER_SIMULATE_SPEEDS_H

#include "scheduler/policy/policy.h"

struct speed_shape {
    double step_s; /* seconds of a step on the reference card */
    double bytes;  /* memory that a plan needs in all */
    double loss;   /* loss by each further device, as in the formula above */
};

struct speed_device {
    double speed; /* speed relative to the reference card's */
    double bytes; /* memory */
};

struct speed_model {
    size_t device_count, shape_count;
    const struct speed_device *devices;
    const struct speed_shape *shapes;
    /* Factor on a device's speed for a shape: [shape * device_count + device]; 0: the device cannot run the
     * shape. NULL: all factors are 1. */
    const double *affinity;
};

/* Implements struct policy_planner's `best`; `arg` is a struct speed_model. The fastest plan takes devices in
 * the order of their speeds, as long as each one makes the step shorter. */
enum policy_fit speeds_best(void *arg, uint32_t shape, const struct device_set *among, uint16_t most,
                            struct policy_plan *plan);

#endif
