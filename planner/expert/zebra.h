/* The zebra order's time in closed form (docs/PLANNER.md, Time; HeterMoE, Wu et al. 2025, "Zebra
 * parallelism"): layers one after the other, in each layer micro-batch after micro-batch, while attention of
 * one micro-batch, dispatch, experts and combine of others go on at once. Exact when all micro-batches cost
 * the same; equals the simulator then (tests/planner/test_expert.c). Pure. For this room only. */
#ifndef MOTLEY_PLANNER_EXPERT_ZEBRA_H
#define MOTLEY_PLANNER_EXPERT_ZEBRA_H

#include <stdbool.h>
#include <stdint.h>

struct zebra { /* seconds of one layer and micro-batch, one direction */
    double attention_s, dispatch_s, experts_s, combine_s;
    double shared_s; /* the most that one device computes of attention and experts together, when one does
                        both; else 0 */
    double wire_s;   /* of dispatch and combine together, when they take the same wires; else 0 */
};

/* Seconds from one layer's start to the next one's (Λ) for `micro_batches` in flight. */
double zebra_period(const struct zebra *z, uint32_t micro_batches);
/* Seconds of `layers` layers on `micro_batches` micro-batches; 0 layers take none. */
double zebra_seconds(const struct zebra *z, uint32_t layers, uint32_t micro_batches);
/* HeterMoE's gate: does communication hide behind computing? A hint of when it pays; the simulation decides.
 */
bool zebra_gate(const struct zebra *z);

#endif
