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

static int device_copy(struct planner_device *to, const struct planner_device *from)
{
    *to = *from;
    to->name = strdup(from->name);
    to->kind = strdup(from->kind);
    to->lacks = from->lacks ? strdup(from->lacks) : NULL;
    int result = profile_copy(&to->profile, &from->profile);
    return to->name && to->kind && !to->lacks == !from->lacks ? result : -1;
}

struct cluster *cluster_copy(const struct cluster *cluster, struct err *err)
{
    struct cluster *copy = cluster_create(err);
    if (!copy)
        return NULL;
    *copy = *cluster;
    copy->device_count = copy->node_count = copy->link_count = 0;
    copy->device_capacity = cluster->device_count + 1;
    copy->node_capacity = cluster->node_count + 1;
    copy->link_capacity = cluster->link_count + 1;
    copy->devices = calloc(copy->device_capacity, sizeof(*copy->devices));
    copy->nodes = calloc(copy->node_capacity, sizeof(*copy->nodes));
    copy->links = calloc(copy->link_capacity, sizeof(*copy->links));
    bool failed = !copy->devices || !copy->nodes || !copy->links;
    failed |= cluster_index_copy(&copy->device_index, &cluster->device_index, err) < 0;
    failed |= cluster_index_copy(&copy->node_index, &cluster->node_index, err) < 0;
    failed |= cluster_index_copy(&copy->link_index, &cluster->link_index, err) < 0;
    for (uint32_t n = 0; n < cluster->node_count && !failed; n++) {
        copy->nodes[n] = cluster->nodes[n];
        copy->nodes[n].name = strdup(cluster->nodes[n].name);
        copy->node_count++;
        failed = !copy->nodes[n].name;
    }
    for (uint32_t d = 0; d < cluster->device_count && !failed; d++) {
        copy->device_count++;
        failed = device_copy(&copy->devices[d], &cluster->devices[d]) < 0;
    }
    if (failed) {
        cluster_destroy(copy);
        err_set(err, ERR_NOMEM, "cluster: out of memory");
        return NULL;
    }
    if (cluster->link_count)
        memcpy(copy->links, cluster->links, cluster->link_count * sizeof(*copy->links));
    copy->link_count = cluster->link_count;
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
