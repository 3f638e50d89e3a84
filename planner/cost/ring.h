/* Computes rates of a ring of devices whose links are all in use at once. Links between the same two
 * machines, or through the same network card, share its rate equally. Pure. */
#ifndef MOTLEY_PLANNER_COST_RING_H
#define MOTLEY_PLANNER_COST_RING_H

#include "planner/given/cluster.h"

/* Returns the rate in bytes/s from member i to the next one, and writes the link's latency. ring[count] holds
 * indices of the cluster's devices, or, if `device` is not NULL, indices into `device`. */
double ring_hop(const struct cluster *cluster, const uint32_t *ring, const uint32_t *device, uint32_t count,
                uint32_t i, double *latency_s);
/* Returns the rate of a ring's slowest link, and writes the ring's largest latency; INFINITY and 0 for one
 * device. */
double ring_slowest(const struct cluster *cluster, const uint32_t *ring, uint32_t count, double *latency_s);
/* Writes the rates in bytes/s into and out of each of `count` devices, and the ring's largest latency. An
 * all-gather brings every shard but the device's own into it; a reduce-scatter sends every shard but its own
 * out. */
void ring_rates(const struct cluster *cluster, const uint32_t *ring, uint32_t count, double *in, double *out,
                double *latency_s);

#endif
