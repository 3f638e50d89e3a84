/* Copies of a cluster, and changes of one for what-if questions. Pure. */
#ifndef MOTLEY_PLANNER_GIVEN_CLUSTER_CHANGE_H
#define MOTLEY_PLANNER_GIVEN_CLUSTER_CHANGE_H

#include "planner/given/cluster.h"
#include "planner/given/cluster_private.h"

/* Returns a deep copy (cluster_destroy), or NULL with ERR_NOMEM. Its devices, and so its nodes, are in the
 * order of order[device_count]; NULL: as they are. */
struct cluster *cluster_copy(const struct cluster *cluster, const uint32_t *order, struct err *err);
/* Adds a twin of a device, profile included, on the same node, so it shares that node's links and network
 * card. The twin's name is the device's name and "+". ERR_TOO_BIG, ERR_NOMEM, ERR_CONFLICT. */
int cluster_add_like(struct cluster *cluster, uint32_t device, struct err *err);
/* Multiplies the rate of both directions of a link by `times` and divides the latency by it. A network
 * card that would limit the faster link is sped up as much. */
int cluster_speed_link(struct cluster *cluster, uint32_t node_a, uint32_t node_b, double times,
                       struct err *err);

#endif
