/* The time of a step whose devices compute attention and experts in zebra order (HeterMoE: layer by layer,
 * and in each layer all micro-batches of a wave), from every device's seconds: in closed form, or by
 * simulating the order of emit/expert_program.c. For planner/kind/expert.c; pure. */
#ifndef MOTLEY_PLANNER_KIND_EXPERT_WAVE_H
#define MOTLEY_PLANNER_KIND_EXPERT_WAVE_H

#include "planner/kind/shards.h"

/* Seconds of one micro-batch in one layer with experts, unless said otherwise; [2]: forward, backward. */
struct expert_times {
    uint32_t devices, layers, micro_batches;
    double attend[SHARDS_MEMBERS_MAX][2], expert[SHARDS_MEMBERS_MAX][2];
    double dense[SHARDS_MEMBERS_MAX]; /* forward and backward of all other blocks */
    bool attends[SHARDS_MEMBERS_MAX]; /* the device computes attention for some rows */
    double exchange_s; /* seconds of sending tokens to the devices with their experts, or of sending the
                          results back */
    bool one_way;      /* tokens and results share a wire, so one direction waits for the other */
};

/* Estimates a step in seconds in closed form, without the optimiser and all-reduces, for comparing many
 * assignments of devices. It is usually too short, and at most by the factor NEARLY of expert.c too long.
 * wave: micro-batches that pass all layers together before the next ones begin. */
double expert_times_closed(const struct expert_times *times, uint32_t wave);
/* Simulates a step in waves of that many micro-batches and returns its seconds. delay: how many micro-batches
 * later a device computes a layer's experts than its attention; 0: it finishes a layer before it starts the
 * next. scratch: [2 · micro_batches]. */
double expert_times_simulated(const struct expert_times *times, uint32_t wave, uint32_t delay,
                              double *scratch);

#endif
