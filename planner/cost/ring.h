/* Links of a ring of devices in use all at once: those between the same two machines, or through the same
 * network card, have a part of it each. Pure. */
#ifndef MOTLEY_PLANNER_COST_RING_H
#define MOTLEY_PLANNER_COST_RING_H

#include "planner/given/cluster.h"

/* Bytes/s from member i to the next one, and the link's latency. ring[count]: devices of the cluster, or,
 * with `device` not NULL, numbers into it. */
double ring_hop(const struct cluster *cluster, const uint32_t *ring, const uint32_t *device, uint32_t count,
                uint32_t i, double *latency_s);
/* The same of a ring's slowest link, and the worst latency; INFINITY and 0 for one device. */
double ring_slowest(const struct cluster *cluster, const uint32_t *ring, uint32_t count, double *latency_s);
/* Bytes/s into and out of each of `count` devices, and the ring's worst latency. What is gathered comes in
 * but for the own share; what is reduced goes out but for it. */
void ring_rates(const struct cluster *cluster, const uint32_t *ring, uint32_t count, double *in, double *out,
                double *latency_s);

#endif
