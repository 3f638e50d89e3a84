#include "planner/cost/ring.h"

#include <math.h>

#include "planner/given/cluster_private.h"

/* Most members of a ring for which links that share a wire or a network card get only a part of its rate. In
 * larger rings every link has its whole rate, since counting takes members² steps. */
#define SHARING_MAX 256u

double ring_hop(const struct cluster *cluster, const uint32_t *ring, const uint32_t *device, uint32_t count,
                uint32_t i, double *latency_s)
{
    uint32_t a = ring[i], b = ring[(i + 1) % count], alike = 0, leaving = 0, arriving = 0;
    a = device ? device[a] : a;
    b = device ? device[b] : b;
    uint32_t from = cluster->devices[a].node, to = cluster->devices[b].node;
    struct cluster_link link = cluster_link(cluster, a, b);
    double rate = link.duplex_bytes_per_s; /* every member sends and receives at once */
    *latency_s = link.latency_s;
    for (uint32_t k = 0; k < count && count <= SHARING_MAX && from != to; k++) {
        uint32_t x = ring[k], y = ring[(k + 1) % count];
        uint32_t c = cluster->devices[device ? device[x] : x].node;
        uint32_t d = cluster->devices[device ? device[y] : y].node;
        alike += c == from && d == to;
        leaving += c == from && d != from;
        arriving += d == to && c != to;
    }
    rate /= alike > 1 ? alike : 1;
    if (leaving > 1 && cluster->nodes[from].nic_bytes_per_s > 0)
        rate = fmin(rate, cluster->nodes[from].nic_bytes_per_s / leaving);
    if (arriving > 1 && cluster->nodes[to].nic_bytes_per_s > 0)
        rate = fmin(rate, cluster->nodes[to].nic_bytes_per_s / arriving);
    return rate;
}

struct ring_figures ring_figures(const struct cluster *cluster, const uint32_t *ring, const uint32_t *device,
                                 const double *shares, uint32_t count)
{
    struct ring_figures f = {.bytes_per_s = INFINITY};
    for (uint32_t i = 0; i < count && count > 1; i++) {
        double latency, rate = ring_hop(cluster, ring, device, count, i, &latency);
        double mine = shares ? shares[i] : 1.0 / count, next = shares ? shares[(i + 1) % count] : 1.0 / count;
        f.latency_s = fmax(f.latency_s, latency);
        f.bytes_per_s = fmin(f.bytes_per_s, rate);
        f.gather_s = fmax(f.gather_s, (1 - next) / rate);
        f.scatter_s = fmax(f.scatter_s, (1 - mine) / rate);
    }
    return f;
}

double ring_pass_seconds(const struct ring_figures *ring, uint32_t members, double bytes)
{
    double n = members;
    return (n - 1) / n * bytes / ring->bytes_per_s + (n - 1) * ring->latency_s;
}

void ring_rates(const struct cluster *cluster, const uint32_t *ring, uint32_t count, double *in, double *out,
                double *latency_s)
{
    *latency_s = 0;
    for (uint32_t i = 0; i < count; i++) {
        double latency;
        out[i] = in[(i + 1) % count] = ring_hop(cluster, ring, NULL, count, i, &latency);
        *latency_s = fmax(*latency_s, latency);
    }
}
