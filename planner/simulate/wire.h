/* A pair of ranks' wire, as the simulator sees it. */
#ifndef MOTLEY_PLANNER_SIMULATE_WIRE_H
#define MOTLEY_PLANNER_SIMULATE_WIRE_H

#include <stdint.h>

#define SIM_SHARED_MAX 3u

struct sim_wire {
    double latency_s, bytes_per_s;
    /* what this pair shares with others: equal numbers are the same thing */
    uint32_t shared_count;
    struct {
        uint64_t number;
        double bytes_per_s; /* at which the thing itself could pass bytes */
    } shared[SIM_SHARED_MAX];
};

#endif
