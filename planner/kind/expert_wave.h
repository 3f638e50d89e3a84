/* The time of waves in zebra order, for given seconds of every device: in closed form, and by a simulation
 * of the programs (emit/expert_program.c). For planner/kind/expert.c; pure. */
#ifndef MOTLEY_PLANNER_KIND_EXPERT_WAVE_H
#define MOTLEY_PLANNER_KIND_EXPERT_WAVE_H

#include "planner/kind/shards.h"

/* Seconds of one micro-batch, of one layer with experts unless said otherwise; [2]: forward, backward. */
struct expert_times {
    uint32_t devices, layers, micro_batches;
    double attend[SHARDS_MEMBERS_MAX][2], expert[SHARDS_MEMBERS_MAX][2];
    double dense[SHARDS_MEMBERS_MAX]; /* forward and backward of all other blocks */
    bool attends[SHARDS_MEMBERS_MAX]; /* the device has rows */
    double exchange_s;                /* one exchange, to the experts or back */
    bool one_way;                     /* both directions use the same wire */
};

/* Seconds of a step in closed form, without the optimiser and reductions; a lower estimate for comparing
 * many assignments. */
double expert_times_closed(const struct expert_times *times, uint32_t wave);
/* Simulated seconds of a step in waves of that many micro-batches. delay: micro-batches by which a device's
 * experts run behind its attention; 0: it finishes a layer before it starts the next. scratch:
 * [2 · micro_batches]. */
double expert_times_simulated(const struct expert_times *times, uint32_t wave, uint32_t delay,
                              double *scratch);

#endif
