#include "planner/cost/alike.h"

#include <string.h>

#include "planner/cost/micro.h"
#include "planner/given/cluster_private.h"

static bool links_alike(const struct problem *p, uint32_t a, uint32_t b)
{
    for (uint32_t other = 0; other < p->device_count; other++) {
        for (int back = 0; back < 2 && other != a && other != b; back++) {
            struct problem_link x = back ? problem_link(p, other, a) : problem_link(p, a, other),
                                y = back ? problem_link(p, other, b) : problem_link(p, b, other);
            if (x.latency_s != y.latency_s || x.bytes_per_s != y.bytes_per_s)
                return false;
        }
    }
    return true;
}

/* True for one and the same node, or for two nodes that have a single device each and equal network cards. */
static bool nodes_alike(const struct cluster *cluster, uint32_t a, uint32_t b)
{
    uint32_t devices = 0;
    for (uint32_t d = 0; d < cluster->device_count; d++)
        devices += cluster->devices[d].node == a || cluster->devices[d].node == b;
    return a == b || (devices == 2 && cluster->nodes[a].nic_bytes_per_s == cluster->nodes[b].nic_bytes_per_s);
}

static bool costs_alike(const struct problem *p, uint32_t a, uint32_t b)
{
    uint32_t sizes[MICRO_SIZES_MAX], size_count = micro_sizes(p, sizes);
    for (uint32_t i = 0; i < size_count; i++) {
        struct micro_cost cost[2];
        micro_cost_init(&cost[0], p, a, sizes[i]);
        micro_cost_init(&cost[1], p, b, sizes[i]);
        if (memcmp(&cost[0], &cost[1], sizeof(cost[0])) != 0)
            return false;
    }
    return true;
}

bool devices_alike(const struct problem *p, uint32_t a, uint32_t b)
{
    const struct planner_device *x = &p->cluster->devices[a], *y = &p->cluster->devices[b];
    return x->memory_limit_bytes == y->memory_limit_bytes && x->price_per_hour == y->price_per_hour &&
           x->watts == y->watts && x->idle_watts == y->idle_watts &&
           nodes_alike(p->cluster, x->node, y->node) && links_alike(p, a, b) && costs_alike(p, a, b);
}
