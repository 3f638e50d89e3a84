/* Computes rates of a ring of devices whose links are all in use at once. Links between the same two
 * machines, or through the same network card, share its rate equally. Pure. */
#ifndef MOTLEY_PLANNER_COST_RING_H
#define MOTLEY_PLANNER_COST_RING_H

#include "planner/given/cluster.h"

/* Returns the rate in bytes/s from member i to the next one, and writes the link's latency. ring[count] holds
 * indices of the cluster's devices, or, if `device` is not NULL, indices into `device`. */
double ring_hop(const struct cluster *cluster, const uint32_t *ring, const uint32_t *device, uint32_t count,
                uint32_t i, double *latency_s);
/* The figures of a ring of members with shares of a whole: seconds per byte of the whole to gather it and to
 * scatter its sums (every link passes all shards but one; docs/PLANNER.md, Time), the rate of the slowest
 * link, and the largest latency. INFINITY and zeros for one member. */
struct ring_figures {
    double gather_s, scatter_s, bytes_per_s, latency_s;
};
/* `ring` and `device` as of ring_hop; shares[count], or NULL: even ones. */
struct ring_figures ring_figures(const struct cluster *cluster, const uint32_t *ring, const uint32_t *device,
                                 const double *shares, uint32_t count);
/* Returns the seconds of one pass of `bytes` round a ring of that many members, each of which passes all but
 * its own part on; an all-reduce takes two passes (docs/PLANNER.md, Time). */
double ring_pass_seconds(const struct ring_figures *ring, uint32_t members, double bytes);
/* Writes the rates in bytes/s into and out of each of `count` devices, and the ring's largest latency. An
 * all-gather brings every shard but the device's own into it; a reduce-scatter sends every shard but its own
 * out. */
void ring_rates(const struct cluster *cluster, const uint32_t *ring, uint32_t count, double *in, double *out,
                double *latency_s);

#endif
