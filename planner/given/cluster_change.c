#include "planner/given/cluster_change.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int profile_copy(struct device_profile *to, const struct device_profile *from)
{
    *to = *from;
    for (int b = 0; b < PROFILE_BLOCKS; b++)
        to->points[b] = NULL;
    for (int b = 0; b < PROFILE_BLOCKS; b++) {
        if (from->point_count[b] == 0)
            continue;
        to->points[b] = malloc(from->point_count[b] * sizeof(*to->points[b]));
        if (!to->points[b])
            return -1;
        memcpy(to->points[b], from->points[b], from->point_count[b] * sizeof(*to->points[b]));
    }
    return 0;
}

static int device_copy(struct cluster *to, const struct cluster *from, uint32_t device, struct err *err)
{
    const struct planner_device *x = &from->devices[device];
    const struct cluster_device told = cluster_device_at(from, device);
    if (cluster_add_device(to, &told, err) < 0)
        return -1;
    struct planner_device *copy = &to->devices[to->device_count - 1];
    copy->taught = x->taught_count ? calloc(x->taught_count, sizeof(*copy->taught)) : NULL;
    if (profile_copy(&copy->profile, &x->profile) < 0 || (x->taught_count && !copy->taught))
        return err_set(err, ERR_NOMEM, "cluster: out of memory");
    copy->taught_count = x->taught_count;
    if (x->taught_count)
        memcpy(copy->taught, x->taught, x->taught_count * sizeof(*copy->taught));
    return x->lacks ? cluster_leave_out(to, x->name, x->lacks, err) : 0;
}

struct cluster *cluster_copy(const struct cluster *cluster, const uint32_t *order, struct err *err)
{
    struct cluster *copy = cluster_create(err);
    int result = copy ? 0 : -1;
    for (uint32_t i = 0; i < cluster->device_count && result == 0; i++)
        result = device_copy(copy, cluster, order ? order[i] : i, err);
    for (uint32_t n = 0; n < cluster->node_count && result == 0; n++) {
        const struct node *node = &cluster->nodes[n];
        copy->nodes[cluster_node_find(copy, node->name)].nic_bytes_per_s = node->nic_bytes_per_s;
    }
    for (uint32_t i = 0; i < cluster->link_count && result == 0; i++) {
        struct link_pair pair = cluster->links[i];
        pair.from = cluster_node_find(copy, cluster->nodes[pair.from].name);
        pair.to = cluster_node_find(copy, cluster->nodes[pair.to].name);
        result = cluster_put_link(copy, &pair, err);
    }
    if (result < 0) {
        cluster_destroy(copy);
        return NULL;
    }
    copy->runnable_only = cluster->runnable_only;
    copy->within = cluster->within;
    copy->between = cluster->between;
    return copy;
}

int cluster_add_like(struct cluster *cluster, uint32_t device, struct err *err)
{
    char name[600];
    struct cluster_device added = cluster_device_at(cluster, device);
    snprintf(name, sizeof(name), "%s+", added.name);
    added.name = name;
    if (cluster_add_device(cluster, &added, err) < 0)
        return -1;
    struct planner_device *copy =
        &cluster->devices[cluster->device_count - 1]; /* the array of devices may have been reallocated */
    if (profile_copy(&copy->profile, &cluster->devices[device].profile) < 0)
        return err_set(err, ERR_NOMEM, "cluster: out of memory");
    return 0;
}

int cluster_speed_link(struct cluster *cluster, uint32_t node_a, uint32_t node_b, double times,
                       struct err *err)
{
    struct link_pair now[2] = {{.from = node_a, .to = node_b}, {.from = node_b, .to = node_a}};
    uint32_t device[2] = {UINT32_MAX, UINT32_MAX};
    for (uint32_t d = 0; d < cluster->device_count; d++)
        if (cluster->devices[d].node == node_a && device[0] == UINT32_MAX)
            device[0] = d;
        else if (cluster->devices[d].node == node_b)
            device[1] = d;
    if (device[0] == UINT32_MAX || device[1] == UINT32_MAX)
        return err_set(err, ERR_INVALID, "link: a node without a device");
    for (int way = 0; way < 2; way++) {
        struct cluster_link *link = &now[way].link;
        *link = cluster_link(cluster, device[way], device[1 - way]);
        link->latency_s /= times;
        link->bytes_per_s = fmin(link->bytes_per_s * times, 1e18);
        link->duplex_bytes_per_s = 0; /* as fast both ways */
    }
    for (int way = 0; way < 2; way++) {
        struct node *node = &cluster->nodes[way ? node_b : node_a];
        if (node_a != node_b && node->nic_bytes_per_s > 0)
            node->nic_bytes_per_s = fmax(node->nic_bytes_per_s, now[way].link.bytes_per_s);
    }
    if (cluster_put_link(cluster, &now[0], err) < 0)
        return -1;
    return node_a == node_b ? 0 : cluster_put_link(cluster, &now[1], err);
}
