/* The connection of a pair of ranks, as the simulator sees it. */
#ifndef MOTLEY_PLANNER_SIMULATE_WIRE_H
#define MOTLEY_PLANNER_SIMULATE_WIRE_H

#include <stdint.h>

#define SIM_SHARED_MAX 3u

struct sim_wire {
    double latency_s, bytes_per_s;
    /* resources that this pair shares with other pairs; equal numbers are the same resource */
    uint32_t shared_count;
    struct {
        uint64_t number;
        double bytes_per_s; /* rate of the resource itself */
    } shared[SIM_SHARED_MAX];
};

#endif
